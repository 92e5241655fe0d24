//! Compares the sequences of databases with those at which replications fell asleep.

use std::collections::BTreeMap;
use std::time::Duration;

use couch::{Error, Server};
use scheduler::{Replications, ServiceError, Sleeper};
use tokio::time::sleep;

/// Databases per `_dbs_info` request: CouchDB's limit.
pub(super) const NAMES_MAX: usize = 100;
/// Sleepers per transaction.
const ROWS: usize = 1000;
/// Between two requests, so that a sweep over a million databases does not occupy their server.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a sweep did not end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error(transparent)]
    Server(#[from] Error),
    #[error(transparent)]
    Store(#[from] ServiceError),
}

/// The databases of a server that have changed since replications fell asleep on them; with a grace, those that were
/// not woken within it.
pub(super) async fn moved(
    replications: &Replications,
    server: (&str, &Server),
    grace: Option<Duration>,
) -> Result<Vec<String>, Stopped> {
    let mut moved = sleepers_behind(replications, server).await?;
    if let Some(grace) = grace.filter(|_| !moved.is_empty()) {
        sleep(grace).await;
        moved = replications.still_asleep(server.0, &moved).await?;
    }
    let mut names: Vec<_> = moved.into_iter().map(|sleeper| sleeper.database).collect();
    names.dedup();
    Ok(names)
}

/// The sleepers whose database has changed, in the order of the databases.
async fn sleepers_behind(
    replications: &Replications,
    server: (&str, &Server),
) -> Result<Vec<Sleeper>, Stopped> {
    let mut moved = Vec::new();
    let mut after: Option<Sleeper> = None;
    loop {
        let sleepers = replications
            .sleepers(server.0, after.as_ref(), ROWS)
            .await?;
        let is_last = sleepers.len() < ROWS;
        after = sleepers.last().cloned();
        let mut by_database: BTreeMap<String, Vec<Sleeper>> = BTreeMap::new();
        for sleeper in sleepers {
            by_database
                .entry(sleeper.database.clone())
                .or_default()
                .push(sleeper);
        }
        let names: Vec<String> = by_database.keys().cloned().collect();
        for names in names.chunks(NAMES_MAX) {
            let listed = server.1.dbs_info(names).await?;
            for listed in listed {
                let sleepers = by_database.remove(&listed.name).unwrap_or_default();
                moved.extend(sleepers.into_iter().filter(|sleeper| {
                    // A missing database counts as changed: the next run reports the error.
                    !(listed.update_seq.as_ref()).is_some_and(|seq| seq.is_same(&sleeper.seq))
                }));
            }
            sleep(PAUSE).await;
        }
        if is_last {
            return Ok(moved);
        }
    }
}
