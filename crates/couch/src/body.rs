//! Bodies of answers, as they arrive.

mod gzip;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use crate::error::{Failure, chain};
use crate::traffic::Counters;
use crate::types::millis;
use gzip::Gunzip;

/// When a request as a whole must be done, and how long that was.
pub(crate) type Deadline = Option<(Instant, u64)>;

/// A body being read. Each wait for bytes has a time-out of its own, so that a reader who pauses
/// is not taken for a server that does.
pub(crate) struct BodyReader {
    /// `None` when there is nothing left to read, or nothing more to hope for.
    incoming: Option<Incoming>,
    gunzip: Option<Gunzip>,
    idle: Duration,
    deadline: Deadline,
    counters: Arc<Counters>,
}

impl BodyReader {
    pub(crate) fn new(
        incoming: Incoming,
        is_gzip: bool,
        idle: Duration,
        deadline: Deadline,
        counters: Arc<Counters>,
    ) -> Self {
        let gunzip = is_gzip.then(Gunzip::new);
        Self {
            incoming: Some(incoming),
            gunzip,
            idle,
            deadline,
            counters,
        }
    }

    /// The next bytes, `None` at the end. May be cancelled and called again.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let not_gzip = |error| Failure::BadAnswer(format!("its gzip is damaged: {error}"));
        loop {
            if let Some(gunzip) = &mut self.gunzip
                && let Some(chunk) = gunzip.next_chunk().map_err(not_gzip)?
            {
                return Ok(Some(chunk));
            }
            match (self.receive().await?, &mut self.gunzip) {
                (Some(chunk), None) => return Ok(Some(chunk)),
                (Some(chunk), Some(gunzip)) => gunzip.feed(chunk),
                (None, None) => return Ok(None),
                (None, Some(gunzip)) => {
                    let last = gunzip.finish().map_err(not_gzip);
                    self.gunzip = None;
                    return last;
                }
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let Some(incoming) = &mut self.incoming else {
                return Ok(None);
            };
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx));
            let idle_until = Instant::now() + self.idle;
            let until = self
                .deadline
                .map_or(idle_until, |(at, _)| at.min(idle_until));
            match tokio::time::timeout_at(until, frame).await {
                Ok(Some(Ok(frame))) => {
                    // Trailers say nothing that we want to know.
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    self.counters.read(data.len());
                    if !data.is_empty() {
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(error))) => {
                    self.incoming = None;
                    return Err(Failure::Connection(chain(&error)));
                }
                Ok(None) => {
                    self.incoming = None;
                    return Ok(None);
                }
                Err(_) => {
                    self.incoming = None;
                    return Err(match self.deadline {
                        Some((at, total_ms)) if at == until => Failure::RequestTimeout { total_ms },
                        _ => Failure::ReadTimeout {
                            idle_ms: millis(self.idle),
                        },
                    });
                }
            }
        }
    }

    /// The whole rest of the body, if it has at most `bytes_max` bytes.
    pub(crate) async fn collect(&mut self, bytes_max: usize) -> Result<Bytes, Failure> {
        let Some(first) = self.chunk().await? else {
            return Ok(Bytes::new());
        };
        let mut length = first.len();
        let mut joined: Option<BytesMut> = None;
        loop {
            if length > bytes_max {
                return Err(Failure::BadAnswer(format!(
                    "it has more than {bytes_max} bytes"
                )));
            }
            let Some(chunk) = self.chunk().await? else {
                break;
            };
            length += chunk.len();
            joined
                .get_or_insert_with(|| BytesMut::from(&first[..]))
                .extend_from_slice(&chunk);
        }
        Ok(joined.map_or(first, BytesMut::freeze))
    }

    /// The beginning of the body, for a message; what goes wrong on the way does not matter.
    pub(crate) async fn beginning(&mut self, bytes_max: usize, until: Instant) -> Bytes {
        let mut found = BytesMut::new();
        while found.len() < bytes_max {
            match tokio::time::timeout_at(until, self.chunk()).await {
                Ok(Ok(Some(chunk))) => found.extend_from_slice(&chunk),
                _ => break,
            }
        }
        found.truncate(bytes_max);
        found.freeze()
    }
}
