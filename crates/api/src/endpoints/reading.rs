//! Documents as a caller may see them.

use std::sync::Arc;

use docstore::{Attachments, Db, DocStore, Document, ReadOptions, Rev};
use document::json::Json;
use scheduler::strip::{self, Reader};

use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::query::Query;
use crate::state::Shared;

/// A database with the access rights of a caller.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    shared: Arc<Shared>,
    opened: Opened,
    name: Option<Arc<str>>,
}

impl Reading {
    pub(crate) fn new(call: &Call, opened: &Opened) -> Self {
        Self {
            shared: Arc::clone(&call.shared),
            opened: opened.clone(),
            name: call.caller().name.as_deref().map(Arc::from),
        }
    }

    pub(crate) fn db(&self) -> &Db {
        &self.opened.db
    }

    pub(crate) fn docs(&self) -> &DocStore {
        self.shared.docs()
    }

    /// Hides what the caller may not see. Every document read from the store passes here before it is sent.
    pub(crate) fn view(&self, stored: Document) -> Document {
        if self.opened.has_users() {
            return stored;
        }
        let reader = Reader {
            name: self.name.as_deref(),
            is_admin: self.opened.is_admin,
        };
        let sealer = self.shared.replications.sealer();
        // Only sealed values can be unreadable.
        let kept = stored.body.contains("\"_sealed\"").then(|| stored.clone());
        let id = stored.id.clone();
        let shown = strip::for_reader(sealer, self.db(), stored, reader);
        shown.unwrap_or_else(|error| {
            tracing::error!(db = %self.db().name(), doc = id, %error, "credentials cannot be read");
            let outsider = Reader {
                name: None,
                is_admin: false,
            };
            let bare = kept.map(|kept| strip::for_reader(sealer, self.db(), kept, outsider));
            bare.and_then(Result::ok).unwrap_or_else(|| nothing(id))
        })
    }
}

/// Shown in place of a document that cannot be shown.
fn nothing(id: String) -> Document {
    Document {
        id,
        rev: "0-0".parse().expect("it is a revision"),
        deleted: false,
        body: "{}".to_owned(),
        attachments: Vec::new(),
        meta: docstore::Meta::default(),
    }
}

/// Query parameters common to reads.
pub(crate) fn options(query: &Query) -> Result<ReadOptions, Error> {
    let meta = query.is_true("meta");
    Ok(ReadOptions {
        revs: query.is_true("revs"),
        revs_info: meta || query.is_true("revs_info"),
        conflicts: meta || query.is_true("conflicts"),
        deleted_conflicts: meta || query.is_true("deleted_conflicts"),
        local_seq: query.is_true("local_seq"),
        attachments: match query.json("atts_since")? {
            Some(revs) => Attachments::Since(revs_of(&revs)?),
            None if query.is_true("attachments") => Attachments::All,
            None => Attachments::Stubs,
        },
    })
}

pub(crate) fn revs_of(json: &Json) -> Result<Vec<Rev>, Error> {
    let invalid = || Error::bad_request("Invalid list of revisions");
    let list = json.as_array().ok_or_else(invalid)?;
    list.iter()
        .map(|rev| parse_rev(rev.as_str().ok_or_else(invalid)?))
        .collect()
}

pub(crate) fn parse_rev(text: &str) -> Result<Rev, Error> {
    text.parse()
        .map_err(|_| Error::bad_request("Invalid rev format"))
}
