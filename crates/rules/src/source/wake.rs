//! Does what updates of databases ask for, in as few transactions as possible.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use scheduler::ServiceError;
use store::{Call, Transaction};
use tokio::time::Instant;

use super::follower::{Follower, WAKES, wake_all};
use super::metrics;
use super::position::Position;
use super::reactions::{REACTIONS, Reaction, portions};
use super::seed::known_after;
use crate::rule::Event;

/// A position that woke nothing is saved after this time at the latest.
const SAVE_PAUSE: Duration = Duration::from_secs(5);
/// How often work is tried as a whole after conflicts, and into how many parts it is split then.
const RETRIES: u32 = 1;
const PARTS: usize = 8;
/// Databases of one transaction. Runs that it signals end all the time, and about more of them it would often start over.
const NAMES: usize = 100;

/// Databases whose sleepers are to be woken, and what rules ask for.
#[derive(Clone, Copy, Default)]
struct Work<'a> {
    names: &'a [&'a str],
    reactions: &'a [Reaction],
    /// Reactions that are all done after this, so that their databases are recorded as known.
    seen: &'a [Reaction],
}

impl<'a> Work<'a> {
    /// Parts whose order does not matter.
    fn parts(self) -> impl Iterator<Item = Self> + use<'a> {
        let size = |all: usize| all.div_ceil(PARTS).max(1);
        let names = self.names.chunks(size(self.names.len()));
        let reactions = self.reactions.chunks(size(self.reactions.len()));
        let names = names.map(|names| Self {
            names,
            ..Self::default()
        });
        names.chain(reactions.map(|reactions| Self {
            reactions,
            ..Self::default()
        }))
    }

    fn is_one(self) -> bool {
        self.names.len() + self.reactions.len() <= 1
    }

    fn call(self) -> Call {
        let call = Call::new("follow");
        if self.is_one() {
            call
        } else {
            call.contention_max(RETRIES)
        }
    }
}

impl Follower<'_> {
    /// Wakes what sleeps on databases and does what rules ask for, and saves the position with the last of it.
    ///
    /// Holders change their jobs all the time, so that a transaction about many of them may always conflict. It is
    /// split then: a busy job does not hold up the others.
    pub(super) async fn wake(
        &mut self,
        databases: &BTreeMap<String, Event>,
    ) -> Result<(), ServiceError> {
        let set = self.book.current().await?;
        let now_ms = self.task.jobs().clock().now_ms();
        let reactions = self.reactions.for_all(&set, databases, now_ms);
        let must_save = self.saved.elapsed() >= SAVE_PAUSE;
        if (self.task.jobs().planted()).is(jobs::Bug::CursorSavedFirst) {
            self.save().await?;
        }
        let names: Vec<&str> = databases.keys().map(String::as_str).collect();
        let (many, few) = if portions(&reactions).count() > 1 {
            (&*reactions, &[][..])
        } else {
            (&[][..], &*reactions)
        };
        self.react_to_many(many).await?;
        let (first, names) = all_but_last(&names, NAMES);
        let mut before = 0;
        for names in first {
            let work = Work {
                names,
                ..Work::default()
            };
            before += self.in_parts_if_contended(work).await?;
        }
        let work = Work {
            names,
            reactions: few,
            seen: few,
        };
        let position = Position {
            woken: self.position.woken + before,
            ..self.position.clone()
        };
        let must_save = must_save || before > 0 || !many.is_empty();
        let woken = match self.at_once(work, Some((&position, must_save))).await {
            Err(error) if error.is_contended() => {
                let woken = self.in_parts(work).await?;
                let position = Position {
                    woken: position.woken + woken,
                    ..position
                };
                let rest = Work {
                    seen: few,
                    ..Work::default()
                };
                self.at_once(rest, Some((&position, true))).await?;
                woken
            }
            woken => woken?,
        } + before;
        if woken > 0 || must_save || !few.is_empty() {
            self.saved = Instant::now();
        }
        if woken > 0 {
            self.position.woken += woken;
            metrics::woken(self.source.name(), woken);
        }
        metrics::handled(self.source.name(), now_ms);
        Ok(())
    }

    /// Takes all databases for changed: what changed before the feed was opened is in no feed, and the server does not tell.
    pub(super) async fn take_all_for_changed(&mut self) -> Result<(), ServiceError> {
        wake_all(self.replications, self.server()).await?;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (names, next) = known_after(self.book, self.source, after.as_deref()).await?;
            let updated = names.into_iter().map(|name| (name, Event::Updated));
            self.wake(&updated.collect()).await?;
            if next.is_none() {
                self.position.unswept = false;
                return self.save().await;
            }
            after = next;
        }
    }

    /// Does what rules ask for in several transactions.
    async fn react_to_many(&self, all: &[Reaction]) -> Result<(), ServiceError> {
        for reactions in portions(all) {
            let work = Work {
                reactions,
                ..Work::default()
            };
            self.in_parts_if_contended(work).await?;
        }
        // A database that was known before all of them were done would not be new to the other rules.
        for seen in all.chunks(REACTIONS) {
            let work = Work {
                seen,
                ..Work::default()
            };
            self.at_once(work, None).await?;
        }
        Ok(())
    }

    async fn in_parts_if_contended(&self, work: Work<'_>) -> Result<u64, ServiceError> {
        match self.at_once(work, None).await {
            Err(error) if error.is_contended() && !work.is_one() => self.in_parts(work).await,
            done => done,
        }
    }

    fn in_parts<'a>(&'a self, work: Work<'a>) -> BoxFuture<'a, Result<u64, ServiceError>> {
        Box::pin(async move {
            let parts = work.parts().map(|part| self.in_parts_if_contended(part));
            Ok(try_join_all(parts).await?.into_iter().sum())
        })
    }

    /// Does some work, and saves a position if it must be or if there was something to do. Returns how many jobs were woken.
    async fn at_once(
        &self,
        work: Work<'_>,
        position: Option<(&Position, bool)>,
    ) -> Result<u64, ServiceError> {
        let (book, task, server) = (self.book, self.task, self.server());
        let mut before = 0;
        loop {
            let op = task.jobs().op();
            let follow = |tx: Transaction| async move {
                let tx = &tx;
                let woken = (book.replications)
                    .wake_in(tx, &op, server, work.names, WAKES)
                    .await?;
                if woken == WAKES {
                    return Ok(woken);
                }
                book.react_in(tx, &op, self.source, work.reactions).await?;
                book.see_in(tx, self.source, work.seen).await?;
                let all = before + woken as u64;
                if let Some((position, must_save)) = position
                    && (must_save || all > 0 || !work.reactions.is_empty())
                {
                    let position = Position {
                        woken: position.woken + all,
                        at_ms: op.now_ms,
                        ..position.clone()
                    };
                    let (jobs, job) = (task.jobs(), task.job());
                    // After a repeated commit there is nothing left to do.
                    let _repeated = jobs
                        .update_in(tx, &op, job, Some(jobs::encode(&position)?))
                        .await?;
                }
                Ok::<_, ServiceError>(woken)
            };
            let woken = (task.jobs().store()).transact(work.call(), follow).await?;
            before += woken as u64;
            if woken < WAKES {
                return Ok(before);
            }
        }
    }
}

/// The items in chunks, and apart from these the last chunk.
fn all_but_last<T>(items: &[T], size: usize) -> (std::slice::Chunks<'_, T>, &[T]) {
    let (first, last) = items.split_at(items.len().saturating_sub(1) / size * size);
    (first.chunks(size), last)
}
