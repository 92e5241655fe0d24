//! Runs one replication in this process, without a service.

use couch::Network;
use document::json::Json;
use replication::Error;
use replication::engine::Run;
use replication::params::{Defaults, Replication};

/// Parses a replication document and computes its id.
pub(crate) async fn prepare(document: &Json, uuid: &str, network: Network) -> anyhow::Result<Run> {
    let replication = Replication::from_document(document, &Defaults::default())?;
    let run = Run::alone(replication, uuid, network, super::random_hex());
    Box::pin(run).await.map_err(|error| failure(&error))
}

/// The error of a run, for its user.
pub(crate) fn failure(error: &Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", error.tag(), error.reason())
}
