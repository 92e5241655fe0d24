//! The write hook: creates jobs in the transaction that writes their documents.

use std::collections::HashMap;

use docstore::{Change, Db, Document, Edit, WriteHook};
use document::json::Json;
use document::offload::offload;
use jobs::{Op, State};
use md5::{Digest as _, Md5};
use store::Transaction;

use super::control::is_paused;
use super::meaning::Meaning;
use super::owner::{Writer, check_owner};
use crate::data::{self, JobData, Origin, document_job_id};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::strip;
use crate::testing::{self, Bug};

/// A member's branch would bring the document back when an administrator deletes it.
const CONFLICT: &str =
    "Only an administrator may add a conflicting revision; update the current one.";

impl Replications {
    /// The hook for writes by `writer`. One hook serves one call of the document store.
    pub fn hook(&self, writer: Writer) -> DocumentHook<'_> {
        DocumentHook {
            replications: self,
            writer,
            op: self.0.jobs.op(),
            known: HashMap::new(),
        }
    }

    /// A hook for the replicator's own writes that should change jobs.
    pub(crate) fn replicators_hook(&self, op: Op) -> DocumentHook<'_> {
        DocumentHook {
            op,
            ..self.hook(Writer::Replicator)
        }
    }

    /// Updates the job of a document to its winning revision. `known` is the revision's parsed body, if there is one.
    pub(crate) async fn document_in(
        &self,
        tx: &Transaction,
        op: &Op,
        db: &Db,
        doc: &Document,
        known: Option<&Meaning>,
    ) -> Result<(), ServiceError> {
        let job = document_job_id(db.instance(), &doc.id);
        if doc.deleted && !testing::has(Bug::DeletedKeepsJob) {
            return self.drop_job_in(tx, op, &job).await.map(|_| ());
        }
        let read;
        let meaning = if let Some(known) = known {
            known
        } else {
            read = self.meaning(db, doc).await?;
            &read
        };
        let (body, wanted) = (&meaning.body, &meaning.wanted);
        let state = body.get("_replication_state").and_then(Json::as_str);
        if matches!(state, Some("completed" | "failed")) {
            return Ok(());
        }
        let new = JobData::new(
            &self.0.sealer,
            &job,
            Origin::document(db, &doc.id),
            (body, meaning.grant.as_ref()),
            wanted.as_ref(),
            op.now_ms,
        );
        let Some((info, old)) = self.job_in(tx, &job).await? else {
            return self.put_job_in(tx, op, &job, &new).await;
        };
        let old_wanted = old.replication(&self.0.sealer, &job, &self.defaults());
        let same = match (wanted, old_wanted) {
            (Ok(wanted), Ok(Ok(old))) => *wanted == old && info.state != State::Finished,
            (Err(wanted), Ok(Err(_))) => wanted.to_string() == old.error_text(),
            _ => false,
        };
        if same && is_paused(&info, &old) == new.paused {
            return Ok(());
        }
        if same {
            return self.set_paused_in(tx, op, &job, old, new.paused).await;
        }
        self.drop_job_in(tx, op, &job).await?;
        self.put_job_in(tx, op, &job, &new).await
    }
}

/// Creates jobs in the transaction that writes their documents.
#[derive(Debug)]
pub struct DocumentHook<'a> {
    replications: &'a Replications,
    writer: Writer,
    op: Op,
    /// Parsed bodies by document id, each next to its stored text.
    known: HashMap<&'a str, Vec<(&'a str, &'a Meaning)>>,
}

impl<'a> DocumentHook<'a> {
    /// Saves the transaction from parsing the bodies of these edits again.
    #[must_use]
    pub fn knowing(mut self, edits: &'a [Edit], meanings: &'a [Option<Meaning>]) -> Self {
        for (edit, meaning) in edits.iter().zip(meanings) {
            if let Some(meaning) = meaning {
                let stored = edit.sealed.as_deref().unwrap_or(&edit.body);
                self.known
                    .entry(&edit.id)
                    .or_default()
                    .push((stored, meaning));
            }
        }
        self
    }

    /// Compares bodies, because the new revisions are not known yet.
    fn meaning(&self, document: &Document) -> Option<&'a Meaning> {
        let known = self.known.get(document.id.as_str())?;
        let same = known.iter().find(|(stored, _)| *stored == document.body);
        same.map(|(_, meaning)| *meaning)
    }

    /// Each write of a call is its own operation on the queue.
    pub(super) fn op(&self, db: &Db, doc: &str, rev: &str) -> Op {
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

    async fn check_owner(&self, before: Option<&Document>) -> Result<(), ServiceError> {
        let Some(before) = before.filter(|before| !before.deleted && self.writer.is_member())
        else {
            return Ok(());
        };
        let body = before.body.clone();
        // The owner is never sealed.
        let read = move || Json::parse(&body).map(|body| data::text(&body, "owner"));
        let owner = offload(before.body.len(), read).await;
        let owner = owner.map_err(|_| ServiceError::corrupt("a document cannot be decoded"))?;
        check_owner(owner.as_deref(), &self.writer)
    }
}

impl WriteHook for DocumentHook<'_> {
    type Error = ServiceError;

    fn watches(&self, _: &Db, id: &str) -> bool {
        !id.starts_with("_design/")
    }

    async fn changed(&self, tx: &Transaction, change: &Change<'_>) -> Result<(), ServiceError> {
        self.check_owner(change.before).await?;
        if change.adds_conflict && self.writer.is_member() {
            return Err(ServiceError::Forbidden(CONFLICT));
        }
        let replications = self.replications;
        let stored = &change.written.body;
        match self.meaning(change.written) {
            // Sealed by this process.
            Some(_) if strip::is_sealed(stored) => {
                (replications.seals_in(tx, replications.sealer().newest())).await?;
            }
            Some(_) => {}
            None => replications.seals_body_in(tx, stored).await?,
        }
        if !change.winner_changed() {
            return Ok(());
        }
        let op = self.op(change.db, change.id, &change.written.rev.to_string());
        let after = self.meaning(change.after);
        (replications.document_in(tx, &op, change.db, change.after, after)).await
    }

    async fn dropped(&self, tx: &Transaction, db: &Db, id: &str) -> Result<(), ServiceError> {
        let job = document_job_id(db.instance(), id);
        let op = self.op(db, id, "");
        self.replications
            .drop_job_in(tx, &op, &job)
            .await
            .map(|_| ())
    }
}
