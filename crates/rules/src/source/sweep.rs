//! Compares the sequences of databases with those at which replications fell asleep.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use couch::{Error, Server};
use scheduler::{Replications, ServiceError, Sleeper};
use tokio::time::{Instant, sleep, sleep_until};

/// Databases per `_dbs_info` request: CouchDB's limit.
pub(super) const NAMES_MAX: usize = 100;
/// Sleepers that are looked at together: no more databases than one request can be about.
const ROWS: usize = NAMES_MAX;
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

/// A look at all sleepers of a server, page by page, so that those of a million databases do not wait for the last one.
pub(super) struct Sweep {
    /// How long the feed may take to wake a sleeper before this look does.
    grace: Option<Duration>,
    after: Option<Sleeper>,
    is_read: bool,
    /// Sleepers whose database has changed, and when that counts.
    behind: VecDeque<(Instant, Vec<Sleeper>)>,
}

impl Sweep {
    pub(super) fn new(grace: Option<Duration>) -> Self {
        Self {
            grace,
            after: None,
            is_read: false,
            behind: VecDeque::new(),
        }
    }

    /// More databases that have changed since replications fell asleep on them, possibly none; with a grace, only those
    /// whose sleepers were not woken within it. `None` at the end.
    pub(super) async fn next(
        &mut self,
        replications: &Replications,
        server: (&str, &Server),
    ) -> Result<Option<Vec<String>>, Stopped> {
        let is_due = (self.behind.front()).is_some_and(|(at, _)| *at <= Instant::now());
        if !is_due && !self.is_read {
            let moved = self.read(replications, server).await?;
            let Some(grace) = self.grace else {
                return Ok(Some(names(moved)));
            };
            if !moved.is_empty() {
                self.behind.push_back((Instant::now() + grace, moved));
            }
            return Ok(Some(Vec::new()));
        }
        let Some((at, moved)) = self.behind.pop_front() else {
            return Ok(None);
        };
        sleep_until(at).await;
        let still = replications.still_asleep(server.0, &moved).await?;
        Ok(Some(names(still)))
    }

    /// Those of the next page of sleepers whose database has changed, in the order of the databases.
    async fn read(
        &mut self,
        replications: &Replications,
        server: (&str, &Server),
    ) -> Result<Vec<Sleeper>, Stopped> {
        let after = self.after.as_ref();
        let sleepers = replications.sleepers(server.0, after, ROWS).await?;
        self.is_read = sleepers.len() < ROWS;
        self.after = sleepers.last().cloned();
        let mut by_database: BTreeMap<String, Vec<Sleeper>> = BTreeMap::new();
        for sleeper in sleepers {
            let of = by_database.entry(sleeper.database.clone()).or_default();
            of.push(sleeper);
        }
        let names: Vec<String> = by_database.keys().cloned().collect();
        let mut moved = Vec::new();
        for listed in server.1.dbs_info(&names).await? {
            let sleepers = by_database.remove(&listed.name).unwrap_or_default();
            moved.extend(sleepers.into_iter().filter(|sleeper| {
                // A missing database counts as changed: the next run reports the error.
                !(listed.update_seq.as_ref()).is_some_and(|seq| seq.is_same(&sleeper.seq))
            }));
        }
        sleep(PAUSE).await;
        Ok(moved)
    }
}

fn names(sleepers: Vec<Sleeper>) -> Vec<String> {
    let mut names: Vec<_> = sleepers
        .into_iter()
        .map(|sleeper| sleeper.database)
        .collect();
    names.dedup();
    names
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
