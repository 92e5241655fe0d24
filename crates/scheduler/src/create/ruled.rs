//! Replications that rules ask for: a rule is a document about one database or many, each of which has a job of its own.

use docstore::{InstanceId, ReadOptions};
use document::json::Json;
use jobs::{JobId, Op};
use store::Transaction;

use super::owner::Rank;
use crate::data::{JobData, Origin, document_job_id};
use crate::fault::ServiceError;
use crate::service::Replications;
use replication::params::{Grant, Replication};

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
    /// Its parameters, as of a request.
    pub body: Json,
}

impl Ruled {
    pub(crate) fn job(&self) -> JobId {
        match &self.database {
            None => document_job_id(self.instance, &self.doc_id),
            Some(database) => {
                document_job_id(self.instance, &format!("{}|{database}", self.doc_id))
            }
        }
    }

    fn origin(&self) -> Origin {
        Origin::Rule {
            db: self.db.clone(),
            instance: self.instance.to_string(),
            doc_id: self.doc_id.clone(),
            rev: self.rev.clone(),
            database: self.database.clone(),
        }
    }
}

impl Replications {
    /// Creates the job of a rule, or one after the rule's new revision. Returns whether it did: a job of the same revision
    /// is left alone. Rules have the rights of server administrators, who alone may write them.
    pub async fn rule_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ruled: &Ruled,
    ) -> Result<bool, ServiceError> {
        let (job, origin) = (ruled.job(), ruled.origin());
        if let Some((_, data)) = self.job_in(tx, &job).await? {
            if data.origin == origin {
                return Ok(false);
            }
            self.drop_job_in(tx, op, &job).await?;
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
        self.put_job_in(tx, op, &job, &data, None).await?;
        Ok(true)
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

    /// Whether the rule of a job is still there in the same revision.
    pub(crate) async fn rule_holds_in(
        &self,
        tx: &Transaction,
        origin: &Origin,
    ) -> Result<bool, ServiceError> {
        let Origin::Rule {
            db,
            instance,
            doc_id,
            rev,
            ..
        } = origin
        else {
            return Ok(true);
        };
        let docs = &self.0.docs;
        let db = match docs.open_in(tx, &docs.name(db)?).await {
            Ok(db) if db.instance().to_string() == *instance => db,
            Ok(_) | Err(docstore::Error::NoDatabase) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match docs.get_in(tx, &db, doc_id, &ReadOptions::default()).await {
            Ok(document) => Ok(document.rev.to_string() == *rev),
            Err(docstore::Error::Missing | docstore::Error::Deleted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
