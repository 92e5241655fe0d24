//! The response with claimed jobs. They go back if it cannot be sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::StatusCode;
use hyper::body::{Frame, SizeHint};
use queue::{Claimed, Given, Raw};
use serde::Serialize;

use super::time;
use crate::reply::{self, Reply};

/// A claimed job, as workers see it.
#[derive(Serialize)]
pub(super) struct Job<'a> {
    id: &'a str,
    lock: &'a str,
    attempt: u32,
    data: &'a Raw,
    deadline: String,
    failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Raw>,
}

impl<'a> Job<'a> {
    pub(super) fn all(claimed: &'a Claimed) -> Vec<Self> {
        let job = |given: &'a Given| Job {
            id: &given.id,
            lock: &given.lock,
            attempt: given.attempt,
            data: &given.envelope.data,
            deadline: time(given.deadline_ms),
            failures: given.failures,
            progress: given.envelope.progress.as_ref(),
        };
        claimed.jobs.iter().map(job).collect()
    }
}

/// A body that keeps the jobs until the connection takes it.
struct Sending {
    text: Bytes,
    claimed: Option<Claimed>,
}

/// 200, with JSON that tells a worker of these jobs.
pub(super) fn reply(mut json: String, claimed: Claimed) -> Reply {
    json.push('\n');
    let sending = Sending {
        text: json.into(),
        claimed: Some(claimed),
    };
    reply::body(StatusCode::OK, "application/json", Body::new(sending))
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(claimed) = self.claimed.take() else {
            return Poll::Ready(None);
        };
        claimed.sent();
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.text)))))
    }

    fn is_end_stream(&self) -> bool {
        self.claimed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.len() as u64)
    }
}
