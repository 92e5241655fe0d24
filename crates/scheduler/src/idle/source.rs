//! Watches one server for changes of its databases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use couch::{Endpoint, FeedKind, Idle, ListedDatabase, Network, RequestOptions, Seq, Server};
use futures::future::join;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Between two polls of `_dbs_info` without a feed.
const POLL_PAUSE: Duration = Duration::from_secs(3);
/// Between two polls with a feed.
const CHECK_PAUSE: Duration = Duration::from_mins(1);
/// New listeners are polled together.
const GATHER_PAUSE: Duration = Duration::from_millis(200);
/// After one failure, and the maximum after many.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Before a request that the server refused or does not know is tried again.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// Databases per `_dbs_info` request: CouchDB's limit.
const NAMES_MAX: usize = 100;
/// How much later than `_dbs_info` a feed may report a change.
const FEED_DELAY: Duration = Duration::from_secs(5);
/// A server without listeners is no longer watched after this time.
const UNUSED_MAX: Duration = Duration::from_mins(5);
/// A feed that missed this many changes is not trusted any more.
const MISSES_MAX: u32 = 3;
/// A feed that is silent for three of these is dropped, and its server probed.
const HEARTBEAT_MS: u64 = 10_000;

/// Whether the server currently reports changes in one of the two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// Unknown, or interrupted.
    Unknown,
    Live,
    /// The server does not support or allow it.
    Refused,
}

/// A server and its listeners.
pub(super) struct Source {
    endpoint: Endpoint,
    listeners: Mutex<Listeners>,
    feed: watch::Sender<Support>,
    polls: watch::Sender<Support>,
    /// Notified when a listener is added.
    added: Notify,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    /// By the name of the database.
    by_database: BTreeMap<String, Vec<Entry>>,
    /// Changes that the feed missed.
    misses: u32,
    /// Set when the task ends; no listener can be added any more.
    closed: bool,
}

struct Entry {
    id: u64,
    /// The first sequence that the server reported.
    seen: Option<Seq>,
    armed: CancellationToken,
    changed: CancellationToken,
}

/// Watches one database from the moment it is armed until the first change.
pub(crate) struct ChangeListener {
    id: u64,
    database: String,
    source: Weak<Source>,
    feed: watch::Receiver<Support>,
    polls: watch::Receiver<Support>,
    armed: CancellationToken,
    changed: CancellationToken,
}

impl ChangeListener {
    /// Waits until changes will be noticed; false if the server supports neither way.
    pub(super) async fn armed(&self) -> bool {
        let (mut feed, mut polls) = (self.feed.clone(), self.polls.clone());
        let never = async {
            let refused = |support: &Support| *support == Support::Refused;
            drop(feed.wait_for(refused).await);
            drop(polls.wait_for(refused).await);
        };
        let mut feed = self.feed.clone();
        let live = async {
            feed.wait_for(|support| *support == Support::Live)
                .await
                .is_ok()
        };
        tokio::select! {
            biased;
            true = live => true,
            () = self.armed.cancelled() => true,
            () = never => false,
        }
    }

    /// Waits until the database may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.cancelled().await;
    }
}

impl Drop for ChangeListener {
    fn drop(&mut self) {
        let Some(source) = self.source.upgrade() else {
            return;
        };
        let mut listeners = source.listeners();
        if let Some(all) = listeners.by_database.get_mut(&self.database) {
            all.retain(|listener| listener.id != self.id);
            if all.is_empty() {
                listeners.by_database.remove(&self.database);
            }
        }
    }
}

impl Source {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            listeners: Mutex::default(),
            feed: watch::Sender::new(Support::Unknown),
            polls: watch::Sender::new(Support::Unknown),
            added: Notify::new(),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Adds a listener, unless the source has stopped.
    pub(super) fn listener(self: &Arc<Self>, database: &str) -> Option<ChangeListener> {
        let (armed, changed) = (CancellationToken::new(), CancellationToken::new());
        let mut listeners = self.listeners();
        if listeners.closed {
            return None;
        }
        listeners.next += 1;
        let id = listeners.next;
        listeners
            .by_database
            .entry(database.to_owned())
            .or_default()
            .push(Entry {
                id,
                seen: None,
                armed: armed.clone(),
                changed: changed.clone(),
            });
        drop(listeners);
        self.added.notify_one();
        Some(ChangeListener {
            id,
            database: database.to_owned(),
            source: Arc::downgrade(self),
            feed: self.feed.subscribe(),
            polls: self.polls.subscribe(),
            armed,
            changed,
        })
    }

    /// Watches the server until it has had no listeners for a while.
    pub(super) async fn serve(self: Arc<Self>, network: Network) {
        tokio::select! {
            biased;
            () = self.listen(&network) => {}
            () = self.unused() => {}
        }
    }

    async fn unused(&self) {
        let mut was_empty = false;
        loop {
            sleep(UNUSED_MAX).await;
            let mut listeners = self.listeners();
            if was_empty && listeners.by_database.is_empty() {
                listeners.closed = true;
                return;
            }
            was_empty = listeners.by_database.is_empty();
        }
    }

    async fn listen(&self, network: &Network) {
        let options = RequestOptions {
            http_connections: 2,
            ..RequestOptions::default()
        };
        let mut pause = RETRY_PAUSES.0;
        let server = loop {
            match network.server(self.endpoint.clone(), options.clone()).await {
                Ok(server) => break server,
                Err(error) => {
                    tracing::debug!(server = %self.endpoint, %error, "cannot watch a server");
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                }
            }
        };
        join(self.follow(&server), self.poll(&server)).await;
    }

    /// Follows `_db_updates`.
    async fn follow(&self, server: &Server) {
        let mut since = None;
        let mut pause = RETRY_PAUSES.0;
        loop {
            let (began, is_first) = (Instant::now(), since.is_none());
            let followed = self.follow_once(server, &mut since).await;
            let lasted = began.elapsed() >= FEED_DELAY;
            if lasted {
                pause = RETRY_PAUSES.0;
            }
            let is_refused = match followed {
                Ok(()) if lasted => continue,
                // Not again at once, for as long as it ends at once.
                Ok(()) => false,
                Err(error) => {
                    tracing::debug!(server = %self.endpoint, %error, "cannot follow _db_updates");
                    error.is_refusal()
                }
            };
            self.feed.send_replace(Support::Unknown);
            if is_refused {
                let was_open = since.take().is_some();
                if is_first {
                    self.feed.send_replace(Support::Refused);
                }
                if was_open {
                    // The server does not know this sequence any more, or cannot send what follows it: any database may have
                    // changed.
                    self.notify_all();
                }
                if is_first {
                    sleep(REFUSED_PAUSE).await;
                    continue;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSES.1);
        }
    }

    /// One connection, from where the last one ended.
    async fn follow_once(
        &self,
        server: &Server,
        since: &mut Option<Seq>,
    ) -> Result<(), couch::Error> {
        let from = match since {
            Some(seq) => seq.clone(),
            None => now(server).await?,
        };
        let idle = Idle::HeartbeatMs(HEARTBEAT_MS);
        let mut updates = server.db_updates(FeedKind::Continuous, &from, idle).await?;
        *since = Some(from);
        if self.listeners().misses < MISSES_MAX {
            self.feed.send_replace(Support::Live);
        }
        while let Some(update) = updates.next().await? {
            self.notify(&update.db_name);
            if !update.seq.is_null() {
                *since = Some(update.seq);
            }
        }
        Ok(())
    }

    /// Polls sequences: at once for new listeners, then periodically.
    async fn poll(&self, server: &Server) {
        let mut pause = RETRY_PAUSES.0;
        loop {
            match self.poll_once(server).await {
                Ok(()) => {
                    pause = RETRY_PAUSES.0;
                    self.polls.send_replace(Support::Live);
                    let again = if *self.feed.borrow() == Support::Live {
                        CHECK_PAUSE
                    } else {
                        POLL_PAUSE
                    };
                    if timeout(again, self.added.notified()).await.is_ok() {
                        sleep(GATHER_PAUSE).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(server = %self.endpoint, %error, "cannot poll _dbs_info");
                    if error.is_refusal() {
                        self.polls.send_replace(Support::Refused);
                        sleep(REFUSED_PAUSE).await;
                    } else {
                        sleep(pause).await;
                        pause = (pause * 2).min(RETRY_PAUSES.1);
                    }
                }
            }
        }
    }

    async fn poll_once(&self, server: &Server) -> Result<(), couch::Error> {
        let names: Vec<String> = self.listeners().by_database.keys().cloned().collect();
        let mut changed = Vec::new();
        for names in names.chunks(NAMES_MAX) {
            for listed in server.dbs_info(names).await? {
                changed.extend(self.changed(&listed));
            }
        }
        if *self.feed.borrow() == Support::Live && !changed.is_empty() {
            sleep(FEED_DELAY).await;
            if changed.iter().any(|token| !token.is_cancelled()) {
                self.missed();
            }
        }
        for token in changed {
            token.cancel();
        }
        Ok(())
    }

    /// Tokens of the listeners whose database has another sequence than the one they first saw.
    fn changed(&self, listed: &ListedDatabase) -> Vec<CancellationToken> {
        let mut listeners = self.listeners();
        let entries = listeners
            .by_database
            .get_mut(&listed.name)
            .into_iter()
            .flatten();
        let changed = entries.filter_map(|listener| match (&listener.seen, &listed.update_seq) {
            (None, Some(seq)) => {
                listener.seen = Some(seq.clone());
                listener.armed.cancel();
                None
            }
            (Some(seen), Some(seq)) if seen.is_same(seq) => None,
            // A missing database counts as changed; the next run reports the error.
            _ => Some(listener.changed.clone()),
        });
        changed.collect()
    }

    /// Counts a change that the feed did not report.
    fn missed(&self) {
        let mut listeners = self.listeners();
        listeners.misses += 1;
        if listeners.misses == MISSES_MAX {
            tracing::warn!(server = %self.endpoint, "_db_updates misses updates; polling _dbs_info more often");
            self.feed.send_replace(Support::Unknown);
        }
    }

    fn notify(&self, database: &str) {
        for listener in self
            .listeners()
            .by_database
            .get(database)
            .into_iter()
            .flatten()
        {
            listener.changed.cancel();
        }
    }

    fn notify_all(&self) {
        for listener in self.listeners().by_database.values().flatten() {
            listener.changed.cancel();
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The current sequence of the feed.
async fn now(server: &Server) -> Result<Seq, couch::Error> {
    let from_now = Seq::from_value(&"now".into());
    let mut updates = server
        .db_updates(FeedKind::Normal, &from_now, Idle::Default)
        .await?;
    while updates.next().await?.is_some() {}
    Ok(updates.last_seq().cloned().unwrap_or(from_now))
}

#[cfg(test)]
mod tests;
