//! One replication in this process, with nothing to set up.

use couch::Network;
use document::json::Json;
use replicator::engine::{self, Run, Settings};
use replicator::id::Service;
use replicator::params::{Defaults, Replication};
use replicator::{Error, Stats};

/// Reads a replication document and finds out its id.
pub(crate) async fn prepare(document: &Json, uuid: &str, network: Network) -> anyhow::Result<Run> {
    let replication = Replication::from_document(document, &Defaults::default())?;
    let settings = Settings::default();
    let service = Service {
        uuid: uuid.to_owned(),
        legacy_host: None,
    };
    let identified = engine::identify(&replication, &service, &network, &settings);
    let (identity, filter_code) = Box::pin(identified)
        .await
        .map_err(|error| failure(&error))?;
    Ok(Run {
        replication,
        identity,
        filter_code,
        stats: Stats::default(),
        session_id: super::random_hex(),
        network,
        settings,
    })
}

/// A run's error as its user reads it.
pub(crate) fn failure(error: &Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", error.tag(), error.reason())
}
