//! Where a job comes from.

use docstore::Db;
use jobs::Tenant;
use serde::{Deserialize, Serialize};

use super::remote::Remote;
use super::{JobData, hash};

/// Who has the shares of jobs without an owner.
const DEFAULT_TENANT: &str = "_replicator";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    Document {
        db: String,
        instance: String,
        doc_id: String,
    },
    Request {
        user: Option<String>,
    },
    /// A rule, a document about one or many databases.
    Rule {
        db: String,
        instance: String,
        doc_id: String,
        rev: String,
        /// The database it is about, if there are many.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        database: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<Box<Remote>>,
    },
}

impl Origin {
    pub(crate) fn document(db: &Db, doc_id: &str) -> Self {
        Self::Document {
            db: db.name().as_str().to_owned(),
            instance: db.instance().to_string(),
            doc_id: doc_id.to_owned(),
        }
    }
}

impl JobData {
    /// The remote that asked for it, if one did.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        match &self.origin {
            Origin::Rule { remote, .. } => remote.as_deref(),
            Origin::Document { .. } | Origin::Request { .. } => None,
        }
    }

    /// Whose share its runs use: that of the database of its document, of the user who asked for it, or of its remote.
    pub(crate) fn tenant(&self) -> Tenant {
        let name: &str = match &self.origin {
            Origin::Document { db, .. } => db,
            Origin::Request { user } => user.as_deref().unwrap_or(DEFAULT_TENANT),
            Origin::Rule { db, remote, .. } => remote.as_ref().map_or(db, |remote| &remote.name),
        };
        tenant_named(name)
    }
}

/// A name that is too long, or empty, is replaced by its hash.
pub(crate) fn tenant_named(name: &str) -> Tenant {
    let tenant = Tenant::try_from(name).or_else(|_| Tenant::new(hash(name)));
    tenant.expect("a hash is a short name")
}
