//! Writes documents: edits and replicated revisions.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use document::rev::{Rev, RevId, Revisions};
use document::revid;
use document::revtree::{Merged, Path};
use serde_json::Value;

use super::{Database, Document, Id, Local, State, Tree, Version};
use crate::attachment::{Attachment, Content, Rules, Sent};
use crate::functions::{Objection, UserContext, Validate};
use crate::refusal::Refusal;
use crate::render::{self, Shown};

/// A document to write.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) id: Id,
    /// The edited revision, or (replicated) the new revision with its history.
    pub(crate) revisions: Option<Revisions>,
    pub(crate) deleted: bool,
    pub(crate) body: String,
    pub(crate) attachments: Vec<Slot>,
}

/// An attachment of a document to write.
#[derive(Debug)]
pub(crate) enum Slot {
    /// The bytes are known.
    Stored(Attachment),
    /// A stub: the attachment of an earlier revision, if it has this generation.
    Stub { name: String, revpos: Option<Value> },
}

/// A validation function of a design document.
#[derive(Clone)]
pub(super) struct Validation(Arc<Validate>);

impl fmt::Debug for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Validation")
    }
}

impl Incoming {
    pub(crate) fn rev(&self) -> Option<Rev> {
        self.revisions.as_ref().and_then(Revisions::rev)
    }
}

impl Slot {
    /// Compresses and hashes the attachments before any lock is taken. `edited` is the generation of the edited revision,
    /// if this is an edit.
    pub(crate) fn store(
        sent: &[Sent],
        edited: Option<u64>,
        rules: &Rules,
    ) -> Result<Vec<Self>, Refusal> {
        let mut slots: Vec<Self> = Vec::with_capacity(sent.len());
        for sent in sent {
            let slot = match &sent.content {
                Content::Stub => Self::Stub {
                    name: sent.name.clone(),
                    revpos: sent.revpos.clone(),
                },
                Content::Follows => {
                    return Err(Refusal::bad_request("attachment shorter than expected"));
                }
                Content::Here(data) => {
                    // An edit creates the attachment; a replicated one has its generation already.
                    let revpos = match edited {
                        Some(generation) => Value::from(generation + 1),
                        None => sent.revpos.clone().unwrap_or(Value::from(0)),
                    };
                    Self::Stored(sent.store(data.clone(), revpos, rules)?)
                }
            };
            if slots.iter().any(|other| other.name() == slot.name()) {
                return Err(Refusal::bad_request("Duplicate attachments"));
            }
            slots.push(slot);
        }
        Ok(slots)
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Stored(attachment) => &attachment.name,
            Self::Stub { name, .. } => name,
        }
    }
}

impl Database {
    /// Edits documents (`new_edits=true`), each of which must extend a leaf. The list has the result of each document.
    ///
    /// # Errors
    /// A stub names an attachment that does not exist: nothing is written.
    pub(crate) fn edit(
        &self,
        edits: Vec<Incoming>,
        user: &UserContext,
    ) -> Result<Vec<Result<Rev, Refusal>>, Refusal> {
        let mut state = self.write();
        let mut resolved = Vec::with_capacity(edits.len());
        for edit in edits {
            let base = edit.rev();
            let attachments = state.resolve(&edit, base.as_slice())?;
            resolved.push((edit, base, attachments));
        }
        let before = state.seq;
        let written = (resolved.into_iter())
            .map(|(edit, base, attachments)| {
                state.edit_one(self, edit, base.as_ref(), attachments, user)
            })
            .collect();
        self.finish(&state, before);
        Ok(written)
    }

    /// Adds revisions with their histories (`new_edits=false`). Returns the refused documents.
    ///
    /// # Errors
    /// A stub names an attachment that does not exist, or a document has no revision: nothing is written.
    pub(crate) fn replicate(
        &self,
        docs: Vec<Incoming>,
        user: &UserContext,
    ) -> Result<Vec<(Id, Rev, Refusal)>, Refusal> {
        let mut state = self.write();
        let mut resolved = Vec::with_capacity(docs.len());
        for doc in docs {
            let Some(rev) = doc.rev() else {
                let reason =
                    "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
                return Err(Refusal::bad_request(reason));
            };
            if state
                .docs
                .get(&doc.id)
                .is_some_and(|known| known.tree.get(&rev).is_some())
            {
                continue;
            }
            let attachments = state.resolve(&doc, &ancestors(&doc))?;
            resolved.push((doc, rev, attachments));
        }
        let before = state.seq;
        let mut refused = Vec::new();
        for (doc, rev, attachments) in resolved {
            let id = Arc::clone(&doc.id);
            if let Err(refusal) = state.replicate_one(self, doc, &rev, attachments, user) {
                refused.push((id, rev, refusal));
            }
        }
        self.finish(&state, before);
        Ok(refused)
    }

    fn finish(&self, state: &State, before: u64) {
        if state.seq > before {
            self.announce(state.seq);
        }
    }
}

fn ancestors(doc: &Incoming) -> Vec<Rev> {
    let Some(Revisions { start, ids }) = &doc.revisions else {
        return Vec::new();
    };
    let generations = (0..*start).rev();
    ids.iter()
        .skip(1)
        .zip(generations)
        .map(|(id, generation)| Rev {
            generation,
            id: id.clone(),
        })
        .collect()
}

impl State {
    /// Replaces stubs by the attachments of the first of the revisions that exists.
    fn resolve(&self, doc: &Incoming, revs: &[Rev]) -> Result<Vec<Attachment>, Refusal> {
        let earlier = if doc
            .attachments
            .iter()
            .any(|slot| matches!(slot, Slot::Stub { .. }))
        {
            self.nearest(&doc.id, revs.iter())
        } else {
            None
        };
        let resolve = |slot: &Slot| match slot {
            Slot::Stored(attachment) => Ok(attachment.clone()),
            Slot::Stub { name, revpos } => {
                let mut attachments = earlier.iter().flat_map(|version| &version.attachments);
                let found = attachments.find(|attachment| {
                    *attachment.name == **name
                        && (revpos.as_ref()).is_none_or(|revpos| *revpos == attachment.revpos)
                });
                found
                    .cloned()
                    .ok_or_else(|| Refusal::missing_stub(&doc.id, name))
            }
        };
        doc.attachments.iter().map(resolve).collect()
    }

    fn edit_one(
        &mut self,
        db: &Database,
        edit: Incoming,
        base: Option<&Rev>,
        attachments: Vec<Attachment>,
        user: &UserContext,
    ) -> Result<Rev, Refusal> {
        if edit.id.starts_with("_local/") {
            return self.write_local(edit, base);
        }
        let document = self.docs.get(&edit.id);
        let parent = match document {
            Some(document) => document.tree.edit(base, edit.deleted)?,
            None => Tree::new().edit(base, edit.deleted)?,
        };
        let signed = attachments.iter().map(|attachment| revid::Attachment {
            name: &attachment.name,
            content_type: &attachment.content_type,
            md5: attachment.md5,
        });
        let rev = revid::new_rev(parent.as_ref(), edit.deleted, &edit.body, signed);
        let mut revisions = Revisions::from(rev.clone());
        if let Some((parent, document)) = parent.zip(document) {
            revisions.ids.extend(
                document
                    .tree
                    .revisions(&parent)
                    .into_iter()
                    .flat_map(|known| known.ids),
            );
        }
        self.put(db, edit, revisions, attachments, user)?;
        Ok(rev)
    }

    fn replicate_one(
        &mut self,
        db: &Database,
        doc: Incoming,
        rev: &Rev,
        attachments: Vec<Attachment>,
        user: &UserContext,
    ) -> Result<(), Refusal> {
        if doc.id.starts_with("_local/") {
            return self.write_local(doc, Some(rev)).map(drop);
        }
        let revisions = doc.revisions.clone().unwrap_or_else(|| rev.clone().into());
        self.put(db, doc, revisions, attachments, user)
    }

    fn put(
        &mut self,
        db: &Database,
        doc: Incoming,
        revisions: Revisions,
        attachments: Vec<Attachment>,
        user: &UserContext,
    ) -> Result<(), Refusal> {
        let version = Version {
            body: doc.body.into(),
            attachments,
        };
        let rev = revisions
            .rev()
            .expect("the caller made or found a revision");
        self.permit(&doc.id, &rev, doc.deleted, &version, user)?;
        let bytes = version.body.len()
            + version
                .attachments
                .iter()
                .map(|part| part.data.len())
                .sum::<usize>();
        let document = self.docs.entry(Arc::clone(&doc.id)).or_default();
        let was_deleted = document.tree.is_deleted();
        let path = Path {
            revisions,
            deleted: doc.deleted,
            value: Arc::new(version),
        };
        if document.tree.merge(path) == Merged::Known {
            return Ok(());
        }
        document.tree.stem(self.revs_limit);
        self.bytes += bytes as u64;
        self.seq += 1;
        let before = std::mem::replace(&mut document.seq, self.seq);
        match (was_deleted, document.tree.is_deleted()) {
            (false, true) => self.deleted_docs += 1,
            (true, false) => self.deleted_docs -= 1,
            _ => {}
        }
        self.by_seq.remove(&before);
        self.by_seq.insert(self.seq, Arc::clone(&doc.id));
        if doc.id.starts_with("_design/") {
            self.load_validations(db);
        }
        Ok(())
    }

    /// Checks that the user may write this: design documents are for administrators, and validation functions may object.
    fn permit(
        &self,
        id: &str,
        rev: &Rev,
        deleted: bool,
        version: &Version,
        user: &UserContext,
    ) -> Result<(), Refusal> {
        if id.starts_with("_design/") {
            return self.security.check_admin(user);
        }
        if self.validations.is_empty() {
            return Ok(());
        }
        let mut json = Vec::new();
        render::document(&mut json, id, rev, deleted, version, &Shown::default());
        let value: Value = serde_json::from_slice(&json).unwrap_or_default();
        for Validation(validate) in &self.validations {
            validate(&value, user).map_err(|objection| match objection {
                Objection::Forbidden(reason) => Refusal::forbidden(reason),
                Objection::Unauthorized(reason) => Refusal::unauthorized(reason),
            })?;
        }
        Ok(())
    }

    fn load_validations(&mut self, db: &Database) {
        let designs = self
            .docs
            .range::<str, _>((Bound::Included("_design/"), Bound::Excluded("_design0")));
        let validation = |(_, document): (&Id, &Document)| {
            let winner = document.winner();
            let version = winner.value.filter(|_| !winner.deleted)?;
            let design: Value = serde_json::from_str(&version.body).ok()?;
            db.functions
                .find_validation(design.get("validate_doc_update")?.as_str()?)
                .map(Validation)
        };
        self.validations = designs.filter_map(validation).collect();
    }

    /// `_local` documents have a counter instead of a revision, and the last write wins.
    fn write_local(&mut self, edit: Incoming, base: Option<&Rev>) -> Result<Rev, Refusal> {
        let counter = |rev: &Rev| match &rev.id {
            RevId::Text(text) if rev.generation == 0 => text.parse::<u64>().ok(),
            _ => None,
        };
        let generation = match base {
            _ if edit.deleted => 0,
            None => 1,
            Some(base) => {
                counter(base).ok_or_else(|| Refusal::bad_request("Invalid rev format"))? + 1
            }
        };
        if edit.deleted {
            self.locals.remove(&edit.id);
        } else {
            self.locals.insert(
                edit.id,
                Local {
                    generation,
                    body: edit.body.into(),
                },
            );
        }
        Ok(local_rev(generation))
    }
}

/// `0-1`, `0-2` and so on.
pub(crate) fn local_rev(generation: u64) -> Rev {
    Rev {
        generation: 0,
        id: RevId::Text(generation.to_string().into()),
    }
}
