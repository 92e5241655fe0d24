//! The parsed body of a document. If a client sent it, it is parsed before the transaction that writes it.

use docstore::{Db, Document, Edit};
use document::json::Json;

use crate::fault::ServiceError;
use crate::service::Replications;
use replication::params::{Grant, Invalid, Replication};

/// A body and the replication that it describes.
#[derive(Debug)]
pub struct Meaning {
    /// The body as sent.
    pub(crate) body: Json,
    /// The credentials added to its plain names.
    pub(crate) grant: Option<Grant>,
    pub(super) wanted: Result<Replication, Invalid>,
}

/// A validated and completed edit.
#[derive(Debug)]
pub struct Prepared {
    pub edit: Edit,
    /// For [`DocumentHook::knowing`](super::DocumentHook::knowing); `None` if the hook needs none, or must parse it.
    pub meaning: Option<Meaning>,
}

impl Replications {
    pub(super) async fn meaning(
        &self,
        db: &Db,
        document: &Document,
    ) -> Result<Meaning, ServiceError> {
        let defaults = self.defaults();
        let read = move |body: Json, grant: Option<Grant>| Meaning {
            wanted: Replication::granted(&body, grant.as_ref(), &defaults),
            body,
            grant,
        };
        self.open_body(db, document, read).await
    }
}
