//! Copies single revisions: design documents, large attachments, and what bulk requests could not copy.

use std::time::Duration;

use couch::{Attachments, DocId, Document, Rev, Revision, WantedRevs};
use tokio::time::sleep;

use super::attachments::inline_count;
use super::context::Context;
use crate::error::{Error, Step};
use crate::metrics;

const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// A write that is refused this often, each time with other credentials, is refused for good: a server that restarts may
/// refuse new ones, too.
const REFUSALS_MAX: u32 = 3;

/// A revision to copy.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) id: DocId,
    pub(super) rev: Rev,
    /// The ancestors that the target has.
    pub(super) ancestors: Vec<Rev>,
    /// Whether it is one of several leaves, none of which the target has.
    pub(super) is_one_of_all: bool,
}

/// The result of copying one revision.
enum Copied {
    /// The revision is on the target, or was skipped.
    Done,
    /// It has no attachments after all and can be written in bulk.
    Plain(Document),
    /// The source lacks it, or the target lacks attachments that it should have: retry with all attachments.
    Incomplete,
}

/// Copies a revision. A document without attachments is returned, to be written in bulk.
pub(super) async fn copy(cx: &Context, mut wanted: Wanted) -> Result<Option<Document>, Error> {
    let mut incomplete = false;
    let mut attempts = 0;
    let mut refusals = 0;
    let mut wait = FIRST_WAIT;
    loop {
        let is_last = refusals + 1 == REFUSALS_MAX;
        let error = match attempt(cx, &wanted, is_last).await {
            Ok(Copied::Done) => return Ok(None),
            Ok(Copied::Plain(document)) => return Ok(Some(document)),
            Ok(Copied::Incomplete) if !incomplete => {
                tracing::info!(doc.id = %wanted.id, "revision or attachments are missing, fetching it again");
                incomplete = true;
                wanted.ancestors.clear();
                sleep(cx.settings.missing_doc_retry).await;
                continue;
            }
            Ok(Copied::Incomplete) => None,
            Err(Failed::Fatal(error)) => return Err(error),
            // The next request waits for as long as the target asks.
            Err(Failed::Passing(couch::Error::Failed {
                cause: couch::Failure::Limited(_),
                ..
            })) => continue,
            // The next request has a new session or token.
            Err(Failed::Passing(couch::Error::Failed {
                cause: couch::Failure::Expired(_),
                ..
            })) => {
                refusals += 1;
                continue;
            }
            Err(Failed::Passing(error)) => Some(error),
        };
        attempts += 1;
        if attempts > cx.options.retries_per_request {
            return Err(match error {
                Some(cause) => Error::Step {
                    step: Step::OpenRevs,
                    cause,
                },
                None => Error::Missing {
                    id: wanted.id.to_string(),
                    rev: wanted.rev.to_string(),
                },
            });
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

enum Failed {
    /// Ends the run.
    Fatal(Error),
    /// Fetching the revision again may help.
    Passing(couch::Error),
}

/// With `is_last`, a document that is refused is not sent again with other credentials.
async fn attempt(cx: &Context, wanted: &Wanted, is_last: bool) -> Result<Copied, Failed> {
    let revs = [wanted.rev.clone()];
    let mut revisions = cx
        .source
        .open_revs(&wanted.id, WantedRevs::These(&revs), &wanted.ancestors)
        .await
        .map_err(from_source)?;
    let mut copied = Copied::Incomplete;
    // A revision may have become several leaves since.
    while let Some(revision) = revisions.next().await.map_err(from_source)? {
        let document = match revision {
            Revision::Missing(_) => return Ok(Copied::Incomplete),
            Revision::Document(document) => document,
        };
        let is_dropped = cx.is_late_deletion(&document, &wanted.rev)
            || !cx.admits(&document).await.map_err(Failed::Fatal)?;
        if is_dropped {
            cx.count(|stats| stats.docs_filtered += 1);
            copied = Copied::Done;
            continue;
        }
        let is_plain = !document.has_attachments() && !document.id.is_design();
        if is_plain && matches!(copied, Copied::Incomplete) {
            copied = Copied::Plain(document);
            continue;
        }
        let put = cx
            .target
            .put_with_attachments(&document, &mut revisions)
            .await;
        if !settle(cx, &document, put, is_last)? {
            return Ok(Copied::Incomplete);
        }
        if !matches!(copied, Copied::Plain(_)) {
            copied = Copied::Done;
        }
    }
    Ok(copied)
}

/// Interprets the result of a write. Returns false if the target lacks attachments.
fn settle(
    cx: &Context,
    document: &Document,
    put: Result<(), couch::Error>,
    is_last: bool,
) -> Result<bool, Failed> {
    let error = match put {
        Ok(()) => {
            let attachments = match &document.attachments {
                Attachments::Following(following) => following.len() as u64,
                Attachments::Inline => inline_count(document),
                Attachments::None | Attachments::Stubs => 0,
            };
            cx.count(|stats| {
                stats.docs_read += 1;
                metrics::docs_written(1);
                stats.docs_written += 1;
                stats.attachments_copied += attachments;
            });
            return Ok(true);
        }
        Err(couch::Error::MissingStub(_)) => return Ok(false),
        Err(error) => error,
    };
    let is_from_target = error
        .request()
        .is_some_and(|request| request.method == "PUT");
    if !is_from_target {
        return Err(from_source(error));
    }
    match refusal(&error, is_last) {
        Some((name, reason)) => {
            cx.count(|stats| stats.docs_read += 1);
            cx.fail_doc(&document.id, document.rev.as_ref(), name, &reason)
                .map_err(Failed::Fatal)?;
            Ok(true)
        }
        None if is_passing(&error) => Err(Failed::Passing(error)),
        None => Err(Failed::Fatal(Error::at(Step::PutDoc)(error))),
    }
}

/// A document that the target rejects for good; the replication continues without it.
fn refusal(error: &couch::Error, is_last: bool) -> Option<(&'static str, String)> {
    let answer = error.answer()?;
    let reason = answer.reason.clone().unwrap_or_default();
    let name = match error {
        couch::Error::Unauthorized(_) => "unauthorized",
        couch::Error::Forbidden(_) => "forbidden",
        couch::Error::Failed {
            cause: couch::Failure::Expired(answer),
            ..
        } if is_last => match answer.status {
            401 => "unauthorized",
            _ => "forbidden",
        },
        couch::Error::TooLarge(_) => "request_entity_too_large",
        couch::Error::Refused(answer) if answer.status == 415 => "unsupported_media_type",
        couch::Error::Refused(answer)
            if answer.status == 400 && reason.starts_with("Attachment name ") =>
        {
            "invalid_attachment_name"
        }
        _ => return None,
    };
    Some((name, reason))
}

/// Errors that a retry may resolve. A request that was already retried will not.
fn is_passing(error: &couch::Error) -> bool {
    matches!(
        error,
        couch::Error::Interrupted { .. }
            | couch::Error::BadAnswer { .. }
            | couch::Error::Failed {
                attempts: 0 | 1,
                ..
            }
    )
}

/// Errors of the source may be temporary, unless they concern more than this document.
fn from_source(error: couch::Error) -> Failed {
    let is_passing = is_passing(&error)
        || matches!(
            error,
            couch::Error::Refused(_)
                | couch::Error::NotFound(_)
                | couch::Error::Unauthorized(_)
                | couch::Error::Forbidden(_)
                | couch::Error::Conflict(_)
        );
    if is_passing {
        Failed::Passing(error)
    } else {
        Failed::Fatal(Error::at(Step::OpenRevs)(error))
    }
}
