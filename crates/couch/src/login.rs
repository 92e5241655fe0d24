//! Requests for sessions and tokens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::time::Instant;
use url::Url;

use crate::body::BodyReader;
use crate::endpoint::USER_AGENT;
use crate::error::{Error, Failure, Request, printable};
use crate::exchange::exchange;
use crate::net::{Profile, Trouble};
use crate::payload::{Payload, Progress};
use crate::retry::{Retry, RetryPolicy};
use crate::secret::{Secret, redact};
use crate::traffic::Counters;

const POLICY: RetryPolicy = RetryPolicy {
    retries: 4,
    window: Duration::from_secs(30),
};
const TIMEOUT: Duration = Duration::from_secs(30);
const BODY_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Form {
    pub(crate) body: Secret,
    pub(crate) authorization: Option<HeaderValue>,
}

pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answered {
    /// The status and the beginning of the body, with secrets redacted.
    pub(crate) fn reason(&self, secrets: &[Secret]) -> String {
        let body = String::from_utf8_lossy(&self.body).into_owned();
        let body = redact(body, secrets.iter().map(Secret::expose));
        format!("{} {}", self.status.as_u16(), printable(&body))
            .trim_end()
            .to_owned()
    }
}

/// Posts a form. Repeats it as any request; does not follow redirects, which would take the
/// credentials elsewhere. What the server answers for good is an [`Error::Auth`] with `tag`.
pub(crate) async fn submit(
    profile: &Profile,
    url: &Url,
    form: Form,
    tag: &'static str,
) -> Result<Answered, Error> {
    let mut retry = Retry::new(POLICY);
    loop {
        let failure = match attempt(profile, url, &form).await {
            Ok(answered) => return Ok(answered),
            Err(Trouble::Fatal(error)) => return Err(error),
            Err(Trouble::Final(failure)) => Err(failure),
            Err(Trouble::Retry(failure)) => retry.after(failure, Instant::now()),
        };
        match failure {
            Ok(wait) => tokio::time::sleep(wait).await,
            Err(Failure::Unresolvable { host }) => return Err(Error::Unresolvable { host }),
            Err(failure @ Failure::BadAnswer(_)) => {
                return Err(Error::Auth {
                    tag,
                    request: Request::new("POST", url),
                    reason: failure.to_string(),
                });
            }
            // The credentials were not even seen.
            Err(cause) => {
                return Err(Error::Failed {
                    request: Request::new("POST", url),
                    attempts: retry.attempts().max(1),
                    cause,
                });
            }
        }
    }
}

async fn attempt(profile: &Profile, url: &Url, form: &Form) -> Result<Answered, Trouble> {
    let now = Instant::now();
    let progress = Progress::new(now);
    let payload = Payload::Bytes(Bytes::copy_from_slice(form.body.expose().as_bytes()));
    let mut request = http::Request::builder()
        .method(Method::POST)
        .uri(url.as_str())
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(payload.body(Arc::clone(&progress)))
        .map_err(|error| Error::Config(format!("invalid request to {url}: {error}")))?;
    if let Some(value) = &form.authorization {
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, value.clone());
    }
    profile.authorize_proxy(&mut request)?;
    let deadline = Some((now + TIMEOUT, 30_000));
    let (answer, _) = exchange(profile, request, &progress, TIMEOUT, deadline).await?;
    let (head, incoming) = answer.into_parts();
    let counters = Arc::new(Counters::default());
    let mut body = BodyReader::new(incoming, false, TIMEOUT, deadline, counters);
    let body = body.collect(BODY_BYTES_MAX).await?;
    let answered = Answered {
        status: head.status,
        headers: head.headers,
        body,
    };
    let passing = matches!(answered.status.as_u16(), 408 | 429 | 500..);
    if passing {
        return Err(Failure::BadAnswer(format!("answered by {}", answered.status.as_u16())).into());
    }
    Ok(answered)
}
