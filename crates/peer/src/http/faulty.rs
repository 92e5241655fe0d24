//! Injects the faults that were drawn for a request.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderName, StatusCode};

use crate::faults::Fault;
use crate::refusal::Refusal;
use crate::reply::{self, Reply};
use crate::server::Server;

/// How often a slow body sends.
const TICK: Duration = Duration::from_millis(20);

/// How a fault ends a request.
pub(crate) enum Stop {
    Reply(Reply),
    Reset,
    /// Without an answer and without closing the connection.
    Hang,
    /// The server goes down for this long.
    Restart(Duration),
}

impl Fault {
    /// Injects what happens before a request is handled. A refusal may read part of `body`.
    pub(crate) async fn before(&self, server: &Server, body: &mut Body) -> Option<Stop> {
        match self {
            Self::Latency { ms } => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Self::ClockSkew { seconds } => server.clock.set_skew(*seconds),
            Self::Reset => return Some(Stop::Reset),
            Self::Hang => return Some(Stop::Hang),
            Self::Restart { down_ms } => {
                return Some(Stop::Restart(Duration::from_millis(*down_ms)));
            }
            Self::Status {
                status,
                retry_after,
            } => {
                let mut reply = refuse(*status);
                if let Some(text) = retry_after {
                    let seconds = text
                        .strip_prefix("date+")
                        .and_then(|seconds| seconds.parse().ok());
                    let text = seconds
                        .map_or_else(|| text.clone(), |seconds| server.clock.http_date(seconds));
                    reply::set(&mut reply, &RETRY_AFTER, &text);
                }
                return Some(Stop::Reply(reply));
            }
            Self::Answer {
                status,
                headers,
                body,
            } => {
                let status =
                    StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let mut reply = reply::build(status, "text/plain", Body::from(body.clone()));
                for (name, value) in headers {
                    if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                        reply::set(&mut reply, &name, value);
                    }
                }
                return Some(Stop::Reply(reply));
            }
            Self::RefuseEarly {
                status,
                after_bytes,
            } => {
                let mut stream = std::mem::take(body).into_data_stream();
                let mut read = 0;
                while read < *after_bytes
                    && let Some(Ok(chunk)) = stream.next().await
                {
                    read += chunk.len() as u64;
                }
                return Some(Stop::Reply(reply::with(
                    refuse(*status),
                    &CONNECTION,
                    "close",
                )));
            }
            _ => {}
        }
        None
    }

    /// Injects what happens to an answer; `None` if it is lost.
    pub(crate) async fn after(&self, reply: Reply) -> Option<Reply> {
        let (mut head, body) = reply.into_parts();
        let body = match *self {
            Self::LoseAnswer => return None,
            Self::CutBody { after_bytes } => {
                let cut = Err(io::Error::other("cut by a fault"));
                Body::from_stream(take(body, after_bytes).map(Ok).chain(stream::iter([cut])))
            }
            Self::TruncateBody { after_bytes } => {
                head.headers.remove(CONTENT_LENGTH);
                Body::from_stream(take(body, after_bytes).map(Ok::<_, Infallible>))
            }
            Self::SlowBody { bytes_per_second } => {
                let piece = usize::try_from(bytes_per_second * 20 / 1000)
                    .unwrap_or(usize::MAX)
                    .max(1);
                Body::from_stream(split(body, piece).then(|piece| async {
                    tokio::time::sleep(TICK).await;
                    Ok::<_, Infallible>(piece)
                }))
            }
            Self::Dribble => Body::from_stream(split(body, 1).then(|piece| async {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(piece)
            })),
            // A feed has no length to falsify.
            Self::DeclareLength { by }
                if body.size_hint().exact().is_some()
                    || head.headers.contains_key(CONTENT_LENGTH) =>
            {
                let whole: Vec<Bytes> = data(body).collect().await;
                let length: usize = whole.iter().map(Bytes::len).sum();
                let declared =
                    usize::try_from(i64::try_from(length).unwrap_or(i64::MAX).saturating_add(by));
                head.headers
                    .insert(CONTENT_LENGTH, declared.unwrap_or(0).into());
                Body::from_stream(stream::iter(whole).map(Ok::<_, Infallible>))
            }
            Self::EndlessBody => {
                head.headers.remove(CONTENT_LENGTH);
                let blanks = Bytes::from(vec![b' '; 16 * 1024]);
                Body::from_stream(
                    data(body)
                        .chain(stream::repeat(blanks))
                        .map(Ok::<_, Infallible>),
                )
            }
            _ => body,
        };
        Some(Reply::from_parts(head, body))
    }
}

fn refuse(status: u16) -> Reply {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let (error, reason) = match status.as_u16() {
        413 => ("too_large", "the request entity is too large"),
        429 => (
            "too_many_requests",
            "You've exceeded your current limit of requests per second.",
        ),
        500 => ("internal_server_error", "No DB shards could be opened."),
        503 => (
            "service unavailable",
            "Nodes are unable to service this request due to overloading or maintenance mode.",
        ),
        _ => ("fault", "injected"),
    };
    Refusal::new(status, error, reason).into()
}

fn data(body: Body) -> impl Stream<Item = Bytes> {
    body.into_data_stream()
        .filter_map(|piece| async { piece.ok() })
}

/// The first bytes of a body, followed by a regular end.
fn take(body: Body, bytes: usize) -> impl Stream<Item = Bytes> {
    stream::unfold(
        (Box::pin(data(body)), bytes),
        |(mut pieces, left)| async move {
            if left == 0 {
                return None;
            }
            let mut piece = pieces.next().await?;
            piece.truncate(left);
            let left = left - piece.len();
            Some((piece, (pieces, left)))
        },
    )
}

/// A body in pieces of one size.
fn split(body: Body, bytes: usize) -> impl Stream<Item = Bytes> {
    data(body).flat_map(move |piece| {
        stream::unfold(piece, move |mut rest| async move {
            if rest.is_empty() {
                return None;
            }
            let next = rest.split_to(bytes.min(rest.len()));
            Some((next, rest))
        })
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_cut_does_not_wait_for_what_is_cut_off() {
        let piece = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"0123456789"))]);
        let body = Body::from_stream(piece.chain(stream::pending()));
        let mut taken = Box::pin(take(body, 3));
        assert_eq!(
            taken.next().now_or_never(),
            Some(Some(Bytes::from_static(b"012")))
        );
        assert_eq!(taken.next().now_or_never(), Some(None));
    }
}
