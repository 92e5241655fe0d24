//! One server that is listened to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use couch::{Endpoint, FeedKind, Idle, ListedDatabase, Network, RequestOptions, Seq, Server};
use futures::future::join;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Between two looks at `_dbs_info` where nothing else tells.
const POLL_PAUSE: Duration = Duration::from_secs(3);
/// Between two looks where there is a feed.
const CHECK_PAUSE: Duration = Duration::from_mins(1);
/// New listeners are checked together.
const GATHER_PAUSE: Duration = Duration::from_millis(200);
/// After a failure, and after many.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A server that does not know or allow something is asked again after so long.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// Databases in one `_dbs_info`: as many as CouchDB takes.
const NAMES_MAX: usize = 100;
/// A feed may tell of a change so much later than the database.
const FEED_DELAY: Duration = Duration::from_secs(5);
/// Nobody listens to a server any more that nobody has listened to for so long.
const DESERTED_PAUSE: Duration = Duration::from_mins(5);
/// A feed that has not told so many changes is not believed any more.
const MISSES_MAX: u32 = 3;
/// A feed without a sign of life for three of these is given up, and its server looked after.
const HEARTBEAT_MS: u64 = 10_000;

/// Whether something tells of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Not known yet, or not at the moment.
    Not,
    /// From now on.
    Live,
    /// The server does not.
    Never,
}

/// A server, and who listens to it.
pub(super) struct Source {
    endpoint: Endpoint,
    listeners: Mutex<Listeners>,
    feed: watch::Sender<Told>,
    polls: watch::Sender<Told>,
    /// A listener was added.
    listened: Notify,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    /// By the name of the database.
    by_database: BTreeMap<String, Vec<Entry>>,
    /// Changes that the feed has not told.
    misses: u32,
    /// There will be no more.
    closed: bool,
}

struct Entry {
    id: u64,
    /// The sequence that the server named first.
    seen: Option<Seq>,
    armed: CancellationToken,
    heard: CancellationToken,
}

/// Hears of changes of one database, from when it is armed until it has heard of one.
pub(crate) struct ChangeListener {
    id: u64,
    database: String,
    source: Weak<Source>,
    feed: watch::Receiver<Told>,
    polls: watch::Receiver<Told>,
    armed: CancellationToken,
    heard: CancellationToken,
}

impl ChangeListener {
    /// Waits until changes will be heard; false when they will not.
    pub(super) async fn armed(&self) -> bool {
        let (mut feed, mut polls) = (self.feed.clone(), self.polls.clone());
        let never = async {
            let refused = |told: &Told| *told == Told::Never;
            drop(feed.wait_for(refused).await);
            drop(polls.wait_for(refused).await);
        };
        let mut feed = self.feed.clone();
        let live = async { feed.wait_for(|told| *told == Told::Live).await.is_ok() };
        tokio::select! {
            biased;
            true = live => true,
            () = self.armed.cancelled() => true,
            () = never => false,
        }
    }

    /// Waits until the database may have changed.
    pub(crate) async fn heard(&self) {
        self.heard.cancelled().await;
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
            feed: watch::Sender::new(Told::Not),
            polls: watch::Sender::new(Told::Not),
            listened: Notify::new(),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Adds a listener, unless the source has stopped.
    pub(super) fn listener(self: &Arc<Self>, database: &str) -> Option<ChangeListener> {
        let (armed, heard) = (CancellationToken::new(), CancellationToken::new());
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
                heard: heard.clone(),
            });
        drop(listeners);
        self.listened.notify_one();
        Some(ChangeListener {
            id,
            database: database.to_owned(),
            source: Arc::downgrade(self),
            feed: self.feed.subscribe(),
            polls: self.polls.subscribe(),
            armed,
            heard,
        })
    }

    /// Listens until nobody wants to know any more.
    pub(super) async fn serve(self: Arc<Self>, network: Network) {
        tokio::select! {
            biased;
            () = self.listen(&network) => {}
            () = self.deserted() => {}
        }
    }

    async fn deserted(&self) {
        let mut was_empty = false;
        loop {
            sleep(DESERTED_PAUSE).await;
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
                    tracing::debug!(server = %self.endpoint, %error, "listen to a server");
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                }
            }
        };
        join(self.follow(&server), self.poll(&server)).await;
    }

    /// Follows the feed of updates.
    async fn follow(&self, server: &Server) {
        let mut since = None;
        let mut pause = RETRY_PAUSES.0;
        loop {
            let error = match self.follow_once(server, &mut since).await {
                Ok(()) => {
                    pause = RETRY_PAUSES.0;
                    continue;
                }
                Err(error) => error,
            };
            tracing::debug!(server = %self.endpoint, %error, "follow updates of databases");
            self.feed.send_replace(Told::Not);
            if !is_refusal(&error) {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_PAUSES.1);
            } else if since.take().is_some() {
                // It does not know that sequence any more, so nobody knows what happened meanwhile.
                self.all_heard();
            } else {
                self.feed.send_replace(Told::Never);
                sleep(REFUSED_PAUSE).await;
            }
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
            self.feed.send_replace(Told::Live);
        }
        while let Some(update) = updates.next().await? {
            self.heard(&update.db_name);
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
                    self.polls.send_replace(Told::Live);
                    let again = if *self.feed.borrow() == Told::Live {
                        CHECK_PAUSE
                    } else {
                        POLL_PAUSE
                    };
                    if timeout(again, self.listened.notified()).await.is_ok() {
                        sleep(GATHER_PAUSE).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(server = %self.endpoint, %error, "ask for sequences of databases");
                    if is_refusal(&error) {
                        self.polls.send_replace(Told::Never);
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
        if *self.feed.borrow() == Told::Live && !changed.is_empty() {
            sleep(FEED_DELAY).await;
            if changed.iter().any(|heard| !heard.is_cancelled()) {
                self.missed();
            }
        }
        for heard in changed {
            heard.cancel();
        }
        Ok(())
    }

    /// Those who ought to hear about what a server says of a database, or to have heard.
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
            (Some(seen), Some(seq)) if is_same(seen, seq) => None,
            // Also when it is gone: whoever runs next says so.
            _ => Some(listener.heard.clone()),
        });
        changed.collect()
    }

    /// The feed has not told of a change.
    fn missed(&self) {
        let mut listeners = self.listeners();
        listeners.misses += 1;
        if listeners.misses == MISSES_MAX {
            tracing::warn!(server = %self.endpoint, "_db_updates does not tell of all updates: _dbs_info is asked often");
            self.feed.send_replace(Told::Not);
        }
    }

    fn heard(&self, database: &str) {
        for listener in self
            .listeners()
            .by_database
            .get(database)
            .into_iter()
            .flatten()
        {
            listener.heard.cancel();
        }
    }

    fn all_heard(&self) {
        for listener in self.listeners().by_database.values().flatten() {
            listener.heard.cancel();
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the feed of updates stands.
async fn now(server: &Server) -> Result<Seq, couch::Error> {
    let from_now = Seq::from_value(&"now".into());
    let mut updates = server
        .db_updates(FeedKind::Normal, &from_now, Idle::Default)
        .await?;
    while updates.next().await?.is_some() {}
    Ok(updates.last_seq().cloned().unwrap_or(from_now))
}

/// A cluster spells one sequence in many ways, but the number in front of it is the same.
fn is_same(one: &Seq, other: &Seq) -> bool {
    fn number(seq: &Seq) -> Option<String> {
        let text = seq.to_query();
        let (number, _) = text.split_once('-')?;
        number
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| number.to_owned())
    }
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

fn is_refusal(error: &couch::Error) -> bool {
    error
        .status()
        .is_some_and(|status| (400..500).contains(&status))
        || matches!(
            error,
            couch::Error::BadAnswer { .. } | couch::Error::Auth { .. }
        )
}
