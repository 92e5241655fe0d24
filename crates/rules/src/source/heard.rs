//! Which databases a feed has reported lately: one that changed without a report was missed.
//!
//! Databases that only rules with calls are about have no sleepers, whose sequences `sweep.rs` compares. A look at them
//! finds those that have changed since the look before, and this tells which of these the feed has reported.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use couch::Seq;
use tokio::time::Instant;

use super::options::FEED_DELAY;

/// Databases that are remembered. A feed that reports more between two looks is not silent.
const REPORTED_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Heard {
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether there is a feed.
    reads: bool,
    /// Reported since the present look began, and during the last one that ended.
    present: Reported,
    last: Reported,
    has_ended: bool,
    /// Databases that have changed, since which sequence if they are not new, and when it is too late to report them.
    changed: BTreeMap<String, (Option<Seq>, Instant)>,
}

#[derive(Default)]
struct Reported {
    databases: HashSet<u64>,
    /// Nothing that was reported is missing.
    is_whole: bool,
}

impl Heard {
    /// From here on another feed is read, or the same from another position, or none.
    pub(super) fn restart(&self, reads: bool) {
        *self.state() = State {
            reads,
            ..State::default()
        };
    }

    /// The feed has reported these, or they have been counted as missed.
    pub(super) fn report<'a>(&self, databases: impl IntoIterator<Item = &'a String>) {
        let state = &mut *self.state();
        for database in databases {
            state.changed.remove(database);
            state
                .present
                .databases
                .insert(self.hasher.hash_one(database));
        }
        if state.present.databases.len() > REPORTED_MAX {
            state.present = Reported::default();
        }
    }

    /// A look at all databases begins. After one that failed, what was reported during it still counts.
    pub(super) fn begin_look(&self) {
        let state = &mut *self.state();
        if !state.present.is_whole || state.has_ended {
            let next = Reported {
                is_whole: state.reads,
                ..Reported::default()
            };
            state.last = std::mem::replace(&mut state.present, next);
        }
        state.has_ended = false;
    }

    pub(super) fn end_look(&self) {
        self.state().has_ended = true;
    }

    /// A database has another sequence than at the last look, or is new.
    pub(super) fn changed(&self, database: &str, since: Option<&Seq>) {
        let state = &mut *self.state();
        let hash = self.hasher.hash_one(database);
        let mut reported = [&state.last, &state.present].into_iter();
        if reported.all(|one| one.is_whole && !one.databases.contains(&hash)) {
            let late = || (since.cloned(), Instant::now() + FEED_DELAY);
            state
                .changed
                .entry(database.to_owned())
                .or_insert_with(late);
        }
    }

    /// Those that should have been reported by now, if they have changes since these sequences.
    pub(super) fn missed(&self) -> Vec<(String, Option<Seq>)> {
        let now = Instant::now();
        let mut state = self.state();
        let late = state.changed.extract_if(.., |_, (_, at)| *at <= now);
        late.map(|(database, (since, _))| (database, since))
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// With a feed, after one look.
    fn listening() -> Heard {
        let heard = Heard::default();
        heard.restart(true);
        look(&heard, &[]);
        heard
    }

    fn look(heard: &Heard, changed: &[&str]) {
        heard.begin_look();
        for name in changed {
            heard.changed(name, None);
        }
        heard.end_look();
    }

    fn report(heard: &Heard, name: &str) {
        heard.report([&name.to_owned()]);
    }

    async fn late(heard: &Heard) -> Vec<String> {
        advance(FEED_DELAY).await;
        let missed = heard.missed().into_iter();
        missed.map(|(database, _)| database).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_reported_in_time_was_missed() {
        let heard = listening();
        report(&heard, "before");
        look(&heard, &["before", "after", "never"]);
        report(&heard, "after");
        assert_eq!(heard.missed(), []);
        assert_eq!(late(&heard).await, ["never"]);
        assert_eq!(late(&heard).await, [""; 0]);
        look(&heard, &["after"]);
        assert_eq!(late(&heard).await, [""; 0]);
        look(&heard, &["after"]);
        assert_eq!(late(&heard).await, ["after"]);
    }

    /// What was reported before is not known.
    #[tokio::test(start_paused = true)]
    async fn the_first_look_says_nothing() {
        let heard = Heard::default();
        look(&heard, &["a"]);
        look(&heard, &["a"]);
        heard.restart(true);
        look(&heard, &["a"]);
        assert_eq!(late(&heard).await, [""; 0]);
        look(&heard, &["a"]);
        heard.restart(true);
        assert_eq!(late(&heard).await, [""; 0]);
        look(&heard, &["a"]);
        assert_eq!(late(&heard).await, [""; 0]);
        heard.restart(false);
        look(&heard, &["a"]);
        look(&heard, &["a"]);
        assert_eq!(late(&heard).await, [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_failed_forgets_no_report() {
        let heard = listening();
        report(&heard, "a");
        heard.begin_look();
        report(&heard, "b");
        look(&heard, &["a", "b", "c"]);
        assert_eq!(late(&heard).await, ["c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_feed_with_very_many_reports_is_believed() {
        let heard = listening();
        let names: Vec<String> = (0..=REPORTED_MAX).map(|nth| nth.to_string()).collect();
        heard.report(&names);
        look(&heard, &["a"]);
        assert_eq!(late(&heard).await, [""; 0]);
        look(&heard, &["a"]);
        assert_eq!(late(&heard).await, ["a"]);
    }
}
