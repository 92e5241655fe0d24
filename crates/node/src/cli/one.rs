//! One replication in this process, with nothing to set up.

use couch::Network;
use document::json::Json;
use replication::Error;
use replication::engine::Run;
use replication::params::{Defaults, Replication};

/// Reads a replication document and finds out its id.
pub(crate) async fn prepare(document: &Json, uuid: &str, network: Network) -> anyhow::Result<Run> {
    let replication = Replication::from_document(document, &Defaults::default())?;
    let run = Run::alone(replication, uuid, network, super::random_hex());
    Box::pin(run).await.map_err(|error| failure(&error))
}

/// A run's error as its user reads it.
pub(crate) fn failure(error: &Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", error.tag(), error.reason())
}
