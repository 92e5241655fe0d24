//! Compares the sequences of databases with those at which replications fell asleep.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use couch::{Error, Seq, Server};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use scheduler::{Replications, ServiceError, Sleeper};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::heard::Heard;
use super::options::{FEED_DELAY, Source, SourceOptions};
use super::reactions::Reactions;

/// Databases per `_dbs_info` request: CouchDB's limit.
pub(super) const NAMES_MAX: usize = 100;
/// Sleepers that are looked at together: no more databases than one request can be about.
const ROWS: usize = NAMES_MAX;
/// Between two requests, so that a sweep over a million databases does not occupy their server.
const PAUSE: Duration = Duration::from_millis(50);
/// Databases that are asked for changes at the same time: with a round trip of 50 ms, 300 a second.
pub(super) const ASKED_MAX: usize = 16;
/// Databases that looks for those of rules ask for by themselves at the same time.
pub(super) const ASKED_AT_ONCE: usize = 8;
/// After one failure, and the maximum after many.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// How long a database may take to answer.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How often sleepers are woken for one sequence of a database that cannot be read: the first run may have read a copy of the
/// database that lags behind.
const WAKES_MAX: u32 = 3;
/// How many sweeps have to find a database without changes under a sequence before they stop asking: for the same reason.
const LOOKS: u32 = 3;
/// So many databases of either kind are remembered.
const REMEMBERED_MAX: usize = 100_000;

/// Why a request or a transaction failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error(transparent)]
    Server(#[from] Error),
    #[error(transparent)]
    Store(#[from] ServiceError),
}

/// Databases that have changed since replications fell asleep on them, possibly none.
#[derive(Default)]
pub(super) struct Found {
    pub(super) changed: Vec<String>,
    /// Databases that the server could not read. The next run reports the error.
    pub(super) unknown: Vec<String>,
    /// Databases with changes that the feed should have reported, without regard to sleepers.
    pub(super) missed: Vec<String>,
    /// When the sweep began; `None` for one that looks for changes from before the feed.
    pub(super) began: Option<Instant>,
}

/// One sweep after the other, forever.
pub(super) struct Sweeps<'a>(Mutex<BoxStream<'a, Result<Option<Found>, Stopped>>>);

/// Looks at all sleepers of a server again and again.
pub(super) struct Sweeper<'a> {
    replications: &'a Replications,
    source: &'a Source,
    heard: Arc<Heard>,
    connection: Server,
    /// Whether there is no feed: then sweeps follow each other sooner, and do not wait for it to wake sleepers.
    polls: watch::Receiver<bool>,
    sweep: Option<Sweep>,
    /// When the last sweep ended, and how long it took; `None` before the first one.
    last: Option<(Instant, Duration)>,
    /// Errors in a row.
    failures: u32,
    /// Databases that the user of the source cannot read, their last sequence, and how often sleepers were woken for it.
    unreadable: HashMap<String, (Seq, u32)>,
    /// Databases that had no changes under a sequence, how many sweeps have found that, and the last one's beginning.
    unchanged: HashMap<String, (Seq, u32, Instant)>,
}

/// A look at all sleepers, page by page, so that those of a million databases do not wait for the last one.
struct Sweep {
    began: Instant,
    after: Option<Sleeper>,
    is_read: bool,
    /// Sleepers whose database may have changed, and when the feed should have woken them.
    behind: VecDeque<(Instant, Vec<Moved>)>,
}

/// A sleeper whose database is listed with another sequence, or without any.
type Moved = (Sleeper, Option<Seq>);

enum Verdict {
    Changed,
    Unchanged,
    Unknown,
}

impl Sweeps<'_> {
    pub(super) fn none() -> Self {
        Self(Mutex::new(stream::pending().boxed()))
    }

    /// What the sweep has found since the last call, `None` at its end. After an error, it continues where it was. May be
    /// cancelled and called again.
    pub(super) async fn next(&mut self) -> Result<Option<Found>, Stopped> {
        // Makes the stream `Sync`; never locked.
        let sweeps = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        sweeps.next().await.unwrap_or(Ok(None))
    }
}

impl<'a> Sweeper<'a> {
    pub(super) fn new(
        reactions: &Reactions<'a>,
        connection: &Server,
        polls: watch::Receiver<bool>,
    ) -> Self {
        Self {
            replications: &reactions.book.replications,
            source: reactions.source,
            heard: Arc::clone(&reactions.heard),
            connection: connection.clone(),
            polls,
            sweep: None,
            last: None,
            failures: 0,
            unreadable: HashMap::new(),
            unchanged: HashMap::new(),
        }
    }

    /// The first one begins at once, and is for changes from before the feed.
    pub(super) fn sweeps(self) -> Sweeps<'a> {
        let next = |mut sweeper: Self| async move {
            let found = sweeper.next().await;
            Some((found, sweeper))
        };
        Sweeps(Mutex::new(stream::unfold(self, next).boxed()))
    }

    async fn next(&mut self) -> Result<Option<Found>, Stopped> {
        if self.failures > 0 {
            sleep(pause_after(self.failures)).await;
        } else if self.sweep.is_none()
            && let Some((ended, took)) = self.last
        {
            wait(&mut self.polls, self.source.options(), ended, took, 0).await;
        }
        let mut sweep = self.sweep.take().unwrap_or_else(Sweep::begin);
        let mut found = self.advance(&mut sweep).await;
        match &mut found {
            Ok(None) => self.last = Some((Instant::now(), sweep.began.elapsed())),
            Ok(Some(found)) => {
                self.sweep = Some(sweep);
                found.missed = self.missed().await;
            }
            Err(_) => self.sweep = Some(sweep),
        }
        self.failures = if found.is_ok() { 0 } else { self.failures + 1 };
        found
    }

    async fn advance(&mut self, sweep: &mut Sweep) -> Result<Option<Found>, Stopped> {
        let is_due = (sweep.behind.front()).is_some_and(|(at, _)| *at <= Instant::now());
        if !is_due && !sweep.is_read {
            let moved = self.read(sweep).await?;
            if self.last.is_none() || *self.polls.borrow() {
                return Ok(Some(self.ask(sweep, moved).await?));
            }
            if !moved.is_empty() {
                sweep.behind.push_back((Instant::now() + FEED_DELAY, moved));
            }
            return Ok(Some(Found::default()));
        }
        let Some((at, mut moved)) = sweep.behind.pop_front() else {
            return Ok(None);
        };
        sleep_until(at).await;
        let sleepers: Vec<Sleeper> = moved.iter().map(|(sleeper, _)| sleeper.clone()).collect();
        let server = self.source.server().url_text();
        let still = self.replications.still_asleep(server, &sleepers).await?;
        moved.retain(|(sleeper, _)| still.contains(sleeper));
        Ok(Some(self.ask(sweep, moved).await?))
    }

    /// Those of the next page of sleepers whose database may have changed, in the order of the databases.
    async fn read(&self, sweep: &mut Sweep) -> Result<Vec<Moved>, Stopped> {
        let (server, after) = (self.source.server().url_text(), sweep.after.as_ref());
        let sleepers = self.replications.sleepers(server, after, ROWS).await?;
        let (is_read, last) = (sleepers.len() < ROWS, sleepers.last().cloned());
        let mut by_database: BTreeMap<String, Vec<Sleeper>> = BTreeMap::new();
        // One without a sequence has changes to copy already, and waits for its time.
        for sleeper in sleepers.into_iter().filter(|one| !one.seq.is_null()) {
            let of = by_database.entry(sleeper.database.clone()).or_default();
            of.push(sleeper);
        }
        let names: Vec<String> = by_database.keys().cloned().collect();
        let mut moved = Vec::new();
        for listed in self.connection.dbs_info(&names).await? {
            let sleepers = by_database.remove(&listed.name).unwrap_or_default();
            let seq = listed.update_seq.as_ref();
            if seq.is_some_and(|seq| self.wakes_for(&listed.name, seq) >= WAKES_MAX) {
                continue;
            }
            let behind = |sleeper: &Sleeper| !seq.is_some_and(|seq| sleeper.is_at(seq));
            let sleepers = sleepers.into_iter().filter(behind);
            moved.extend(sleepers.map(|sleeper| (sleeper, listed.update_seq.clone())));
        }
        sleep(PAUSE).await;
        (sweep.is_read, sweep.after) = (is_read, last.or(sweep.after.take()));
        Ok(moved)
    }

    /// Asks the databases themselves whether they have changes. Servers count more than these: CouchDB also new rights, and
    /// it adds up the sequences of whichever copies of a database's shards answer first.
    async fn ask(&mut self, sweep: &Sweep, moved: Vec<Moved>) -> Result<Found, Stopped> {
        let mut by_database: BTreeMap<String, Vec<Moved>> = BTreeMap::new();
        for one in moved {
            let of = by_database.entry(one.0.database.clone()).or_default();
            of.push(one);
        }
        let this = &*self;
        let asked = by_database.into_iter().map(|(name, moved)| async move {
            let verdict = this.verdict(&name, &moved).await;
            (name, moved, verdict)
        });
        let asked: Vec<_> = stream::iter(asked)
            .buffer_unordered(ASKED_MAX)
            .collect()
            .await;
        let mut found = Found {
            began: self.last.map(|_| sweep.began),
            ..Found::default()
        };
        let mut unchanged = Vec::new();
        for (name, moved, verdict) in asked {
            match verdict {
                Verdict::Changed => found.changed.push(name),
                Verdict::Unknown => {
                    if let Some((_, Some(listed))) = moved.into_iter().next() {
                        self.count_wake(&name, listed);
                    }
                    found.unknown.push(name);
                }
                Verdict::Unchanged => {
                    if self.count_look(&name, &moved, sweep.began) >= LOOKS {
                        unchanged.extend(moved);
                    }
                }
            }
        }
        if !unchanged.is_empty() {
            let server = self.source.server().url_text();
            let listed = unchanged
                .into_iter()
                .filter_map(|(sleeper, listed)| Some((sleeper, listed?)));
            let listed: Vec<_> = listed.collect();
            self.replications.list_sleepers_at(server, &listed).await?;
        }
        Ok(found)
    }

    /// How often the sleepers of a database that cannot be read were woken for a sequence.
    fn wakes_for(&self, database: &str, seq: &Seq) -> u32 {
        let known = self.unreadable.get(database);
        let same = known.filter(|(before, _)| before.is_same(seq));
        same.map_or(0, |(_, wakes)| *wakes)
    }

    fn count_wake(&mut self, database: &str, seq: Seq) {
        let wakes = self.wakes_for(database, &seq) + 1;
        if self.unreadable.len() >= REMEMBERED_MAX {
            self.unreadable.clear();
        }
        self.unreadable.insert(database.to_owned(), (seq, wakes));
    }

    /// How many sweeps, with this one, have found that a database has no changes under its sequence.
    fn count_look(&mut self, database: &str, moved: &[Moved], began: Instant) -> u32 {
        let Some(seq) = moved.iter().find_map(|(_, listed)| listed.as_ref()) else {
            return 0;
        };
        let known = self.unchanged.get_mut(database);
        if let Some((_, looks, last)) = known.filter(|(before, ..)| before.is_same(seq)) {
            *looks += u32::from(*last != began);
            *last = began;
            let looks = *looks;
            if looks >= LOOKS {
                self.unchanged.remove(database);
            }
            return looks;
        }
        if self.unchanged.len() >= REMEMBERED_MAX {
            // Or the sweeps would ask all of them for ever.
            return LOOKS;
        }
        let first = (seq.clone(), 1, began);
        self.unchanged.insert(database.to_owned(), first);
        1
    }

    async fn verdict(&self, database: &str, moved: &[Moved]) -> Verdict {
        for (sleeper, listed) in moved {
            let Some(listed) = listed else {
                return Verdict::Unknown;
            };
            if is_made_anew(&sleeper.seq, listed) {
                return Verdict::Changed;
            }
            match self.has_changes(database, &sleeper.seq).await {
                Some(true) => return Verdict::Changed,
                Some(false) => {}
                None => return Verdict::Unknown,
            }
        }
        Verdict::Unchanged
    }

    /// Changes that the feed should have reported by now.
    async fn missed(&self) -> Vec<String> {
        let late = self.heard.missed().into_iter();
        let asked = late.map(|(name, since)| async move {
            let is_change = match since {
                Some(since) => self.has_changes(&name, &since).await == Some(true),
                None => true,
            };
            is_change.then_some(name)
        });
        let asked = stream::iter(asked).buffer_unordered(ASKED_MAX);
        asked.filter_map(std::future::ready).collect().await
    }

    /// Whether a database has changes after a sequence, if it tells.
    async fn has_changes(&self, database: &str, since: &Seq) -> Option<bool> {
        let asked = self.connection.has_changes(database, since);
        timeout(ANSWER_MAX, asked).await.ok()?.ok()
    }
}

/// Waits until the next look is due, however often rules have changed since the last one.
pub(super) async fn wait(
    polls: &mut watch::Receiver<bool>,
    options: &SourceOptions,
    looked: Instant,
    took: Duration,
    failures: u32,
) {
    loop {
        let pause = if *polls.borrow_and_update() {
            options.poll(took, failures)
        } else {
            options.sweep()
        };
        tokio::select! {
            () = sleep_until(looked + pause) => return,
            changed = polls.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

/// After this many failures in a row.
pub(super) fn pause_after(failures: u32) -> Duration {
    let (first, max) = RETRY_PAUSES;
    let pause = first * 2_u32.pow(failures.saturating_sub(1).min(8));
    pause.min(max)
}

/// Whether a database is another one than before, of the same name: where sequences are numbers, they only grow.
pub(super) fn is_made_anew(before: &Seq, listed: &Seq) -> bool {
    let numbers = listed.as_number().zip(before.as_number());
    numbers.is_some_and(|(listed, before)| listed < before)
}

impl Sweep {
    fn begin() -> Self {
        Self {
            began: Instant::now(),
            after: None,
            is_read: false,
            behind: VecDeque::new(),
        }
    }
}

/// Changes that a feed has not reported lately.
#[derive(Default)]
pub(super) struct Misses {
    count: u64,
    since: Option<Instant>,
}

impl Misses {
    /// Counts some at a time, forgets those of long before, and returns how many there are.
    pub(super) fn add(&mut self, missed: u64, now: Instant, memory: Duration) -> u64 {
        let is_old = |since: Instant| now.duration_since(since) > memory;
        if self.since.is_some_and(is_old) {
            *self = Self::default();
        }
        if missed > 0 {
            self.since.get_or_insert(now);
            self.count += missed;
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_forgotten() {
        let (mut misses, now) = (Misses::default(), Instant::now());
        let hour = Duration::from_hours(1);
        let counted = [0, 1, 1, 0, 2].map(|missed| misses.add(missed, now, hour));
        assert_eq!(counted, [0, 1, 2, 2, 4]);
        assert_eq!(misses.add(0, now + hour, hour), 4);
        assert_eq!(misses.add(1, now + hour * 2, hour), 1);
    }
}
