//! Checks that run beside the copying: what is pending, whether the filter changed, whether the feed is alive.

use std::time::Duration;

use couch::Database;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::Driver;
use super::pass::Aside;
use crate::engine::context::fewer_after;
use crate::engine::open::fetch_filter;
use crate::error::Error;
use crate::params::Filter;

/// Time limit of a check.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// After this many failures in a row to fetch the filter function, the run fails.
const FILTER_FAILURES_MAX: u32 = 10;
/// Used if there is no limit for missing progress.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// The result of a check.
pub(super) enum Answer {
    /// Changes after the position, and the number read by then.
    Pending(Option<u64>, u64),
    /// `None` if it took too long: the connections may be busy with documents.
    Filter(Option<Result<String, Error>>),
    /// Whether the source has changes that the feed has not sent, and the number read by then.
    Missed(bool, u64),
}

impl<'a> Driver<'a> {
    /// Asks for the number of pending changes. The server ignores filters in it.
    pub(super) fn ask_pending(&self) -> BoxFuture<'a, Aside> {
        let (cx, since, read) = (self.cx, self.through.through().clone(), self.changes_read);
        Box::pin(async move {
            let pending = timeout(ANSWER_TIMEOUT, cx.source.pending(&since)).await;
            let pending = pending.ok().and_then(Result::ok).flatten();
            Aside::Answered(Answer::Pending(pending, read))
        })
    }

    /// Fetches the function of a `ddoc/name` filter.
    pub(super) fn ask_filter(&self) -> Option<BoxFuture<'a, Aside>> {
        let Filter::User {
            design_doc, name, ..
        } = &self.cx.options.filter
        else {
            return None;
        };
        let source: &Database = &self.cx.source;
        Some(Box::pin(async move {
            let code = timeout(ANSWER_TIMEOUT, fetch_filter(source, design_doc, name)).await;
            Aside::Answered(Answer::Filter(code.ok()))
        }))
    }

    /// When to check progress.
    pub(super) fn next_watch(&self) -> Instant {
        Instant::now()
            + self
                .cx
                .settings
                .no_progress_timeout
                .map_or(FOREVER, |limit| limit / 4)
    }

    /// Checks for recent progress. A run with pending changes and no progress for too long fails. One that waits for
    /// changes asks whether there really are none.
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
        Ok(Some(self.ask_missed()))
    }

    fn ask_missed(&self) -> BoxFuture<'a, Aside> {
        let (cx, read) = (self.cx, self.changes_read);
        let since = self.through.through().clone();
        Box::pin(async move {
            let ask = fewer_after(&cx.source, &cx.options, &since, 1);
            let missed = matches!(timeout(ANSWER_TIMEOUT, ask).await, Ok(Ok(None)));
            if missed {
                // The feed may be about to send it.
                tokio::time::sleep(ANSWER_TIMEOUT).await;
            }
            Aside::Answered(Answer::Missed(missed, read))
        })
    }

    /// Processes a result. Returns whether the filter has changed.
    pub(super) fn take_answer(&mut self, answer: Answer) -> Result<bool, Error> {
        match answer {
            Answer::Pending(pending, read) => {
                self.pending = pending.map(|pending| (pending, read));
                Ok(false)
            }
            Answer::Missed(missed, read) if missed && read == self.changes_read => {
                let limit = self.cx.settings.no_progress_timeout.unwrap_or_default();
                Err(Error::NoProgress {
                    seconds: limit.as_secs(),
                })
            }
            Answer::Missed(..) => Ok(false),
            Answer::Filter(None) => {
                tracing::debug!("timed out reading the filter function");
                Ok(false)
            }
            Answer::Filter(Some(Ok(code))) => {
                self.filter_failures = 0;
                Ok(self
                    .run
                    .filter_code
                    .as_ref()
                    .is_some_and(|known| *known != code))
            }
            Answer::Filter(Some(Err(error))) => {
                self.filter_failures += 1;
                if self.filter_failures >= FILTER_FAILURES_MAX {
                    return Err(error);
                }
                tracing::warn!(%error, "cannot read the filter function");
                Ok(false)
            }
        }
    }
}
