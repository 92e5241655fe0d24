//! Reads whole bodies of requests, bounded in size, in time, and in the memory that all of them take.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _, to_bytes};
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Reads bodies. Clones share their memory.
#[derive(Debug, Clone)]
pub struct Bodies {
    bytes_max: usize,
    time_limit: Duration,
    memory: Arc<Semaphore>,
}

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("other requests take all memory for bodies; repeat the request")]
    NoMemory,
    #[error("the body took longer than {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("the body ended early, or has more than {bytes_max} bytes")]
    Broken { bytes_max: usize },
}

impl BodyError {
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Broken { .. } => StatusCode::BAD_REQUEST,
        }
    }
}

impl Bodies {
    /// Limits for one body, and for the memory that all of them take together.
    pub fn new(bytes_max: usize, memory_bytes_max: usize, time_limit: Duration) -> Self {
        Self {
            bytes_max,
            time_limit,
            memory: Arc::new(Semaphore::new(memory_bytes_max)),
        }
    }

    /// The body, and the memory that it takes until the permit is dropped. A body of unknown size counts as the largest.
    pub async fn read(&self, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), BodyError> {
        let bytes_max = self.bytes_max;
        let declared = body.size_hint().upper();
        let bytes = declared.map_or(Ok(bytes_max), usize::try_from);
        let bytes = bytes.ok().filter(|bytes| *bytes <= bytes_max);
        let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.ok_or(BodyError::TooLarge { bytes_max })?;
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(bytes);
        let memory = memory.map_err(|_| BodyError::NoMemory)?;
        let read = timeout(self.time_limit, to_bytes(body, bytes_max)).await;
        let read = read.map_err(|_| BodyError::TooSlow(self.time_limit))?;
        let bytes = read.map_err(|_| BodyError::Broken { bytes_max })?;
        Ok((bytes, memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_share_their_memory() {
        let bodies = Bodies::new(4, 4, Duration::from_mins(1));
        let (_, memory) = bodies.read(Body::from("abc")).await.unwrap();
        let refused = bodies.clone().read(Body::from("de")).await;
        assert_eq!(refused.unwrap_err(), BodyError::NoMemory);
        drop(memory);
        assert_eq!(bodies.read(Body::from("de")).await.unwrap().0, "de");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_bounded() {
        let bodies = Bodies::new(4, 8, Duration::from_mins(1));
        let error = async |body| bodies.read(body).await.unwrap_err();
        let large = error(Body::from("abcde")).await;
        assert_eq!(large, BodyError::TooLarge { bytes_max: 4 });
        let pieces = |text: &'static str| {
            let pieces = text.split(' ').map(Ok::<_, std::io::Error>);
            futures::stream::iter(pieces)
        };
        let (body, _) = bodies
            .read(Body::from_stream(pieces("ab cd")))
            .await
            .unwrap();
        assert_eq!(body, "abcd");
        let broken = error(Body::from_stream(pieces("ab cd e"))).await;
        assert_eq!(broken, BodyError::Broken { bytes_max: 4 });
        let pending = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let slow = error(Body::from_stream(pending)).await;
        assert_eq!(slow, BodyError::TooSlow(Duration::from_mins(1)));
    }
}
