//! Writing documents for a caller: validation, owners, sealing, and job creation.

use std::sync::Arc;

use docstore::{Edit, EditMode, Rev};
use document::doc::Doc;
use document::json::{self, Json};
use document::offload::offload;
use replication::params::Grant;
use scheduler::{Prepared, Rank, ServiceError, Writer};
use tokio::task::coop::consume_budget;

use super::local;
use super::users::{self, UserHook};
use crate::Error;
use crate::access::{self, Opened};
use crate::call::{Call, Weighed};
use crate::state::Shared;

pub(crate) struct Writing<'a> {
    shared: Arc<Shared>,
    opened: &'a Opened,
    writer: Writer,
    /// How plain names resolve for the writer.
    grant: Option<Grant>,
}

impl<'a> Writing<'a> {
    pub(crate) fn new(call: &Call, opened: &'a Opened) -> Self {
        let rank = if call.caller().is_admin() {
            Rank::ServerAdmin
        } else if opened.is_admin {
            Rank::DatabaseAdmin
        } else {
            Rank::Member
        };
        Self {
            shared: Arc::clone(&call.shared),
            opened,
            writer: Writer::User {
                name: call.caller().name.clone(),
                rank,
            },
            grant: local::grant(call),
        }
    }

    /// Returns the new revision.
    pub(crate) async fn put(&self, edit: Edit, mode: EditMode) -> Result<Rev, Error> {
        if self.opened.has_users() && !self.opened.is_admin && mode == EditMode::Replicated {
            let reason = "Only _admin may write with `new_edits=false` in `_users`.";
            return Err(Error::forbidden(reason));
        }
        let Prepared { edit, meaning } = self.prepare(edit).await?;
        let (docs, db) = (self.shared.docs(), &self.opened.db);
        if self.opened.has_users() {
            let hook = UserHook {
                is_admin: self.opened.is_admin,
            };
            return docs.put(db, &edit, mode, &hook).await;
        }
        if self.opened.has_rules() {
            let hook = self.shared.rules.hook();
            return Ok(Box::pin(docs.put(db, &edit, mode, &hook)).await?);
        }
        let (edits, meanings) = ([edit], [meaning]);
        let hook = self.shared.replications.hook(self.writer.clone());
        let hook = hook.knowing(&edits, &meanings);
        Ok(Box::pin(docs.put(db, &edits[0], mode, &hook)).await?)
    }

    /// Deletes a document; fails if it does not exist.
    pub(crate) async fn delete(&self, id: &str, rev: Option<&Rev>) -> Result<Rev, Error> {
        self.check_id(id)?;
        let (docs, db) = (self.shared.docs(), &self.opened.db);
        if self.opened.has_users() {
            let hook = UserHook {
                is_admin: self.opened.is_admin,
            };
            return docs.delete(db, id, rev, &hook).await;
        }
        if self.opened.has_rules() {
            let hook = self.shared.rules.hook();
            return Ok(Box::pin(docs.delete(db, id, rev, &hook)).await?);
        }
        let hook = self.shared.replications.hook(self.writer.clone());
        Ok(Box::pin(docs.delete(db, id, rev, &hook)).await?)
    }

    /// Writes documents independently; the results are in order.
    pub(crate) async fn bulk(
        &self,
        edits: Vec<Edit>,
        mode: EditMode,
    ) -> Result<Vec<Result<Rev, Error>>, Error> {
        let mut answers = Vec::with_capacity(edits.len());
        let (mut accepted, mut meanings) = (Vec::new(), Vec::new());
        for edit in edits {
            // There may be many, each large.
            consume_budget().await;
            match self.prepare(edit).await {
                Ok(Prepared { edit, meaning }) => {
                    answers.push(None);
                    accepted.push(edit);
                    meanings.push(meaning);
                }
                Err(error) => answers.push(Some(error)),
            }
        }
        let (docs, db) = (self.shared.docs(), &self.opened.db);
        let written: Vec<Result<Rev, Error>> = if self.opened.has_users() {
            let hook = UserHook {
                is_admin: self.opened.is_admin,
            };
            docs.bulk_docs(db, &accepted, mode, &hook).await?
        } else {
            let written: Vec<Result<Rev, ServiceError>> = if self.opened.has_rules() {
                let hook = self.shared.rules.hook();
                docs.bulk_docs(db, &accepted, mode, &hook).await?
            } else {
                let hook = self.shared.replications.hook(self.writer.clone());
                let hook = hook.knowing(&accepted, &meanings);
                Box::pin(docs.bulk_docs(db, &accepted, mode, &hook)).await?
            };
            let written = written.into_iter();
            written.map(|answer| answer.map_err(Error::from)).collect()
        };
        let mut written = written.into_iter();
        let answers = answers.into_iter().map(|refused| match refused {
            Some(error) => Err(error),
            None => written.next().expect("one answer to one edit"),
        });
        Ok(answers.collect())
    }

    /// Validates and completes an edit before the transaction.
    async fn prepare(&self, edit: Edit) -> Result<Prepared, Error> {
        let bytes = edit.body.len();
        self.check_id(&edit.id)?;
        if self.opened.has_users() && !edit.id.starts_with("_design/") {
            let edit = users::prepare(&self.shared, edit).await?;
            return Ok(Prepared {
                edit,
                meaning: None,
            });
        }
        if self.opened.has_rules() {
            let (rules, db) = (self.shared.rules.clone(), self.opened.db.clone());
            let prepare = move || rules.prepare(&db, edit);
            let edit = offload(bytes, prepare).await;
            return Ok(Prepared {
                edit: edit.map_err(|invalid| Error::forbidden(invalid.to_string()))?,
                meaning: None,
            });
        }
        let (replications, db) = (self.shared.replications.clone(), self.opened.db.clone());
        let (writer, grant) = (self.writer.clone(), self.grant.clone());
        offload(bytes, move || {
            if edit.id.starts_with("_design/") && !edit.deleted {
                check_design(&edit)?;
            }
            Ok(replications.prepare_granted(&db, edit, &writer, grant.as_ref())?)
        })
        .await
    }

    /// Documents in `_bulk_docs` that only administrators may write are refused one by one.
    fn check_id(&self, id: &str) -> Result<(), Error> {
        if id.starts_with("_design/") && !self.opened.is_admin {
            return Err(Error::unauthorized(access::NO_DB_ADMIN));
        }
        Ok(())
    }
}

/// A validation function that is not run would give false security.
fn check_design(edit: &Edit) -> Result<(), Error> {
    let body = Json::parse(&edit.body)?;
    if body.get("validate_doc_update").is_some() {
        return Err(Error::forbidden(
            "Design documents with `validate_doc_update` are refused: functions are not run here. \
             Use `_security` to say who may write.",
        ));
    }
    Ok(())
}

/// Rejects documents with too many values.
pub(crate) fn check_values(values: usize) -> Result<(), Error> {
    if values > json::VALUES_MAX {
        return Err(json::Error::TooManyValues.into());
    }
    Ok(())
}

/// The document in a request body; `id` overrides its id.
pub(crate) fn edit(
    id: Option<&str>,
    body: &Weighed,
    new_id: impl FnOnce() -> String,
) -> Result<Edit, Error> {
    check_values(body.values)?;
    read_edit(id, &body.text, new_id)
}

/// A document in a text; `id` overrides its id.
pub(crate) fn read_edit(
    id: Option<&str>,
    text: &str,
    new_id: impl FnOnce() -> String,
) -> Result<Edit, Error> {
    let doc = Doc::parse(text)?;
    let id = match (id, &doc.id) {
        (Some(id), _) => id.to_owned(),
        (None, Some(id)) => id.clone(),
        (None, None) => new_id(),
    };
    document::doc::check_id(&id, None)?;
    Ok(Edit::new(id, doc)?)
}
