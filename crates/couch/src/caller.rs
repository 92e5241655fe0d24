//! Single requests to any URL: no retries, redirects or sessions, and no limits but those of the caller.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::AUTHORIZATION;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::egress::Reach;
use crate::error::{Error, Failure};
use crate::exchange::{classify, limit_interim};
use crate::limiter::retry_after;
use crate::net::{Profile, Trouble};
use crate::network::Network;
use crate::payload::{Payload, Progress};
use crate::secret::{Basic, Secret, redact, sensitive, spellings};
use crate::types::millis;

/// A longer body is not read to its end, and its connection is closed.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Keeps its connections for later calls. Clones share them.
#[derive(Clone)]
pub struct Caller {
    profile: Arc<Profile>,
    /// Closes its connections when dropped.
    _network: Network,
}

/// A response of any status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    pub status: u16,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// The beginning of the body, without the credentials of the request.
    pub excerpt: String,
}

/// Why there was no response.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Another try may succeed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The request is invalid, or not allowed.
    #[error(transparent)]
    Refused(#[from] Error),
}

impl From<Trouble> for NoAnswer {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Retry(failure) | Trouble::Final(failure) => Self::Failed(failure),
            Trouble::Fatal(error) => Self::Refused(error),
        }
    }
}

impl Network {
    /// A caller whose author has this reach. Connecting may take `connect_timeout`.
    pub fn caller(&self, reach: Reach, connect_timeout: Duration) -> Result<Caller, Error> {
        let profile = self.open_profile(reach, connect_timeout)?;
        Ok(Caller {
            profile,
            _network: self.clone(),
        })
    }
}

impl Caller {
    /// Sends a request with an absolute URI, and reads up to 64 kB of the response within `timeout`; returns up to
    /// `excerpt_bytes_max`, without the password and `secrets`. The status counts even if the body breaks off.
    pub async fn call(
        &self,
        request: Request<Bytes>,
        basic: Option<&Basic>,
        secrets: &[Secret],
        timeout: Duration,
        excerpt_bytes_max: usize,
    ) -> Result<Called, NoAnswer> {
        let until = Instant::now() + timeout;
        let mut request =
            request.map(|body| Payload::Bytes(body).body(Progress::new(Instant::now())));
        if let Some(basic) = basic {
            let value = sensitive(&basic.header())?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let too_many = limit_interim(&mut request);
        let answer = tokio::select! {
            biased;
            answer = timeout_at(until, self.profile.client.request(request)) => answer,
            () = too_many.cancelled() => {
                let what = "too many interim responses";
                return Err(Failure::BadAnswer(what.to_owned()).into());
            }
        };
        let total_ms = millis(timeout);
        let answer = answer.map_err(|_| Failure::RequestTimeout { total_ms })?;
        let (head, body) = answer.map_err(|error| classify(&error))?.into_parts();
        let mut excerpt = beginning(body, until).await;
        let mut secrets: Vec<Secret> = secrets.iter().flat_map(spellings).collect();
        secrets.extend(basic.map(Basic::spellings).unwrap_or_default());
        // One may contain another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        excerpt = redact(excerpt, secrets.iter().map(Secret::expose));
        // Not before: a part of a secret would not be found.
        excerpt.truncate(excerpt.floor_char_boundary(excerpt_bytes_max));
        Ok(Called {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            excerpt,
        })
    }
}

async fn beginning(mut body: Incoming, until: Instant) -> String {
    let mut kept = Vec::new();
    while kept.len() < READ_BYTES_MAX {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let Ok(Some(Ok(frame))) = timeout_at(until, frame).await else {
            break;
        };
        if let Ok(data) = frame.into_data() {
            kept.extend_from_slice(&data);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}
