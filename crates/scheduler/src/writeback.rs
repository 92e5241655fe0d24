//! Writes final states into documents: whether a replication completed or failed, and nothing earlier.

use docstore::{Db, Document, Edit, EditMode, NewAttachment, NoHook, ReadOptions, Revisions};
use document::json::Json;
use jobs::Op;
use serde_json::{Map, Value};
use store::{AsStoreError, Transaction};

use crate::data::{self, Origin};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::strip;
use replication::params::Grant;

const STATE: &str = "_replication_state";
const TIME: &str = "_replication_state_time";
const REASON: &str = "_replication_state_reason";
const ID: &str = "_replication_id";
const STATS: &str = "_replication_stats";

/// The state to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Patch {
    /// None: the replication has started.
    Started,
    /// It has completed.
    Completed {
        stats: Map<String, Value>,
        start_time: i64,
    },
    /// It has failed.
    Failed { reason: String },
}

/// The document of a job.
pub(crate) struct Read {
    pub(crate) db: Db,
    pub(crate) doc: Document,
    /// The body as sent.
    pub(crate) body: Json,
    /// The credentials added to its plain names.
    pub(crate) grant: Option<Grant>,
}

/// The document of a job, if it still exists.
pub(crate) async fn read_in(
    replications: &Replications,
    tx: &Transaction,
    origin: &Origin,
) -> Result<Option<Read>, ServiceError> {
    let Origin::Document {
        db: name,
        instance,
        doc_id,
    } = origin
    else {
        return Ok(None);
    };
    let docs = &replications.0.docs;
    let name = docs.name(name)?;
    let db = match docs.open_in(tx, &name).await {
        Ok(db) if db.instance().to_string() == *instance => db,
        Ok(_) | Err(docstore::Error::NoDatabase) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let doc = match docs.get_in(tx, &db, doc_id, &ReadOptions::default()).await {
        Ok(doc) => doc,
        Err(docstore::Error::Missing | docstore::Error::Deleted) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (body, grant) = replications
        .open_body(&db, &doc, |body, grant| (body, grant))
        .await?;
    Ok(Some(Read {
        db,
        doc,
        body,
        grant,
    }))
}

/// The edit that adds these members to a document.
pub(crate) fn edit(replications: &Replications, read: Read, members: Vec<(String, Json)>) -> Edit {
    let Read { db, doc, grant, .. } = read;
    let body = Json::Object(members);
    let stub = |attachment: docstore::Attachment| NewAttachment {
        name: attachment.name,
        revpos: Some(attachment.revpos),
        content: None,
    };
    Edit {
        sealed: strip::seal_body(&replications.0.sealer, &db, &doc.id, &body, grant.as_ref()),
        id: doc.id,
        revisions: Some(Revisions::from(doc.rev)),
        deleted: false,
        body: body.to_string(),
        attachments: doc.attachments.into_iter().map(stub).collect(),
    }
}

/// Writes the outcome of a run into its document, in the transaction that ends the job. It does not call the hook: the
/// result is the job's own, and must not create, replace or resume a job.
pub(crate) async fn write_in(
    replications: &Replications,
    tx: &Transaction,
    op: &Op,
    origin: &Origin,
    patch: &Patch,
) -> Result<(), ServiceError> {
    let Some((db, edit)) = edit_in(replications, tx, op, origin, patch).await? else {
        return Ok(());
    };
    let docs = &replications.0.docs;
    match docs
        .put_in(tx, &db, &edit, EditMode::NewEdits, &NoHook)
        .await
    {
        Ok(_) => {
            let stored = edit.sealed.as_ref().unwrap_or(&edit.body);
            replications.seals_body_in(tx, stored).await
        }
        Err(error) if error.as_store_error().is_some() => Err(error.into()),
        Err(error) => {
            tracing::warn!(db = %db.name(), doc.id = %edit.id, error = %error, "cannot write the state of a replication");
            Ok(())
        }
    }
}

/// The edit for this state; `None` if the document already has it, or does not exist.
pub(crate) async fn edit_in(
    replications: &Replications,
    tx: &Transaction,
    op: &Op,
    origin: &Origin,
    patch: &Patch,
) -> Result<Option<(Db, Edit)>, ServiceError> {
    let Some(read) = read_in(replications, tx, origin).await? else {
        return Ok(None);
    };
    let before = read.body.as_object().unwrap_or_default();
    let after = patched(before, patch, op.now_ms.div_euclid(1000));
    if after == before {
        return Ok(None);
    }
    Ok(Some((read.db.clone(), edit(replications, read, after))))
}

fn patched(before: &[(String, Json)], patch: &Patch, now: i64) -> Vec<(String, Json)> {
    let old = |name: &str| before.iter().find(|(member, _)| member == name);
    let mut after: Vec<_> = (before.iter())
        .filter(|(name, _)| ![STATE, TIME, REASON, ID, STATS].contains(&name.as_str()))
        .cloned()
        .collect();
    let mut put = |name: &str, value: Json| after.push((name.to_owned(), value));
    let text = |text: &str| Json::String(text.to_owned());
    let mut put_state = |state: &str| {
        put(STATE, text(state));
        let unchanged = old(STATE).and_then(|(_, value)| value.as_str()) == Some(state);
        let time = old(TIME)
            .filter(|_| unchanged)
            .map(|(_, time)| time.clone());
        put(TIME, time.unwrap_or_else(|| text(&data::iso(now))));
    };
    match patch {
        Patch::Started => {}
        Patch::Completed { stats, start_time } => {
            put_state("completed");
            let mut stats = stats.clone();
            stats.insert("start_time".to_owned(), data::iso(*start_time).into());
            put(STATS, Json::from(&Value::Object(stats)));
        }
        Patch::Failed { reason } => {
            put_state("failed");
            put(REASON, text(reason));
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn after(before: &str, patch: &Patch) -> String {
        let before = Json::parse(before).unwrap();
        let members = patched(before.as_object().unwrap(), patch, 1_709_208_000);
        Json::Object(members).to_string()
    }

    #[test]
    fn documents_show_the_final_state() {
        let stats = json!({"docs_read": 1}).as_object().unwrap().clone();
        let completed = Patch::Completed {
            stats,
            start_time: 0,
        };
        let failed = Patch::Failed {
            reason: "no: way".to_owned(),
        };
        let bogus = r#"{"source":1,"_replication_state":"triggered","_replication_state_reason":"x","_replication_id":"y","n":1.0}"#;
        assert_eq!(after(bogus, &Patch::Started), r#"{"source":1,"n":1.0}"#);
        let done = after(bogus, &completed);
        assert_eq!(
            done,
            r#"{"source":1,"n":1.0,"_replication_state":"completed","_replication_state_time":"2024-02-29T12:00:00Z","_replication_stats":{"docs_read":1,"start_time":"1970-01-01T00:00:00Z"}}"#
        );
        assert_eq!(
            after(&done, &failed),
            r#"{"source":1,"n":1.0,"_replication_state":"failed","_replication_state_time":"2024-02-29T12:00:00Z","_replication_state_reason":"no: way"}"#
        );
        let again = done.replace("2024", "2023");
        assert_eq!(after(&again, &completed), again);
    }
}
