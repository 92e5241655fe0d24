//! Questions that a run asks beside its work: what is pending, is the filter still the same, is the feed alive.

use std::time::Duration;

use couch::Database;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::Driver;
use super::pass::Aside;
use crate::engine::context::has_after;
use crate::engine::open::fetch_filter;
use crate::error::Error;
use crate::params::Filter;

/// Questions are not worth waiting for any longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A filter function that could not be fetched so often in a row ends the run.
const FILTER_FAILURES_MAX: u32 = 10;
/// Without a limit for missing progress nothing is watched.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// What was found out.
pub(super) enum Answer {
    /// Changes after the position, out of how many that had been read then.
    Pending(Option<u64>, u64),
    Filter(Result<String, Error>),
    /// Whether the source has changes that the feed has not told, out of how many that had been read then.
    Untold(bool, u64),
}

impl<'a> Driver<'a> {
    /// Asks how many changes there are. The server counts them without any filter.
    pub(super) fn ask_pending(&self) -> BoxFuture<'a, Aside> {
        let (cx, since, read) = (self.cx, self.through.through().clone(), self.changes_read);
        Box::pin(async move {
            let pending = timeout(ANSWER_TIMEOUT, cx.source.pending(&since)).await;
            let pending = pending.ok().and_then(Result::ok).flatten();
            Aside::Answered(Answer::Pending(pending, read))
        })
    }

    /// Asks for the function of a `ddoc/name` filter.
    pub(super) fn ask_filter(&self) -> Option<BoxFuture<'a, Aside>> {
        let Filter::User {
            design_doc, name, ..
        } = &self.cx.options.filter
        else {
            return None;
        };
        let source: &Database = &self.cx.source;
        Some(Box::pin(async move {
            let code = match timeout(ANSWER_TIMEOUT, fetch_filter(source, design_doc, name)).await {
                Ok(code) => code,
                Err(_) => Err(Error::FilterFetch(
                    "filter function is not read in time".to_owned(),
                )),
            };
            Aside::Answered(Answer::Filter(code))
        }))
    }

    /// When to look whether anything moves.
    pub(super) fn next_watch(&self) -> Instant {
        Instant::now()
            + self
                .cx
                .settings
                .no_progress_timeout
                .map_or(FOREVER, |limit| limit / 4)
    }

    /// Looks whether anything moved lately. A run with something to do, and nothing moving for too long, is over. One that
    /// waits for changes asks whether there really are none.
    pub(super) fn watch(&mut self, is_idle: bool) -> Result<Option<BoxFuture<'a, Aside>>, Error> {
        let Some(limit) = self.cx.settings.no_progress_timeout else {
            return Ok(None);
        };
        let now = Instant::now();
        let moved = if is_idle {
            self.changes_read
        } else {
            self.cx.bytes_moved()
        };
        if moved != self.moved.0 {
            self.moved = (moved, now);
        }
        if now.duration_since(self.moved.1) < limit {
            return Ok(None);
        }
        if !is_idle {
            return Err(Error::NoProgress {
                seconds: limit.as_secs(),
            });
        }
        self.moved.1 = now;
        Ok(Some(self.ask_untold()))
    }

    fn ask_untold(&self) -> BoxFuture<'a, Aside> {
        let (cx, read) = (self.cx, self.changes_read);
        let since = self.through.through().clone();
        Box::pin(async move {
            let ask = has_after(&cx.source, &cx.options, &since);
            let untold = matches!(timeout(ANSWER_TIMEOUT, ask).await, Ok(Ok(true)));
            if untold {
                // The feed may be about to tell it.
                tokio::time::sleep(ANSWER_TIMEOUT).await;
            }
            Aside::Answered(Answer::Untold(untold, read))
        })
    }

    /// Takes an answer. Returns whether the filter is another one.
    pub(super) fn take_answer(&mut self, answer: Answer) -> Result<bool, Error> {
        match answer {
            Answer::Pending(pending, read) => {
                self.pending = pending.map(|pending| (pending, read));
                Ok(false)
            }
            Answer::Untold(untold, read) if untold && read == self.changes_read => {
                let limit = self.cx.settings.no_progress_timeout.unwrap_or_default();
                Err(Error::NoProgress {
                    seconds: limit.as_secs(),
                })
            }
            Answer::Untold(..) => Ok(false),
            Answer::Filter(Ok(code)) => {
                self.filter_failures = 0;
                Ok(self
                    .run
                    .filter_code
                    .as_ref()
                    .is_some_and(|known| *known != code))
            }
            Answer::Filter(Err(error)) => {
                self.filter_failures += 1;
                if self.filter_failures >= FILTER_FAILURES_MAX {
                    return Err(error);
                }
                tracing::warn!(%error, "filter function cannot be read");
                Ok(false)
            }
        }
    }
}
