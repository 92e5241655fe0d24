//! The feeds of a server, read as one.

use std::collections::BTreeMap;

use couch::{
    Change, Changes, ChangesRequest, DatabaseUpdates, Error, FeedKind as Kind, Idle, Network,
    RequestOptions, Seq, Server,
};
use futures::StreamExt as _;
use futures::stream;
use tokio::time::{Duration, Instant, timeout, timeout_at};

use super::options::{FeedKind, Source};
use super::sweep::{ANSWER_MAX, ASKED_AT_ONCE, ASKED_MAX, NAMES_MAX};
use crate::rule::Event;

/// A feed that is silent for three of these is dropped and opened again.
const HEARTBEAT_MS: u64 = 10_000;
const GLOBAL_CHANGES: &str = "_global_changes";

/// Updates that are handled together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The databases, and what happened to them.
    pub(super) databases: BTreeMap<String, Event>,
    pub(super) updates: u64,
    /// The position behind them.
    pub(super) since: Option<Seq>,
}

/// An open feed, and the updates that are being gathered.
pub(super) struct Feed {
    rows: Rows,
    gathered: Batch,
    until: Instant,
}

enum Rows {
    Updates(DatabaseUpdates),
    Global(Changes),
}

/// The options of requests to sources.
pub(super) fn request_options() -> RequestOptions {
    RequestOptions {
        // Besides the questions of a sweep: the feed, and looks for the databases of rules.
        http_connections: ASKED_MAX + ASKED_AT_ONCE + 4,
        ..RequestOptions::default()
    }
}

impl Feed {
    /// Opens a feed after a position, or from now on, and returns where it begins.
    pub(super) async fn open(
        kind: FeedKind,
        source: &Source,
        (network, server): (&Network, &Server),
        since: Option<&Seq>,
    ) -> Result<(Self, Seq), Error> {
        let idle = Idle::HeartbeatMs(HEARTBEAT_MS);
        if kind != FeedKind::GlobalChanges {
            let since = match since {
                Some(since) => since.clone(),
                None => now(server).await?,
            };
            let updates = server.db_updates(Kind::Continuous, &since, idle).await?;
            return Ok((Self::new(Rows::Updates(updates)), since));
        }
        let database = source.server().database(GLOBAL_CHANGES);
        let database = database.ok_or_else(|| Error::Config("the URL has no path".to_owned()))?;
        let database = network.database(database, request_options()).await?;
        let since = match since {
            Some(since) => since.clone(),
            None => database.info().await?.update_seq,
        };
        let request = ChangesRequest {
            since: since.clone(),
            feed: Kind::Continuous,
            idle,
            ..ChangesRequest::default()
        };
        let changes = database.changes(&request).await?;
        Ok((Self::new(Rows::Global(changes)), since))
    }

    fn new(rows: Rows) -> Self {
        Self {
            rows,
            gathered: Batch::default(),
            until: Instant::now(),
        }
    }

    /// The next update: database, event and position. May be cancelled and called again.
    async fn next(&mut self) -> Result<Option<(String, Event, Seq)>, Error> {
        match &mut self.rows {
            Rows::Updates(updates) => {
                let update = updates.next().await?;
                Ok(update.map(|update| (update.db_name, event(&update.kind), update.seq)))
            }
            Rows::Global(changes) => loop {
                let Some(change) = changes.next().await? else {
                    return Ok(None);
                };
                if let Some((name, event)) = database_of(&change) {
                    return Ok(Some((name.to_owned(), event, change.seq)));
                }
            },
        }
    }

    /// Waits for an update, and gathers those that follow within a while. `None` at the end of the feed. May be cancelled
    /// and called again.
    pub(super) async fn batch(
        &mut self,
        rows: usize,
        wait: Duration,
    ) -> Result<Option<Batch>, Error> {
        if self.gathered.updates == 0 {
            let Some(first) = self.next().await? else {
                return Ok(None);
            };
            self.gathered.add(first);
            self.until = Instant::now() + wait;
        }
        while self.gathered.updates < rows as u64 {
            match timeout_at(self.until, self.next()).await {
                Ok(Ok(Some(update))) => self.gathered.add(update),
                // What was read counts; the next call reports the end or the error.
                Ok(Ok(None) | Err(_)) | Err(_) => break,
            }
        }
        Ok(Some(std::mem::take(&mut self.gathered)))
    }
}

impl Batch {
    fn add(&mut self, (database, event, seq): (String, Event, Seq)) {
        let before = self.databases.entry(database).or_insert(event);
        // A new database that was written to is still a new one.
        if event != Event::Updated {
            *before = event;
        }
        self.updates += 1;
        if !seq.is_null() {
            self.since = Some(seq);
        }
    }
}

/// Documents of `_global_changes` are named `updated:NAME`, `created:NAME` and `deleted:NAME`.
fn database_of(change: &Change) -> Option<(&str, Event)> {
    let (kind, name) = change.id.as_str().split_once(':')?;
    matches!(kind, "updated" | "created" | "deleted").then(|| (name, event(kind)))
}

fn event(kind: &str) -> Event {
    match kind {
        "created" => Event::Created,
        "deleted" => Event::Deleted,
        _ => Event::Updated,
    }
}

/// The current position of `_db_updates`.
async fn now(server: &Server) -> Result<Seq, Error> {
    let from_now = Seq::from_value(&"now".into());
    let mut updates = server
        .db_updates(Kind::Normal, &from_now, Idle::Default)
        .await?;
    while updates.next().await?.is_some() {}
    Ok(updates.last_seq().cloned().unwrap_or(from_now))
}

/// A feed may repeat that a database was deleted after it was made anew, as when shards of `_global_changes` are read
/// again: its replications must not be forgotten. So each has to be missing now, or else counts as changed. A server that
/// refuses `_dbs_info` is believed.
pub(super) async fn check_deleted(connection: &Server, databases: &mut BTreeMap<String, Event>) {
    let deleted = databases
        .iter()
        .filter(|(_, event)| **event == Event::Deleted);
    let deleted: Vec<String> = deleted.map(|(name, _)| name.clone()).collect();
    for names in deleted.chunks(NAMES_MAX) {
        let there: Vec<String> = match connection.dbs_info(names).await {
            Ok(listed) => {
                let asked = listed.into_iter().map(|one| async move {
                    let is_there =
                        one.update_seq.is_some() || !is_missing(connection, &one.name).await;
                    is_there.then_some(one.name)
                });
                let asked = stream::iter(asked).buffer_unordered(ASKED_MAX);
                asked.filter_map(std::future::ready).collect().await
            }
            Err(error) if error.is_refusal() => return,
            Err(_) => names.to_vec(),
        };
        databases.extend(there.into_iter().map(|name| (name, Event::Updated)));
    }
}

/// Whether a database is gone. CouchDB lists one as missing whenever it cannot read it, so it is asked for by itself.
async fn is_missing(connection: &Server, name: &str) -> bool {
    let asked = timeout(ANSWER_MAX, connection.update_seq(name)).await;
    matches!(asked, Ok(Ok(None)))
}
