//! Reads the bodies of responses.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;
use wire::gzip::Gunzip;
use wire::{Collected, TooLarge};

use crate::error::Failure;
use crate::traffic::Counters;
use crate::types::millis;

/// When a request as a whole times out, and after how many milliseconds.
pub(crate) type Deadline = Option<(Instant, u64)>;

/// A body being read. Only waits for bytes are timed, so that a slow consumer
/// is not mistaken for a stalled server.
pub(crate) struct BodyReader {
    /// `None` after the end or an error.
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
        let gunzip = is_gzip.then(Gunzip::default);
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
                    // Trailers are ignored.
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
                    return Err(Failure::Connection(wire::chain(&error)));
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
        let too_large = |error: TooLarge| Failure::BadAnswer(error.to_string());
        let mut whole = Collected::new(bytes_max);
        while let Some(chunk) = self.chunk().await? {
            whole.push(chunk).map_err(too_large)?;
        }
        Ok(whole.finish())
    }

    /// The beginning of the body, for a message; errors are ignored.
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
