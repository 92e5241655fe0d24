//! Replications that rules ask for: a rule is a document about one database or many, each of which has a job of its own.

use std::collections::HashSet;

use docstore::{Db, InstanceId, ReadOptions};
use document::json::Json;
use futures::future::try_join_all;
use futures::{TryStreamExt as _, stream};
use jobs::{Add, Class, JobId, JobInfo, Op, Signal, State};
use store::Transaction;

use super::owner::Rank;
use crate::data::{JobData, Origin, Remote, document_job_id};
use crate::fault::ServiceError;
use crate::keys;
use crate::remote::delayed_ms;
use crate::service::Replications;
use replication::params::{Grant, Replication};

/// Jobs that are removed at a time.
const CONCURRENT: usize = 16;

/// A replication that a rule asks for.
#[derive(Clone, Debug)]
pub struct Ruled {
    /// The name of the database that the rule is in.
    pub db: String,
    pub instance: InstanceId,
    /// The rule.
    pub doc_id: String,
    pub rev: String,
    /// The database it is about, if the rule is about several.
    pub database: Option<String>,
    /// The remote that the rule is; then it has a job per URL.
    pub remote: Option<Remote>,
    /// Whether the database was there before the rule: its first run is after those of others.
    pub is_bulk: bool,
    /// Its parameters, as of a request.
    pub body: Json,
}

impl Ruled {
    pub(crate) fn job(&self) -> JobId {
        let url = self.remote.as_ref().map(|remote| &remote.url);
        let parts = [Some(&self.doc_id), self.database.as_ref(), url];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        document_job_id(self.instance, &parts.join("|"))
    }

    fn origin(&self) -> Origin {
        Origin::Rule {
            db: self.db.clone(),
            instance: self.instance.to_string(),
            doc_id: self.doc_id.clone(),
            rev: self.rev.clone(),
            database: self.database.clone(),
            remote: self.remote.clone().map(Box::new),
        }
    }
}

/// What has become of a rule since it asked for a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Unchanged,
    /// Its present revision may ask for the job, too.
    Edited,
    Gone,
}

/// A job that a rule asks for.
struct Asked {
    add: Add,
    /// The row that says that it is active.
    active: Vec<u8>,
    /// Whether the rule has had another before.
    replaces: bool,
}

impl Replications {
    /// Creates the jobs of rules, or new ones after a rule's new revision. Returns how many: jobs of the same revision are
    /// left alone, and so are those of later ones. Rules have the rights of server administrators, who alone may write them.
    pub async fn rule_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ruled: &[&Ruled],
    ) -> Result<usize, ServiceError> {
        // They wait for the store together: one after the other, they would not end in time on a slow one.
        let asked = ruled.iter().map(|ruled| self.asked_in(tx, op, ruled));
        let mut adds = Vec::new();
        for asked in try_join_all(asked).await?.into_iter().flatten() {
            let Asked {
                add,
                active,
                replaces,
            } = asked;
            if replaces {
                self.drop_job_in(tx, op, &add.id).await?;
            }
            tx.set(&active, b"");
            adds.push(add);
        }
        let jobs = &self.0.jobs;
        Ok(jobs.add_many_in(tx, op, &self.0.ty, &adds).await?.len())
    }

    /// Whether there is a job for this, of any revision of its rule.
    pub async fn has_job_in(&self, tx: &Transaction, ruled: &Ruled) -> Result<bool, ServiceError> {
        let job = self.job_in(tx, &ruled.job()).await?;
        Ok(job.is_some_and(|(_, data)| data.is_of(ruled.instance, &ruled.doc_id)))
    }

    /// The job that a rule asks for, unless it is there.
    async fn asked_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ruled: &Ruled,
    ) -> Result<Option<Asked>, ServiceError> {
        let (job, origin) = (ruled.job(), ruled.origin());
        let before = self.job_in(tx, &job).await?;
        if (before.as_ref()).is_some_and(|(_, data)| data.origin == origin) {
            return Ok(None);
        }
        // Not every caller has read the rule in this transaction.
        if before.is_some() && self.rule_fate_in(tx, &origin).await? == Fate::Edited {
            return Ok(None);
        }
        let grant = Grant::of(&ruled.body, None, Rank::ServerAdmin.reach());
        let wanted = Replication::granted(&ruled.body, grant.as_ref(), &self.defaults());
        let mut data = JobData::new(
            &self.0.sealer,
            &job,
            origin,
            (&ruled.body, grant.as_ref()),
            wanted.as_ref(),
            op.now_ms,
        );
        data.paused = false;
        self.seals_job_in(tx, &data).await?;
        let mut add = self.job_of(&job, &data);
        if ruled.remote.is_some() {
            let trigger = wanted.ok().and_then(|wanted| wanted.options.trigger);
            add = add.due_ms(delayed_ms(op, &job, trigger.as_ref()));
        }
        // A replaced job may have had a change to copy, which must not wait longer than before.
        if ruled.is_bulk && before.is_none() {
            add = add.class(Class::Bulk);
        }
        Ok(Some(Asked {
            active: keys::active(data.rep_id.as_deref(), &job),
            add,
            replaces: before.is_some(),
        }))
    }

    /// Removes the job of a rule about a database that is gone.
    pub async fn unrule_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ruled: &Ruled,
    ) -> Result<(), ServiceError> {
        self.drop_job_in(tx, op, &ruled.job()).await.map(drop)
    }

    /// Removes the jobs that a rule does not ask for any more, because it was edited or deleted, and ends their runs;
    /// without an id, those of all rules of a database. Leaves those about `kept` databases alone, which a new revision may
    /// still ask for. After an error some were removed and others not.
    pub async fn unrule(
        &self,
        instance: InstanceId,
        doc_id: &str,
        kept: &HashSet<&str>,
    ) -> Result<(), ServiceError> {
        let mut pages = self.pages_of_rule(instance, doc_id, true)?;
        let jobs = &self.0.jobs;
        while let Some(page) = pages.next().await? {
            let mut found = Vec::new();
            for listed in page {
                let data = JobData::decode(&listed.data.unwrap_or_default())?;
                let is_kept = matches!(&data.origin, Origin::Rule { database: Some(name), .. }
                    if kept.contains(name.as_str()));
                if !is_kept && (doc_id.is_empty() || data.is_of(instance, doc_id)) {
                    found.push(Ok(listed.info.id));
                }
            }
            let drop = |job: JobId| async move {
                let (op, job) = (jobs.op(), &job);
                let drop =
                    |tx: Transaction| async move { self.drop_unruled_in(&tx, &op, job).await };
                jobs.store().transact("unrule", drop).await
            };
            (stream::iter(found).try_for_each_concurrent(CONCURRENT, drop)).await?;
        }
        self.0.kept.outdate();
        Ok(())
    }

    async fn drop_unruled_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
    ) -> Result<(), ServiceError> {
        // A rule of this id may be there again, and have jobs of its own.
        if let Some((_, data)) = self.job_in(tx, job).await?
            && self.rule_fate_in(tx, &data.origin).await? != Fate::Unchanged
        {
            self.drop_job_in(tx, op, job).await?;
        }
        Ok(())
    }

    /// Runs the job of a rule now if it failed while its source was missing, which is there again.
    pub async fn retry_ruled_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ruled: &Ruled,
    ) -> Result<(), ServiceError> {
        let job = ruled.job();
        let Some((info, data)) = self.job_in(tx, &job).await? else {
            return Ok(());
        };
        if data.missing_since.is_none() || data.origin != ruled.origin() {
            return Ok(());
        }
        self.run_now_in(tx, op, &job, (&info, &data))
            .await
            .map(drop)
    }

    /// Runs the replications of a rule now, and those that run once more afterwards. Returns how many there are. After an
    /// error some were triggered and others not.
    pub async fn trigger_rule(&self, db: &Db, doc_id: &str) -> Result<u64, ServiceError> {
        let mut pages = self.pages_of_rule(db.instance(), doc_id, false)?;
        let (jobs, mut triggered) = (&self.0.jobs, 0);
        while let Some(page) = pages.next().await? {
            for listed in &page {
                let (op, id) = (jobs.op(), &listed.info.id);
                let trigger = |tx: Transaction| async move {
                    Box::pin(self.trigger_in(&tx, &op, id, (db, doc_id))).await
                };
                triggered += u64::from(Box::pin(jobs.store().transact("trigger", trigger)).await?);
            }
        }
        self.0.kept.outdate();
        Ok(triggered)
    }

    /// False if the job does not belong to this rule, or if an earlier revision asked for it: then it does not run again.
    async fn trigger_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        (db, doc_id): (&Db, &str),
    ) -> Result<bool, ServiceError> {
        let Some((info, data)) = self.job_in(tx, job).await? else {
            return Ok(false);
        };
        let is_its = data.is_of(db.instance(), doc_id);
        if !is_its || self.rule_fate_in(tx, &data.origin).await? != Fate::Unchanged {
            return Ok(false);
        }
        self.run_now_in(tx, op, job, (&info, &data)).await
    }

    /// False if it describes no replication.
    async fn run_now_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        (info, data): (&JobInfo, &JobData),
    ) -> Result<bool, ServiceError> {
        if data.spec.is_none() {
            return Ok(false);
        }
        if info.state == State::Running {
            let signal = Signal::new(job.clone()).due_ms(0);
            (self.0.jobs)
                .signal_many_in(tx, op, &self.0.ty, &[signal])
                .await?;
        } else {
            self.restart_in(tx, op, job).await?;
        }
        Ok(true)
    }

    /// What has become of the rule that asked for a job; if it was no rule, nothing.
    pub(crate) async fn rule_fate_in(
        &self,
        tx: &Transaction,
        origin: &Origin,
    ) -> Result<Fate, ServiceError> {
        let Origin::Rule {
            db,
            instance,
            doc_id,
            rev,
            ..
        } = origin
        else {
            return Ok(Fate::Unchanged);
        };
        let docs = &self.0.docs;
        let db = match docs.open_in(tx, &docs.name(db)?).await {
            Ok(db) if db.instance().to_string() == *instance => db,
            Ok(_) | Err(docstore::Error::NoDatabase) => return Ok(Fate::Gone),
            Err(error) => return Err(error.into()),
        };
        match docs.get_in(tx, &db, doc_id, &ReadOptions::default()).await {
            Ok(document) if document.rev.to_string() == *rev => Ok(Fate::Unchanged),
            Ok(_) => Ok(Fate::Edited),
            Err(docstore::Error::Missing | docstore::Error::Deleted) => Ok(Fate::Gone),
            Err(error) => Err(error.into()),
        }
    }
}
