//! Enforces a minimum rate and a maximum size of request bodies. Only time spent waiting for the client counts: a body
//! that is read slowly here is not slow.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Error;

/// Time before the rate is checked.
const GRACE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GivenUp {
    #[error("the body arrives too slowly")]
    TooSlow,
    #[error("the body is too large")]
    TooLarge,
}

/// The error for a client whose body could not be read.
pub(crate) fn refusal(error: axum::Error) -> Error {
    match error.into_inner().downcast_ref() {
        Some(GivenUp::TooSlow) => {
            let reason = "The request body arrives too slowly.";
            Error::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason)
        }
        Some(GivenUp::TooLarge) => Error::too_large("the request entity is too large"),
        None => Error::bad_request("The request ended early."),
    }
}

/// Fails a body that arrives at less than `bytes_per_sec`, unless that is 0, or is larger than `bytes_max`.
pub(crate) fn paced(body: Body, bytes_per_sec: u64, bytes_max: usize) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(Paced {
        body,
        bytes_per_sec,
        bytes_max: bytes_max as u64,
        bytes: 0,
        waited: Duration::ZERO,
        waiting: None,
    })
}

struct Paced {
    body: Body,
    bytes_per_sec: u64,
    bytes_max: u64,
    bytes: u64,
    /// Time spent waiting before.
    waited: Duration,
    /// When the current wait began, and when it times out.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Paced {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(earned) = self.bytes.checked_div(self.bytes_per_sec) else {
            return Poll::Pending;
        };
        let allowed = GRACE + Duration::from_secs(earned);
        let left = allowed.saturating_sub(self.waited);
        let (_, late) = self.waiting.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(now + left)))
        });
        late.as_mut().poll(cx)
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.poll_late(cx));
            return Poll::Ready(Some(Err(GivenUp::TooSlow.into())));
        };
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        if let Some(Ok(frame)) = &frame {
            self.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        if self.bytes > self.bytes_max {
            return Poll::Ready(Some(Err(GivenUp::TooLarge.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::into_inner)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
