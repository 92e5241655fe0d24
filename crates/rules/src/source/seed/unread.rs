//! Databases whose sequences a server does not tell together with those of others.
//!
//! The look that comes across them goes on without them. Each is asked for by itself, at once and then after longer and
//! longer pauses, until it can be read or is missing.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use couch::{Seq, Server};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use scheduler::ServiceError;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::again::compare;
use super::rows::{forget, row};
use crate::rule::RuleId;
use crate::source::reactions::Reactions;
use crate::source::sweep::{ANSWER_MAX, ASKED_AT_ONCE};

/// After one failure, and the maximum after many.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_hours(1));
/// How long a look waits until databases have been asked for the first time, and how often it looks.
const FIRST_MAX: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// At most this many are remembered. The next look finds the others again.
const UNREAD_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Unread {
    state: Mutex<State>,
    added: Notify,
}

#[derive(Default)]
struct State {
    all: HashMap<String, One>,
    /// Those whose turn is [`Turn::Next`], and others that were removed.
    next: VecDeque<String>,
    /// Those whose turn is [`Turn::At`].
    later: BTreeSet<(Instant, String)>,
    /// One has been read, and its jobs are being written.
    busy: bool,
}

struct One {
    /// The rules to which the database is new.
    new: HashSet<RuleId>,
    failures: u32,
    turn: Turn,
}

/// When a database is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Before those that have failed.
    Next,
    At(Instant),
    /// It was asked for, and has not answered yet.
    Now,
}

impl State {
    /// Up to this many whose turn it is.
    fn take(&mut self, count: usize) -> Vec<String> {
        let (mut names, now) = (Vec::new(), Instant::now());
        while names.len() < count {
            let (name, turn) = if let Some(name) = self.next.pop_front() {
                (name, Turn::Next)
            } else if self.later.first().is_some_and(|(at, _)| *at <= now) {
                let (at, name) = self.later.pop_first().expect("there is one");
                (name, Turn::At(at))
            } else {
                break;
            };
            if let Some(one) = self.all.get_mut(&name).filter(|one| one.turn == turn) {
                one.turn = Turn::Now;
                names.push(name);
            }
        }
        names
    }
}

impl Unread {
    /// A look for the databases of new rules has come across this one, which is new to some of them.
    pub(super) fn add(&self, name: &str, new: HashSet<RuleId>) {
        let state = &mut *self.state();
        if state.all.len() >= UNREAD_MAX && !state.all.contains_key(name) {
            return;
        }
        let one = state.all.entry(name.to_owned()).or_insert_with(|| One {
            new: HashSet::new(),
            failures: 0,
            turn: Turn::At(Instant::now()),
        });
        one.new.extend(new);
        if let Turn::At(at) = one.turn {
            (one.failures, one.turn) = (0, Turn::Next);
            state.later.remove(&(at, name.to_owned()));
            state.next.push_back(name.to_owned());
            self.added.notify_one();
        }
    }

    /// Remembers a database that rules have looked at and whose sequence the server does not give.
    pub(super) fn keep(&self, name: &str) {
        let is_known = self.state().all.contains_key(name);
        if !is_known {
            self.add(name, HashSet::new());
        }
    }

    /// It has been read, or is missing. Returns the rules to which it is new.
    pub(super) fn remove(&self, name: &str) -> HashSet<RuleId> {
        let state = &mut *self.state();
        let Some(one) = state.all.remove(name) else {
            return HashSet::new();
        };
        if let Turn::At(at) = one.turn {
            state.later.remove(&(at, name.to_owned()));
        }
        one.new
    }

    fn failed(&self, name: String) {
        let state = &mut *self.state();
        if let Some(one) = state.all.get_mut(&name)
            && one.turn == Turn::Now
        {
            one.failures = one.failures.saturating_add(1);
            let (first, max) = PAUSES;
            let pause = first * 2_u32.pow((one.failures - 1).min(16));
            let at = Instant::now() + pause.min(max);
            one.turn = Turn::At(at);
            state.later.insert((at, name));
        }
    }

    /// Waits until each of these has been asked for, if that is soon: then rules have their jobs about those that could be
    /// read.
    pub(super) async fn asked(&self, names: &[String]) {
        let asked = async {
            loop {
                let is_new = {
                    let state = self.state();
                    let is_new = |name| state.all.get(name).is_some_and(|one| one.failures == 0);
                    state.busy || names.iter().any(is_new)
                };
                if !is_new {
                    return;
                }
                sleep(FIRST_PAUSE).await;
            }
        };
        // Others follow.
        let _ = timeout(FIRST_MAX, asked).await;
    }

    /// Waits until it may be the turn of more.
    async fn more(&self) {
        let first = self.state().later.first().map(|(at, _)| *at);
        let due = async {
            match first {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.added.notified() => {}
            () = due => {}
        }
    }

    /// Asks for each by itself, forever.
    pub(super) async fn ask_forever(
        &self,
        reactions: &Reactions<'_>,
        connection: &Server,
    ) -> ServiceError {
        let (mut asked, mut has_warned) = (FuturesUnordered::new(), false);
        loop {
            let names = self.state().take(ASKED_AT_ONCE - asked.len());
            asked.extend(names.into_iter().map(|name| async move {
                let answer = timeout(ANSWER_MAX, connection.update_seq(&name)).await;
                (name, answer)
            }));
            let (name, answer) = tokio::select! {
                Some(answer) = asked.next() => answer,
                () = self.more(), if asked.len() < ASKED_AT_ONCE => continue,
            };
            let error = match answer {
                Ok(Ok(seq)) => {
                    self.state().busy = true;
                    let answered = self.answered(reactions, &name, seq.as_ref()).await;
                    self.state().busy = false;
                    if let Err(error) = answered {
                        return error;
                    }
                    has_warned &= !self.state().all.is_empty();
                    continue;
                }
                Ok(Err(error)) => wire::chain(&error),
                Err(late) => wire::chain(&late),
            };
            if !has_warned {
                tracing::warn!(
                    source = reactions.source.name(),
                    database = name,
                    error,
                    "cannot read a database that rules are about"
                );
                has_warned = true;
            }
            self.failed(name);
        }
    }

    async fn answered(
        &self,
        reactions: &Reactions<'_>,
        name: &str,
        seq: Option<&Seq>,
    ) -> Result<(), ServiceError> {
        let (book, server) = (reactions.book, reactions.source.server().url_text());
        let new = self.remove(name);
        let Some(seq) = seq else {
            return forget(book, server, name).await;
        };
        let (set, row) = (book.current().await?, row(book, server, name).await?);
        compare(reactions, &set, name, row.as_ref(), &new, seq).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn taken(unread: &Unread) -> Vec<String> {
        unread.state().take(ASKED_AT_ONCE)
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_a_rule_is_written() {
        let unread = Unread::default();
        unread.keep("a");
        for pause in [5_000, 10_000, 20_000] {
            assert_eq!(taken(&unread), ["a"]);
            assert_eq!(taken(&unread), [""; 0]);
            unread.failed("a".to_owned());
            advance(Duration::from_millis(pause - 1)).await;
            unread.keep("a");
            assert_eq!(taken(&unread), [""; 0]);
            advance(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            assert_eq!(taken(&unread), ["a"]);
            unread.failed("a".to_owned());
            advance(PAUSES.1).await;
        }
        assert_eq!(taken(&unread), ["a"]);
        unread.failed("a".to_owned());
        unread.add("a", HashSet::new());
        assert_eq!(taken(&unread), ["a"]);
        unread.failed("a".to_owned());
        advance(PAUSES.0).await;
        assert_eq!(taken(&unread), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_failed_come_last() {
        let unread = Unread::default();
        unread.keep("a");
        assert_eq!(taken(&unread), ["a"]);
        unread.failed("a".to_owned());
        advance(PAUSES.0).await;
        unread.keep("b");
        assert_eq!(unread.state().take(1), ["b"]);
        assert_eq!(unread.state().take(1), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_removed_is_not_asked_for() {
        let unread = Unread::default();
        for name in ["a", "b", "c"] {
            unread.keep(name);
        }
        unread.remove("a");
        assert_eq!(unread.state().take(1), ["b"]);
        unread.failed("b".to_owned());
        unread.remove("b");
        unread.keep("a");
        unread.remove("c");
        unread.failed("c".to_owned());
        advance(PAUSES.1).await;
        assert_eq!(taken(&unread), ["a"]);
        assert_eq!(taken(&unread), [""; 0]);
    }
}
