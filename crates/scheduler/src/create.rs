//! The creating half: documents and requests become jobs.
//!
//! A document and its job are written in one transaction: [`Replications::prepare`] checks and completes an edit before it,
//! and [`Replications::hook`] takes part in it. The winning revision decides. The same replication again changes nothing,
//! another one replaces the job, a deletion removes it, and a document whose terminal state was taken out runs again.
//!
//! Jobs, rows and documents meet in few functions here (`put_job_in`, `drop_job_in`, `release_in`), which keep this:
//! a job has a row in the listing of active jobs exactly while it is not finished; the owner's row of a replication id goes
//! with its owner; whoever failed as a duplicate is tried again when that happens.

mod owner;
mod request;
mod reseal;
mod scan;
mod steer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use docstore::{Change, Db, DocStore, Document, WriteHook};
use document::json::Json;
use jobs::{
    Add, Entropy, JobId, JobInfo, JobType, Jobs, Lane, Op, Retention, StallPolicy, State,
    TypeConfig,
};
use md5::{Digest as _, Md5};
use store::{RangeOptions, Transaction};
use tokio::sync::watch;

use owner::check_owner;
pub use owner::{Rank, Writer};
pub use request::{Answer, Caller, Failure, Started};
pub use reseal::{KeysInUse, Resealing, Sealed, count_seals, keys_in_use};
pub use scan::Scanned;

use crate::data::{self, JobData, JobState, Kind, Origin, document_job_id};
use crate::fault::ServiceError;
use crate::keys;
use crate::options::Options;
use crate::run::Secrets;
use crate::seal::Sealer;
use crate::strip;
use crate::witness::{self, Bug};
use replication::id::Service;
use replication::params::{Defaults, Replication};

/// The type of replication jobs, as CouchDB names it.
pub const JOB_TYPE: &str = "rep_jobs";
/// How long a node may be silent before its jobs are given to others, when nobody says.
pub const JOB_TIMEOUT: Duration = Duration::from_secs(61);
/// Due time of jobs that wait for nobody: the end of the year 9999.
pub(crate) const PARKED_MS: i64 = 253_402_300_799_000;
/// Duplicates that are looked at when an owner goes.
const RELEASED_MAX: usize = 16;

/// What [`Replications::open`] needs to know.
#[derive(Debug, Default)]
pub struct Setup {
    /// Keys for credentials at rest.
    pub sealer: Sealer,
    /// What `auth.secret_ref` names.
    pub secrets: Secrets,
    /// The section `[replicator]`.
    pub options: Options,
    /// The UUID that replication ids are made of, as of a CouchDB that is replaced; else the stored one, or a new one.
    pub uuid: Option<String>,
    /// See [`Service::legacy_host`].
    pub legacy_host: Option<(String, u16)>,
    /// How long a node may be silent before its jobs are given to others; [`JOB_TIMEOUT`] when there is none. The same for
    /// all nodes of a store.
    pub job_timeout: Option<Duration>,
}

/// Everything about replications but running them. Cheap to clone.
#[derive(Clone)]
pub struct Replications(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) jobs: Jobs,
    pub(crate) docs: DocStore,
    pub(crate) ty: JobType,
    pub(crate) sealer: Sealer,
    pub(crate) secrets: Secrets,
    pub(crate) service: Service,
    pub(crate) job_timeout: Duration,
    options: watch::Sender<Arc<Options>>,
}

impl fmt::Debug for Replications {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Replications").finish_non_exhaustive()
    }
}

impl Replications {
    /// Registers the type of jobs, and finds or makes the service's UUID. [`ServiceError::Unreadable`] when something in
    /// the store may be sealed with a key that is not among these.
    pub async fn open(jobs: Jobs, docs: DocStore, setup: Setup) -> Result<Self, ServiceError> {
        setup.options.validate()?;
        let jobs = jobs.labelled(data::label);
        let ty = JobType::new(JOB_TYPE)?;
        let job_timeout = setup.job_timeout.unwrap_or(JOB_TIMEOUT);
        let timeout_ms = u64::try_from(job_timeout.as_millis()).unwrap_or(u64::MAX);
        let config = TypeConfig {
            stalls: StallPolicy {
                stalls_max: None,
                backoff_ms: 500,
                backoff_ms_max: 600_000,
                healthy_ms: setup.options.health_threshold_sec.saturating_mul(1000),
            },
            ..TypeConfig::new(timeout_ms)
        };
        let drawn = format!("{:032x}", jobs.entropy().bits());
        let (registry, ty_ref) = (&jobs, &ty);
        let (given, drawn) = (setup.uuid.as_deref(), drawn.as_str());
        let sealer = &setup.sealer;
        let (uuid, before) = (jobs.store())
            .transact("open_replications", |tx| async move {
                let before = registry.type_config_in(&tx, ty_ref).await?;
                registry.set_type_in(&tx, ty_ref, config).await?;
                reseal::check_keys_in(&tx, sealer).await?;
                Ok::<_, ServiceError>((service_uuid_in(&tx, given, drawn).await?, before))
            })
            .await?;
        if let Some(before) = before.filter(|before| before.timeout_ms != timeout_ms) {
            tracing::warn!(
                before_ms = before.timeout_ms,
                now_ms = timeout_ms,
                "the store has another job_timeout_sec now: it has to be the same on all nodes"
            );
        }
        Ok(Self(Arc::new(Shared {
            jobs,
            docs,
            ty,
            sealer: setup.sealer,
            secrets: setup.secrets,
            service: Service {
                uuid,
                legacy_host: setup.legacy_host,
            },
            job_timeout,
            options: watch::Sender::new(Arc::new(setup.options)),
        })))
    }

    /// The queue.
    pub fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }

    /// The databases.
    pub fn docs(&self) -> &DocStore {
        &self.0.docs
    }

    /// The type of the jobs: what a [`jobs::Notifier`] and a [`jobs::Acceptor`] have to be made for.
    pub fn job_type(&self) -> &JobType {
        &self.0.ty
    }

    /// What ids are made of.
    pub fn service(&self) -> &Service {
        &self.0.service
    }

    /// Seals and opens documents.
    pub fn sealer(&self) -> &Sealer {
        &self.0.sealer
    }

    /// The settings of now.
    pub fn options(&self) -> Arc<Options> {
        self.0.options.borrow().clone()
    }

    /// Changes the settings, from the next transaction or turn on.
    pub fn set_options(&self, options: Options) -> Result<(), ServiceError> {
        options.validate()?;
        self.0.options.send_replace(Arc::new(options));
        Ok(())
    }

    pub(crate) fn watch_options(&self) -> watch::Receiver<Arc<Options>> {
        self.0.options.subscribe()
    }

    pub(crate) fn defaults(&self) -> Defaults {
        self.0.options.borrow().defaults()
    }

    pub(crate) fn entropy(&self) -> &Entropy {
        self.0.jobs.entropy()
    }

    /// Takes part in writes of documents by `writer`. One hook serves one call of the document store.
    pub fn hook(&self, writer: Writer) -> DocumentHook<'_> {
        DocumentHook {
            of: self,
            writer,
            op: self.0.jobs.op(),
        }
    }

    /// What a document's winning revision means for its job.
    pub(crate) async fn document_in(
        &self,
        tx: &Transaction,
        op: &Op,
        db: &Db,
        doc: &Document,
    ) -> Result<(), ServiceError> {
        let job = document_job_id(db.instance(), &doc.id);
        if doc.deleted && !witness::has(Bug::DeletedKeepsJob) {
            return self.drop_job_in(tx, op, &job).await.map(|_| ());
        }
        let (body, grant) = strip::open_granted(&self.0.sealer, db, &doc.id, &doc.body)?;
        let grant = grant.as_ref();
        let state = body.get("_replication_state").and_then(Json::as_str);
        if matches!(state, Some("completed" | "failed")) {
            return Ok(());
        }
        let wanted = Replication::granted(&body, grant, &self.defaults());
        let origin = Origin::document(db, &doc.id);
        let new = JobData::new(
            &self.0.sealer,
            &job,
            origin,
            (&body, grant),
            wanted.as_ref(),
            op.now_ms,
        );
        let owner = body.get("owner").and_then(Json::as_str);
        let Some((info, old)) = self.job_in(tx, &job).await? else {
            return self.put_job_in(tx, op, &job, &new, owner).await;
        };
        let old_wanted = old.replication(&self.0.sealer, &job, &self.defaults());
        let same = match (&wanted, old_wanted) {
            (Ok(wanted), Ok(Ok(old))) => *wanted == old && info.state != State::Finished,
            (Err(wanted), Ok(Err(_))) => wanted.to_string() == old.error_text(),
            _ => false,
        };
        if same && steer::is_paused(&info, &old) == new.paused {
            return Ok(());
        }
        if same {
            return self.set_paused_in(tx, op, &job, old, new.paused).await;
        }
        self.drop_job_in(tx, op, &job).await?;
        self.put_job_in(tx, op, &job, &new, owner).await
    }

    /// A job and its data.
    pub(crate) async fn job_in(
        &self,
        tx: &Transaction,
        job: &JobId,
    ) -> Result<Option<(JobInfo, JobData)>, ServiceError> {
        let found = self.0.jobs.get_in(tx, &self.0.ty, job).await?;
        let decode = |(info, data): (JobInfo, bytes::Bytes)| Ok((info, JobData::decode(&data)?));
        found.map(decode).transpose()
    }

    /// Adds a job that is not there. Jobs of different owners take turns.
    pub(crate) async fn put_job_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
        data: &JobData,
        owner: Option<&str>,
    ) -> Result<(), ServiceError> {
        let retention = if data.is_transient() {
            // The service removes it with all its rows in time; the queue does if there is no service.
            let age_s = self.options().transient_job_max_age_sec;
            Retention::Ms(age_s.saturating_add(3600).saturating_mul(1000))
        } else {
            Retention::Forever
        };
        let due_ms = if data.paused { PARKED_MS } else { 0 };
        let add = Add::new(job.clone(), data.encode())
            .due_ms(due_ms)
            .retention(retention)
            .lane(Lane::of(owner.unwrap_or_default().as_bytes()));
        self.seals_job_in(tx, data).await?;
        tx.set(&keys::active(data.rep_id.as_deref(), job), b"");
        self.0.jobs.add_in(tx, op, &self.0.ty, add).await?;
        Ok(())
    }

    /// Removes a job with all its rows; its data, if there was one.
    pub(crate) async fn drop_job_in(
        &self,
        tx: &Transaction,
        op: &Op,
        job: &JobId,
    ) -> Result<Option<JobData>, ServiceError> {
        let Some((info, data)) = self.job_in(tx, job).await? else {
            return Ok(None);
        };
        if info.state == State::Running {
            keys::ring(tx);
        }
        tx.clear(&keys::live(job));
        tx.clear(&keys::suspect(job));
        tx.clear(&keys::active(data.rep_id.as_deref(), job));
        if let Some(id) = &data.rep_id {
            tx.clear(&keys::duplicate(id, job));
            self.disown_in(tx, op, id, job).await?;
        }
        self.0.jobs.remove_in(tx, op, &self.0.ty, job).await?;
        Ok(Some(data))
    }

    /// The job whose run may copy for a replication id.
    pub(crate) async fn owner_in(
        &self,
        tx: &Transaction,
        replication_id: &str,
    ) -> Result<Option<JobId>, ServiceError> {
        let row = tx.get(&keys::owner(replication_id)).await?;
        Ok(row.map(JobId::new).transpose()?)
    }

    /// Gives a replication id up, if the job has it, and lets whoever waits for it try.
    pub(crate) async fn disown_in(
        &self,
        tx: &Transaction,
        op: &Op,
        replication_id: &str,
        job: &JobId,
    ) -> Result<(), ServiceError> {
        if self.owner_in(tx, replication_id).await?.as_ref() != Some(job) {
            return Ok(());
        }
        tx.clear(&keys::owner(replication_id));
        self.release_in(tx, op, replication_id).await
    }

    /// Runs the first of the jobs again that failed because the id was another's. The others go on waiting, for this one.
    pub(crate) async fn release_in(
        &self,
        tx: &Transaction,
        op: &Op,
        replication_id: &str,
    ) -> Result<(), ServiceError> {
        if witness::has(Bug::ReleasesNobody) {
            return Ok(());
        }
        let range = keys::duplicates(replication_id);
        let rows = tx
            .get_range(range, RangeOptions::limit(RELEASED_MAX))
            .collect();
        for row in rows.await? {
            tx.clear(&row.key);
            let job = keys::last_job(&row.key)?;
            let Some((info, mut data)) = self.job_in(tx, &job).await? else {
                continue;
            };
            if info.state != State::Finished || data.state != JobState::Failed {
                continue;
            }
            data.state = JobState::Pending;
            data.info = None;
            let now = op.now_ms.div_euclid(1000);
            data.last_updated = now;
            data.note(now, &[(Kind::Pending, None)], self.options().max_history);
            tx.set(&keys::active(data.rep_id.as_deref(), &job), b"");
            let (jobs, ty) = (&self.0.jobs, &self.0.ty);
            jobs.resubmit_in(tx, op, ty, &job, Some(0), Some(data.encode().into()))
                .await?;
            break;
        }
        Ok(())
    }
}

async fn service_uuid_in(
    tx: &Transaction,
    given: Option<&str>,
    drawn: &str,
) -> Result<String, ServiceError> {
    let stored = tx.get(&keys::service()).await?;
    let stored = stored.map(|row| String::from_utf8_lossy(&row).into_owned());
    let uuid = match (given, &stored) {
        (Some(given), _) => given,
        (None, Some(stored)) => stored,
        (None, None) => drawn,
    };
    if stored.as_deref() != Some(uuid) {
        tx.set(&keys::service(), uuid.as_bytes());
    }
    Ok(uuid.to_owned())
}

/// Makes jobs of documents, in the transaction that writes them.
#[derive(Debug)]
pub struct DocumentHook<'a> {
    of: &'a Replications,
    writer: Writer,
    op: Op,
}

impl DocumentHook<'_> {
    /// Two writes of one call are two operations on the queue.
    fn op(&self, db: &Db, doc: &str, rev: &str) -> Op {
        let mut hash = Md5::new();
        hash.update(db.instance().0);
        for text in [doc, rev] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        let bits = u128::from_be_bytes(hash.finalize().into());
        Op {
            bits: self.op.bits ^ bits,
            ..self.op
        }
    }
}

impl WriteHook for DocumentHook<'_> {
    type Error = ServiceError;

    fn watches(&self, _: &Db, id: &str) -> bool {
        !id.starts_with("_design/")
    }

    async fn changed(&self, tx: &Transaction, change: &Change<'_>) -> Result<(), ServiceError> {
        if let Some(before) = change.before.filter(|before| !before.deleted) {
            // The owner is never sealed.
            let body = Json::parse(&before.body)
                .map_err(|_| ServiceError::corrupt("a document cannot be decoded"))?;
            check_owner(data::text(&body, "owner").as_deref(), &self.writer)?;
        }
        self.of.seals_body_in(tx, &change.written.body).await?;
        if !change.winner_changed() {
            return Ok(());
        }
        let op = self.op(change.db, change.id, &change.written.rev.to_string());
        self.of.document_in(tx, &op, change.db, change.after).await
    }

    async fn dropped(&self, tx: &Transaction, db: &Db, id: &str) -> Result<(), ServiceError> {
        let job = document_job_id(db.instance(), id);
        let op = self.op(db, id, "");
        self.of.drop_job_in(tx, &op, &job).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests;
