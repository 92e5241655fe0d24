//! Follows one source while its job is held.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use couch::{Error, Network, Server};
use jobs::{Failure, Finish, Task};
use scheduler::{Following, Replications, ServiceError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::feed::{Batch, Feed, check_deleted, request_options};
use super::metrics;
use super::options::{FEED_DELAY, FeedKind, Source};
use super::position::Position;
use super::reactions::{Reactions, RuleBook};
use super::seed::seed_forever;
use super::sweep::{Found, Misses, Stopped, Sweeper, Sweeps, pause_after};
use crate::rule::Event;

/// Jobs that one transaction wakes.
pub(super) const WAKES: usize = 400;
/// Before a feed that the server refused is tried again, or one that missed updates.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// Before the next choice is tried instead of a feed that fails while its server answers other requests.
const FAILING_MAX: Duration = Duration::from_mins(5);
/// A feed that missed this many changes within this many comparisons is not trusted any more.
const MISSES_MAX: u64 = 3;
const MISSES_SWEEPS: u32 = 60;

/// Why a feed is not read any more.
enum End {
    /// The server does not allow it, or does not serve it for this reason.
    Refused(String),
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

/// The state of the feed being read.
#[derive(Default)]
struct Health {
    /// Since when it has been open.
    opened: Option<Instant>,
    /// Since when it has failed while its server answers other requests.
    failing: Option<Instant>,
    misses: Misses,
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
    health: Health,
    /// Whether no feed is open, so that sequences are compared often.
    polls: watch::Sender<bool>,
    sweeps: Sweeps<'a>,
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
            health: Health::default(),
            polls: watch::Sender::new(true),
            sweeps: Sweeps::none(),
        }
    }

    /// Follows the source until the job is lost.
    pub(super) async fn run(mut self) -> Result<Finish, Failure> {
        let Err(error) = Box::pin(self.follow()).await;
        Err(error.into())
    }

    async fn follow(&mut self) -> Result<Infallible, ServiceError> {
        let server = self.server().to_owned();
        if self.position.server != server {
            self.position = Position {
                server,
                ..Position::default()
            };
        }
        let mut failures = 0;
        let connection = loop {
            let (server, options) = (self.source.server().clone(), request_options());
            match self.network.server(server, options).await {
                Ok(server) => break server,
                Err(error) => {
                    self.set_reason(wire::chain(&error)).await?;
                    failures += 1;
                    sleep(pause_after(failures)).await;
                }
            }
        };
        self.sweeps = self.sweeper(&connection).sweeps();
        let (reactions, polls) = (self.reactions.for_looks(), self.polls.subscribe());
        tokio::select! {
            followed = self.follow_by_choice(&connection) => followed,
            error = seed_forever(reactions, &connection, polls) => Err(error),
        }
    }

    /// Follows the source by the best feed that the server allows.
    async fn follow_by_choice(&mut self, connection: &Server) -> Result<Infallible, ServiceError> {
        let mut skipped: &[FeedKind] = &[];
        loop {
            let choices = self.source.options().feed.choices();
            let mut again = false;
            for kind in choices.iter().filter(|kind| !skipped.contains(kind)) {
                self.health = Health::default();
                self.set_polls(true);
                let Err(end) = match kind {
                    FeedKind::DbsInfo => self.poll(connection).await,
                    kind => self.read(*kind, connection).await,
                };
                skipped = &[];
                match end {
                    End::Refused(reason) => self.set_reason(reason).await?,
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

    fn sweeper(&self, connection: &Server) -> Sweeper<'a> {
        let polls = self.polls.subscribe();
        Sweeper::new(&self.reactions, connection, polls)
    }

    /// Records whether a feed is open. Without one, sequences are compared often and no change counts as missed.
    fn set_polls(&self, polls: bool) {
        let is_new = |before: &mut bool| std::mem::replace(before, polls) != polls;
        if self.polls.send_if_modified(is_new) {
            self.reactions.heard.restart(!polls);
        }
    }

    /// Reads a feed, opening it again whenever it ends.
    async fn read(&mut self, kind: FeedKind, connection: &Server) -> Result<Infallible, End> {
        let is_last = self.source.options().feed.choices().last() == Some(&kind);
        if self.position.feed != Some(kind) {
            self.position.since = None;
        }
        let mut failures = 0;
        loop {
            let updates = self.position.updates;
            let error = Box::pin(self.read_once(kind, connection)).await?;
            let opened = self.health.opened.take();
            let lasted = opened.is_some_and(|opened| opened.elapsed() >= FEED_DELAY);
            let is_healthy = lasted || self.position.updates > updates;
            if is_healthy {
                (self.health.failing, failures) = (None, 0);
            }
            let reason = match error {
                None if is_healthy => continue,
                None => "the feed ended at once".to_owned(),
                Some(error) => {
                    if !is_healthy && failures > 0 && error.is_refusal() {
                        // A row that it cannot send stays where it is.
                        self.position.since = None;
                    }
                    wire::chain(&error)
                }
            };
            if !is_healthy {
                self.set_polls(true);
                let failing = *self.health.failing.get_or_insert_with(Instant::now);
                if failing.elapsed() >= FAILING_MAX && !is_last {
                    return Err(End::Refused(reason));
                }
            }
            tracing::debug!(
                source = self.source.name(),
                error = reason,
                "cannot read a feed"
            );
            self.set_reason(reason).await?;
            failures += 1;
            self.meanwhile(sleep(pause_after(failures))).await?;
        }
    }

    /// Opens a feed and reads it to its end. Returns why it ended, if by an error.
    async fn read_once(
        &mut self,
        kind: FeedKind,
        connection: &Server,
    ) -> Result<Option<Error>, End> {
        let since = self.position.since.clone();
        let opening = Feed::open(
            kind,
            self.source,
            (self.network, connection),
            since.as_ref(),
        );
        let (mut feed, begin) = match self.meanwhile(opening).await? {
            Ok(opened) => opened,
            Err(error) if error.is_refusal() && since.is_none() => {
                return Err(End::Refused(wire::chain(&error)));
            }
            Err(error) => {
                if error.is_refusal() {
                    // The server does not know this position any more: any database may have changed.
                    self.position.since = None;
                    let server = self.server().to_owned();
                    wake_all(self.replications, &server).await?;
                }
                return Ok(Some(error));
            }
        };
        if since.is_none() {
            (self.position.since, self.position.unswept) = (Some(begin), true);
            self.sweeps = self.sweeper(connection).sweeps();
        }
        self.followed_by(kind, None).await?;
        self.set_polls(false);
        self.health.opened = Some(Instant::now());
        let options = self.source.options();
        loop {
            let batch = feed.batch(options.batch_rows, options.batch());
            match self.meanwhile(batch).await? {
                Ok(Some(batch)) => self.handle(batch, connection).await?,
                Ok(None) => return Ok(None),
                Err(error) => return Ok(Some(error)),
            }
        }
    }

    async fn handle(&mut self, batch: Batch, connection: &Server) -> Result<(), ServiceError> {
        let source = self.source;
        self.position.updates += batch.updates;
        self.position.since = batch.since.or(self.position.since.take());
        metrics::counted(source.name(), batch.updates);
        let mut databases = batch.databases;
        databases.retain(|name, _| source.follows(name));
        self.reactions.heard.report(databases.keys());
        check_deleted(connection, &mut databases).await;
        self.wake(&databases).await
    }

    /// Waits for something, and deals meanwhile with what sweeps find.
    async fn meanwhile<T>(&mut self, awaited: impl Future<Output = T>) -> Result<T, End> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Ok(done),
                found = self.sweeps.next() => match found {
                    Ok(found) => Box::pin(self.compared(found)).await?,
                    // Without `_dbs_info` the feed has to do.
                    Err(Stopped::Server(error)) => {
                        self.health.failing = None;
                        if self.position.unswept && error.is_refusal() {
                            Box::pin(self.take_all_for_changed()).await?;
                        }
                    }
                    Err(Stopped::Store(error)) => return Err(error.into()),
                },
            }
        }
    }

    /// Wakes what sleeps on databases that have changed, and counts those that the feed should have reported.
    async fn compared(&mut self, found: Option<Found>) -> Result<(), End> {
        let Some(found) = found else {
            self.position.unswept = false;
            return Ok(self.wake(&BTreeMap::new()).await?);
        };
        let (source, mut missed, mut names) = (self.source, found.missed, found.unknown);
        let opened = self.health.opened;
        if opened.is_some() && found.began >= opened {
            missed.extend(found.changed);
        } else {
            names.extend(found.changed);
        }
        missed.sort_unstable();
        missed.dedup();
        names.extend_from_slice(&missed);
        if names.is_empty() {
            return Ok(());
        }
        self.reactions.heard.report(&names);
        // Changes of excluded databases were reported, and ignored.
        let missed = missed.iter().filter(|name| source.follows(name)).count() as u64;
        self.position.missed += missed;
        metrics::missed(source.name(), missed);
        let updated = names.into_iter().map(|name| (name, Event::Updated));
        self.wake(&updated.collect()).await?;
        let memory = source.options().sweep() * MISSES_SWEEPS;
        let missed = (self.health.misses).add(missed, Instant::now(), memory);
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
    async fn poll(&mut self, connection: &Server) -> Result<Infallible, End> {
        let is_first_choice = self.source.options().feed.choices()[0] == FeedKind::DbsInfo;
        let until = Instant::now() + REFUSED_PAUSE;
        self.position.since = None;
        if let Err(error) = connection.dbs_info(&[]).await
            && error.is_refusal()
        {
            return Err(End::Refused(wire::chain(&error)));
        }
        let reason = self.position.reason.take().filter(|_| !is_first_choice);
        self.followed_by(FeedKind::DbsInfo, reason).await?;
        while is_first_choice || Instant::now() < until {
            match self.sweeps.next().await {
                Ok(found) => self.compared(found).await?,
                Err(Stopped::Server(error)) if error.is_refusal() => {
                    return Err(End::Refused(wire::chain(&error)));
                }
                Err(Stopped::Server(_)) => {}
                Err(Stopped::Store(error)) => return Err(error.into()),
            }
        }
        Err(End::TryBetter)
    }

    /// From here on the source is followed by this feed.
    async fn followed_by(
        &mut self,
        kind: FeedKind,
        reason: Option<String>,
    ) -> Result<(), ServiceError> {
        if self.position.feed != Some(kind) {
            tracing::info!(
                source = self.source.name(),
                feed = kind.as_str(),
                "following a source"
            );
        }
        (self.position.feed, self.position.reason) = (Some(kind), reason);
        // Even if nothing is new to this source: another one may have followed the server until now.
        self.save().await
    }

    async fn set_reason(&mut self, reason: String) -> Result<(), ServiceError> {
        if self.position.reason.as_ref() == Some(&reason) {
            // The store has it from another node, or from before a restart, but the metrics of this one do not.
            self.show(self.position.feed);
            return Ok(());
        }
        self.position.reason = Some(reason);
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
pub(super) async fn wake_all(
    replications: &Replications,
    server: &str,
) -> Result<(), ServiceError> {
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
