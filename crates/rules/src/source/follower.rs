//! Follows one source while its job is held.

use std::collections::BTreeMap;
use std::time::Duration;

use couch::{Error, Network, Server};
use jobs::{Failure, Finish, Task};
use scheduler::{Following, Replications, ServiceError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::feed::{Feed, request_options};
use super::metrics;
use super::options::{FeedKind, Source};
use super::position::Position;
use super::reactions::{Reactions, RuleBook};
use super::seed::seed_forever;
use super::sweep::{Misses, NAMES_MAX, Stopped, Sweep};
use crate::rule::Event;

/// Jobs that one transaction wakes.
pub(super) const WAKES: usize = 400;
/// Before a feed that the server refused is tried again, or one that missed updates.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// After one failure, and the maximum after many.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// How much later than `_dbs_info` a feed may report a change.
pub(super) const FEED_DELAY: Duration = Duration::from_secs(5);
/// A feed that missed this many changes within this many comparisons is not trusted any more.
const MISSES_MAX: u64 = 3;
const MISSES_SWEEPS: u32 = 60;

/// Why a feed is not read any more.
enum End {
    /// The server does not allow it.
    Refused(Error),
    /// It misses updates.
    Untrusted,
    /// A better one may be there again.
    TryBetter,
    /// The job was lost, or the store failed.
    Failed(ServiceError),
}

impl From<ServiceError> for End {
    fn from(error: ServiceError) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct Follower<'a> {
    pub(super) replications: &'a Replications,
    pub(super) network: &'a Network,
    pub(super) source: &'a Source,
    pub(super) task: &'a Task<Position>,
    pub(super) book: &'a RuleBook,
    pub(super) reactions: Reactions<'a>,
    pub(super) position: Position,
    pub(super) saved: Instant,
    /// Whether there is no feed, so that sequences are compared often.
    polls: watch::Sender<bool>,
}

/// This node does not follow the source any more.
impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.show(None);
    }
}

impl<'a> Follower<'a> {
    pub(super) fn new(
        book: &'a RuleBook,
        network: &'a Network,
        source: &'a Source,
        task: &'a Task<Position>,
    ) -> Self {
        Self {
            replications: &book.replications,
            book,
            reactions: Reactions::new(book, source),
            network,
            source,
            position: Position {
                unknown_since_ms: None,
                ..task.data.clone()
            },
            task,
            saved: Instant::now(),
            polls: watch::Sender::new(false),
        }
    }

    /// Follows the source until the job is lost.
    pub(super) async fn run(mut self) -> Result<Finish, Failure> {
        let Err(error) = Box::pin(self.follow()).await;
        Err(error.into())
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, ServiceError> {
        let server = self.server().to_owned();
        if self.position.server != server {
            if !self.position.server.is_empty() {
                stop_following(self.replications, &self.position.server).await?;
            }
            self.position = Position {
                server,
                ..Position::default()
            };
        }
        let mut pause = RETRY_PAUSES.0;
        let connection = loop {
            let (server, options) = (self.source.server().clone(), request_options());
            match self.network.server(server, options).await {
                Ok(server) => break server,
                Err(error) => {
                    self.set_reason(Some(&error)).await?;
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                }
            }
        };
        let (reactions, polls) = (self.reactions.for_looks(), self.polls.subscribe());
        tokio::select! {
            followed = self.follow_by_choice(&connection) => followed,
            error = seed_forever(reactions, &connection, polls) => Err(error),
        }
    }

    /// Follows the source by the best feed that the server allows.
    async fn follow_by_choice(
        &mut self,
        connection: &Server,
    ) -> Result<std::convert::Infallible, ServiceError> {
        let mut skipped: &[FeedKind] = &[];
        loop {
            let choices = self.source.options().feed.choices();
            let mut again = false;
            for kind in choices.iter().filter(|kind| !skipped.contains(kind)) {
                let is_first = *kind == choices[0];
                self.reactions.heard.restart(*kind != FeedKind::DbsInfo);
                let end = match kind {
                    FeedKind::DbsInfo => self.poll(connection, is_first).await,
                    kind => self.read(*kind, connection).await,
                };
                skipped = &[];
                match end {
                    End::Refused(error) => self.set_reason(Some(&error)).await?,
                    End::Untrusted if choices.contains(&FeedKind::DbsInfo) => {
                        skipped = &[FeedKind::DbUpdates, FeedKind::GlobalChanges];
                        again = true;
                    }
                    End::Untrusted | End::TryBetter => again = true,
                    End::Failed(error) => return Err(error),
                }
                if again {
                    break;
                }
            }
            if !again {
                tracing::warn!(
                    source = self.source.name(),
                    reason = self.position.reason,
                    "a source cannot be followed; its replications keep connections of their own"
                );
                self.position.feed = None;
                self.reactions.heard.restart(false);
                self.polls.send_replace(false);
                let server = self.position.server.clone();
                stop_following(self.replications, &server).await?;
                self.save().await?;
                sleep(REFUSED_PAUSE).await;
            }
        }
    }

    /// Shows in this node's metrics how it follows the source.
    fn show(&self, feed: Option<FeedKind>) {
        let first = self.source.options().feed.choices()[0];
        metrics::followed(self.source.name(), feed, first);
    }

    pub(super) fn server(&self) -> &str {
        self.source.server().url_text()
    }

    /// Reads a feed, and compares sequences in between.
    async fn read(&mut self, kind: FeedKind, connection: &Server) -> End {
        let mut pause = RETRY_PAUSES.0;
        let mut misses = Misses::default();
        if self.position.feed != Some(kind) {
            self.position.since = None;
        }
        loop {
            let of = (self.network, connection);
            let opened = Feed::open(kind, self.source, of, self.position.since.as_ref()).await;
            let error = match opened {
                Ok((feed, since)) => {
                    if self.position.since.is_none() {
                        self.position.since = Some(since);
                    }
                    if let Err(error) = self.followed_by(kind, None).await {
                        return End::Failed(error);
                    }
                    pause = RETRY_PAUSES.0;
                    match self.read_on(feed, connection, &mut misses).await {
                        Ok(()) => continue,
                        Err(End::Refused(error)) => error,
                        Err(end) => return end,
                    }
                }
                Err(error) => error,
            };
            if !error.is_refusal() {
                tracing::debug!(source = self.source.name(), %error, "cannot read a feed");
                if let Err(error) = self.set_reason(Some(&error)).await {
                    return End::Failed(error);
                }
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_PAUSES.1);
            } else if self.position.since.take().is_some() {
                // The server does not know this position any more: any database may have changed.
                self.reactions.heard.restart(true);
                let server = self.server().to_owned();
                if let Err(error) = wake_all(self.replications, &server).await {
                    return End::Failed(error);
                }
            } else {
                return End::Refused(error);
            }
        }
    }

    /// Reads an open feed to its end, and compares sequences meanwhile. `End::Refused` has any error of the connection.
    async fn read_on(
        &mut self,
        mut feed: Feed,
        connection: &Server,
        misses: &mut Misses,
    ) -> Result<(), End> {
        let (source, replications) = (self.source, self.replications);
        let (options, server) = (source.options(), self.server().to_owned());
        let look = |begun: Option<Sweep>| {
            let server = &server;
            Box::pin(async move {
                let mut sweep = if let Some(sweep) = begun {
                    sweep
                } else {
                    sleep(options.sweep()).await;
                    Sweep::new(Some(FEED_DELAY))
                };
                let found = sweep.next(replications, (server, connection)).await;
                (sweep, found)
            })
        };
        let mut looking = look(None);
        loop {
            tokio::select! {
                batch = feed.batch(options.batch_rows, options.batch()) => {
                    let Some(batch) = batch.map_err(End::Refused)? else {
                        return Ok(());
                    };
                    self.position.updates += batch.updates;
                    self.position.since = batch.since.or(self.position.since.take());
                    metrics::counted(source.name(), batch.updates);
                    let mut databases = batch.databases;
                    databases.retain(|name, _| source.follows(name));
                    self.reactions.heard.report(databases.keys());
                    check_deleted(connection, &mut databases).await;
                    self.wake(&databases).await?;
                }
                (sweep, found) = &mut looking => match found {
                    Ok(Some(mut names)) => {
                        looking = look(Some(sweep));
                        names.append(&mut self.reactions.heard.missed());
                        self.missed(names, misses).await?;
                    }
                    Ok(None) => {
                        looking = look(None);
                        self.wake(&BTreeMap::new()).await?;
                    }
                    // Without `_dbs_info` the feed has to do.
                    Err(Stopped::Server(_)) => looking = look(None),
                    Err(Stopped::Store(error)) => return Err(error.into()),
                },
            }
        }
    }

    /// Wakes what sleeps on databases whose changes were not reported, and counts that.
    async fn missed(&mut self, mut names: Vec<String>, misses: &mut Misses) -> Result<(), End> {
        if names.is_empty() {
            return Ok(());
        }
        names.sort_unstable();
        names.dedup();
        self.reactions.heard.report(&names);
        let source = self.source;
        // Changes of excluded databases were reported, and ignored.
        let missed = names.iter().filter(|name| source.follows(name)).count() as u64;
        self.position.missed += missed;
        metrics::missed(source.name(), missed);
        self.wake(&updated(names)).await?;
        let memory = source.options().sweep() * MISSES_SWEEPS;
        let missed = misses.add(missed, Instant::now(), memory);
        if missed < MISSES_MAX {
            return Ok(());
        }
        self.position.reason = Some(format!("the feed missed {missed} changes"));
        tracing::warn!(
            source = source.name(),
            missed,
            "the feed misses updates and is not used for a while"
        );
        Err(End::Untrusted)
    }

    /// Compares sequences only.
    async fn poll(&mut self, connection: &Server, is_first_choice: bool) -> End {
        match self.poll_on(connection, is_first_choice).await {
            Ok(()) => End::TryBetter,
            Err(end) => end,
        }
    }

    async fn poll_on(&mut self, connection: &Server, is_first_choice: bool) -> Result<(), End> {
        let until = Instant::now() + REFUSED_PAUSE;
        self.position.since = None;
        let (mut pause, server) = (RETRY_PAUSES.0, self.server().to_owned());
        let (replications, options) = (self.replications, self.source.options());
        let reason = self.position.reason.clone();
        if let Err(error) = connection.dbs_info(&[]).await
            && error.is_refusal()
        {
            return Err(End::Refused(error));
        }
        self.followed_by(FeedKind::DbsInfo, reason).await?;
        let (mut sweep, mut began) = (Sweep::new(None), Instant::now());
        while is_first_choice || Instant::now() < until {
            match sweep.next(replications, (&server, connection)).await {
                Ok(Some(names)) if names.is_empty() => {}
                Ok(Some(names)) => self.wake(&updated(names)).await?,
                Ok(None) => {
                    self.wake(&BTreeMap::new()).await?;
                    pause = RETRY_PAUSES.0;
                    sleep(options.poll(began.elapsed(), 0)).await;
                    (sweep, began) = (Sweep::new(None), Instant::now());
                }
                Err(Stopped::Store(error)) => return Err(error.into()),
                Err(Stopped::Server(error)) if error.is_refusal() => {
                    return Err(End::Refused(error));
                }
                Err(Stopped::Server(_)) => {
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                    (sweep, began) = (Sweep::new(None), Instant::now());
                }
            }
        }
        Ok(())
    }

    /// From here on the source is followed by this feed.
    async fn followed_by(
        &mut self,
        kind: FeedKind,
        reason: Option<String>,
    ) -> Result<(), ServiceError> {
        self.polls.send_replace(kind == FeedKind::DbsInfo);
        if self.position.feed == Some(kind) && self.position.reason == reason {
            // The node that followed it before has said so in the store, but this one not in its metrics.
            self.show(Some(kind));
            return Ok(());
        }
        if self.position.feed != Some(kind) {
            tracing::info!(
                source = self.source.name(),
                feed = kind.as_str(),
                "following a source"
            );
        }
        (self.position.feed, self.position.reason) = (Some(kind), reason);
        self.save().await
    }

    async fn set_reason(&mut self, error: Option<&Error>) -> Result<(), ServiceError> {
        let reason = error.map(|error| wire::chain(error));
        if self.position.reason == reason {
            return Ok(());
        }
        self.position.reason = reason;
        self.save().await
    }

    /// Saves the position, and how the server is followed.
    pub(super) async fn save(&mut self) -> Result<(), ServiceError> {
        let (replications, op) = (self.replications, self.task.jobs().op());
        self.position.at_ms = op.now_ms;
        let following = self.position.feed.map(|feed| Following {
            source: self.source.name().to_owned(),
            feed: feed.as_str().to_owned(),
            since_ms: op.now_ms,
            reason: self.position.reason.clone(),
        });
        let (position, following, server) = (&self.position, &following, self.server());
        let task = self.task;
        (replications.jobs().store())
            .transact("follow_source", |tx| async move {
                let (jobs, job) = (task.jobs(), task.job());
                let held = jobs
                    .update_in(&tx, &op, job, Some(jobs::encode(position)?))
                    .await?;
                if !held.repeated {
                    replications.follow_in(&tx, server, following.as_ref());
                }
                Ok::<_, ServiceError>(())
            })
            .await?;
        self.saved = Instant::now();
        self.show(self.position.feed);
        Ok(())
    }
}

/// Lets nothing sleep on a server any more, and wakes what does.
pub(super) async fn stop_following(
    replications: &Replications,
    server: &str,
) -> Result<(), ServiceError> {
    (replications.jobs().store())
        .transact("unfollow_source", |tx| async move {
            replications.follow_in(&tx, server, None);
            Ok::<_, ServiceError>(())
        })
        .await?;
    wake_all(replications, server).await
}

/// Wakes everything that sleeps on databases of a server.
async fn wake_all(replications: &Replications, server: &str) -> Result<(), ServiceError> {
    let mut after = None;
    loop {
        let sleepers = (replications.sleepers(server, after.as_ref(), WAKES)).await?;
        if sleepers.is_empty() {
            return Ok(());
        }
        let (op, page) = (replications.jobs().op(), &sleepers);
        (replications.jobs().store())
            .transact("wake_all", |tx| async move {
                replications.wake_these_in(&tx, &op, server, page).await
            })
            .await?;
        // Those that are asleep again need no second call.
        after = sleepers.into_iter().next_back();
    }
}

/// A feed may repeat that a database was deleted after it was made anew, as when shards of `_global_changes` are read
/// again: its replications must not be forgotten. Without `_dbs_info` the feed has to do.
async fn check_deleted(connection: &Server, databases: &mut BTreeMap<String, Event>) {
    let deleted = databases
        .iter()
        .filter(|(_, event)| **event == Event::Deleted);
    let deleted: Vec<String> = deleted.map(|(name, _)| name.clone()).collect();
    for names in deleted.chunks(NAMES_MAX) {
        let Ok(listed) = connection.dbs_info(names).await else {
            return;
        };
        let there = listed.into_iter().filter(|one| one.update_seq.is_some());
        databases.extend(there.map(|one| (one.name, Event::Updated)));
    }
}

/// Databases that are known to have changed only.
fn updated(names: Vec<String>) -> BTreeMap<String, Event> {
    names
        .into_iter()
        .map(|name| (name, Event::Updated))
        .collect()
}
