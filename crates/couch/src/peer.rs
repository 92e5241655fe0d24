//! An opened endpoint: sends requests and repeats failed ones.

mod call;
mod redirect;
mod reply;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub(crate) use call::{Call, StreamBody, encode};
pub(crate) use reply::Reply;

use crate::auth::{Authenticator, Ticket, Verdict};
use crate::body::BodyReader;
use crate::endpoint::{DEFAULT_HEADERS, Endpoint, Proxy};
use crate::error::{Error, Failure, Request};
use crate::exchange::exchange;
use crate::health::{Reachability, is_doubtful};
use crate::limiter::retry_after;
use crate::net::{Profile, Trouble};
use crate::network::{LimitKey, Network};
use crate::options::{RateLimitScope, RequestOptions};
use crate::payload::{Body, Payload, Progress};
use crate::retry::Retry;
use crate::secret::{Secret, redact, sensitive, spellings};
use crate::traffic::Counters;
use call::name;
use redirect::Target;

/// A header whose name contains one of these may hold a scheme and a token.
const CREDENTIAL_HEADERS: [&str; 3] = ["auth", "token", "key"];

/// An opened endpoint.
pub(crate) struct Peer {
    pub(crate) network: Network,
    pub(crate) endpoint: Endpoint,
    pub(crate) options: RequestOptions,
    pub(crate) counters: Arc<Counters>,
    profile: Arc<Profile>,
    authenticator: Authenticator,
    permits: Arc<Semaphore>,
    /// The endpoint's URL up to its path, with a trailing slash.
    prefix: Arc<str>,
    query: Option<String>,
    limit_key: Arc<str>,
    /// The headers of every request, and the subset for other origins.
    headers: HeaderMap,
    foreign_headers: HeaderMap,
    /// What is redacted in messages.
    secrets: Vec<Secret>,
    /// Its server is in use for as long as this lives.
    server: Reachability,
}

/// A permit for a connection of an endpoint, released when the response is read or dropped.
pub(crate) struct Held(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Drop for Held {
    fn drop(&mut self) {
        crate::metrics::connection_released();
    }
}

impl Peer {
    pub(crate) async fn open(
        network: &Network,
        endpoint: Endpoint,
        options: RequestOptions,
    ) -> Result<Arc<Self>, Error> {
        let server = network.reachability(&endpoint);
        let (profile, authenticator) = network.enter(&endpoint).await?;
        let mut base = endpoint.base().clone();
        let query = base
            .query()
            .filter(|query| !query.is_empty())
            .map(str::to_owned);
        base.set_query(None);
        base.set_fragment(None);
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let limit_key = match network.rate_limit_scope() {
            RateLimitScope::Endpoint => base.as_str().into(),
            RateLimitScope::Host => base.origin().ascii_serialization().into(),
        };
        let mut foreign_headers = HeaderMap::new();
        for (name, value) in DEFAULT_HEADERS {
            foreign_headers.insert(
                HeaderName::from_static(lower(name)),
                HeaderValue::from_static(value),
            );
        }
        foreign_headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let mut headers = foreign_headers.clone();
        for (name, value) in endpoint.headers() {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| Error::Config("a header has no valid name".to_owned()))?;
            headers.insert(name, sensitive(value)?);
        }
        let secrets = secrets(&endpoint);
        Ok(Arc::new(Self {
            permits: Arc::new(Semaphore::new(options.http_connections.max(1))),
            prefix: base.as_str().into(),
            counters: Arc::default(),
            network: network.clone(),
            endpoint,
            options,
            profile,
            authenticator,
            query,
            limit_key,
            headers,
            foreign_headers,
            secrets,
            server,
        }))
    }

    /// The request as messages show it.
    pub(crate) fn shown(&self, call: &Call) -> Request {
        Request {
            method: name(&call.method),
            url: format!("{}{}", self.prefix, call.path),
        }
    }

    /// The URL that all requests start with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The same server, with the same credentials and connections, one path segment higher.
    pub(crate) fn above(&self) -> Self {
        let mut root = self.endpoint.base().clone();
        if let Ok(mut segments) = root.path_segments_mut() {
            segments.pop_if_empty().pop().push("");
        }
        root.set_query(None);
        root.set_fragment(None);
        Self {
            network: self.network.clone(),
            endpoint: self.endpoint.clone(),
            options: self.options.clone(),
            counters: Arc::clone(&self.counters),
            profile: Arc::clone(&self.profile),
            authenticator: self.authenticator.clone(),
            permits: Arc::clone(&self.permits),
            prefix: root.as_str().into(),
            query: None,
            limit_key: Arc::clone(&self.limit_key),
            headers: self.headers.clone(),
            foreign_headers: self.foreign_headers.clone(),
            secrets: self.secrets.clone(),
            server: self.server.clone(),
        }
    }

    /// Redacts secrets in a server's text, including the one that the request was sent with.
    pub(crate) fn redact(&self, text: String, sent: Option<&Secret>) -> String {
        redact(text, self.secrets.iter().chain(sent).map(Secret::expose))
    }

    /// Sends a request until its response starts. Responses with status 200 to 499 are returned,
    /// except those handled by the limiter, a session or a redirect.
    pub(crate) async fn send(self: &Arc<Self>, call: &Call) -> Result<Reply, Error> {
        let mut retry = Retry::new(self.options.retry_policy());
        loop {
            match self.attempt(call, None).await {
                Ok(reply) => return Ok(reply),
                Err(trouble) => self.pause(call, &mut retry, trouble).await?,
            }
        }
    }

    /// Sends a request until there is a whole response.
    pub(crate) async fn fetch(self: &Arc<Self>, call: &Call) -> Result<Reply, Error> {
        let mut retry = Retry::new(self.options.retry_policy());
        loop {
            let done = match self.attempt(call, None).await {
                Ok(mut reply) => reply.buffer().await.map(|()| reply),
                Err(trouble) => Err(trouble),
            };
            match done {
                Ok(reply) => return Ok(reply),
                Err(trouble) => self.pause(call, &mut retry, trouble).await?,
            }
        }
    }

    /// Sends a request whose body can be sent only once, without retries.
    pub(crate) async fn send_once(
        self: &Arc<Self>,
        call: &Call,
        body: StreamBody,
    ) -> Result<Reply, Error> {
        self.attempt(call, Some(body)).await.map_err(|trouble| {
            crate::metrics::response(call.is_stream, false);
            match trouble {
                Trouble::Fatal(error) => error,
                Trouble::Final(failure) | Trouble::Retry(failure) => self.failed(call, 1, failure),
            }
        })
    }

    /// Waits before the next attempt, or returns the error if there is none.
    async fn pause(&self, call: &Call, retry: &mut Retry, trouble: Trouble) -> Result<(), Error> {
        crate::metrics::response(call.is_stream, false);
        let (failure, attempts) = match trouble {
            Trouble::Fatal(error) => return Err(error),
            Trouble::Final(failure) => (failure, retry.attempts() + 1),
            Trouble::Retry(failure) => match retry.after(failure, Instant::now()) {
                Ok(wait) => {
                    self.counters.retry();
                    tokio::time::sleep(wait).await;
                    return Ok(());
                }
                Err(failure) => (failure, retry.attempts()),
            },
        };
        Err(self.failed(call, attempts, failure))
    }

    fn failed(&self, call: &Call, attempts: u32, failure: Failure) -> Error {
        match failure {
            Failure::Unresolvable { host } => Error::Unresolvable { host },
            cause => Error::Failed {
                request: self.shown(call),
                attempts,
                cause,
            },
        }
    }

    /// One attempt, with everything that does not count as a failure: waiting for the limiter,
    /// renewing a session, following a redirect.
    async fn attempt(
        self: &Arc<Self>,
        call: &Call,
        mut once: Option<StreamBody>,
    ) -> Result<Reply, Trouble> {
        let is_once = once.is_some();
        let held = self.hold().await;
        let key: LimitKey = (Arc::clone(&self.limit_key), name(&call.method));
        let mut target = Target::own(self, call);
        let mut renewals = 0;
        loop {
            let Some(delay) = self.network.limiter().delay(&key, Instant::now()) else {
                return Err(Error::MaxBackoff {
                    request: self.shown(call),
                }
                .into());
            };
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // Boxed, so that a feed that is read for weeks does not keep the memory that opening it took.
            let (reply, ticket) = Box::pin(self.exchange(call, &target, &mut once)).await?;
            let (status, now) = (reply.status, Instant::now());
            let asked = retry_after(&reply.headers);
            if status == 429 || (status == 503 && asked.is_some()) {
                self.network.limiter().failure(key.clone(), asked, now);
                if is_once {
                    return Err(reply.into_limited().await.into());
                }
                continue;
            }
            if status == 408 || status.as_u16() >= 500 {
                let failure = reply.into_failure().await;
                self.doubt(&failure);
                return Err(failure.into());
            }
            self.network.limiter().success(&key, now);
            if !is_once && target.redirect(call, status, &reply.headers)? {
                continue;
            }
            if let Some(ticket) = ticket {
                let verdict = self
                    .authenticator
                    .after(&ticket, status, &reply.headers, now)
                    .await;
                renewals += 1;
                if verdict == Verdict::Again && is_once {
                    return Err(reply.into_expired().await.into());
                }
                if verdict == Verdict::Again && renewals <= 2 {
                    continue;
                }
            }
            crate::metrics::response(call.is_stream, true);
            return Ok(reply.holding(held));
        }
    }

    /// Has the server looked after if this failure may mean that it gives no response.
    pub(crate) fn doubt(&self, failure: &Failure) {
        if is_doubtful(failure) {
            self.network.doubt(&self.endpoint);
        }
    }

    async fn hold(&self) -> Held {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .expect("permits are open");
        crate::metrics::connection_acquired();
        Held(permit)
    }

    /// Sends one request to `target`. Returns a ticket if it carried our credentials.
    async fn exchange(
        self: &Arc<Self>,
        call: &Call,
        target: &Target,
        once: &mut Option<StreamBody>,
    ) -> Result<(Reply, Option<Ticket>), Trouble> {
        let now = Instant::now();
        let progress = Progress::new(now);
        let sent = Arc::clone(&progress);
        let body = match once.take() {
            Some(StreamBody { chunks, length }) => Body::stream(chunks, length, sent),
            None if target.drops_body => Payload::Empty.body(sent),
            None => call.payload.body(sent),
        };
        let mut request = self.request(call, target, body)?;
        let (profile, ticket) = if target.is_foreign {
            (self.network.foreign_profile(&self.profile.key)?, None)
        } else {
            let ticket = self.authenticator.ticket().await?;
            (Arc::clone(&self.profile), Some(ticket))
        };
        if let Some((name, value)) = ticket.as_ref().and_then(|ticket| ticket.header.clone()) {
            request.headers_mut().insert(name, value);
        }
        profile.authorize_proxy(&mut request)?;

        let idle = self.options.inactivity();
        let total_ms = self.options.request_timeout_ms.filter(|_| !call.is_stream);
        let deadline = total_ms.map(|ms| (now + Duration::from_millis(ms), ms));
        self.counters.request();
        let answered = exchange(&profile, request, &progress, idle, deadline).await;
        self.counters.written(progress.bytes());
        if let Err(Trouble::Retry(failure) | Trouble::Final(failure)) = &answered
            && !target.is_foreign
        {
            self.doubt(failure);
        }
        let (answer, used) = answered?;
        let (head, incoming) = answer.into_parts();
        let is_gzip = head
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(is_gzip);
        let counters = Arc::clone(&self.counters);
        let body = BodyReader::new(incoming, is_gzip, idle, deadline, counters);
        let mut reply = Reply::new(Arc::clone(self), self.shown(call), head, body, used);
        reply.sent = ticket.as_ref().and_then(Ticket::secret);
        Ok((reply, ticket))
    }

    fn request(
        &self,
        call: &Call,
        target: &Target,
        body: Body,
    ) -> Result<http::Request<Body>, Error> {
        let mut request = http::Request::new(body);
        *request.method_mut() = target.method.clone();
        *request.uri_mut() = target.uri.parse().map_err(|_| {
            Error::Config(format!(
                "{} is not a valid request URL",
                self.shown(call).url
            ))
        })?;
        *request.headers_mut() = if target.is_foreign {
            self.foreign_headers.clone()
        } else {
            self.headers.clone()
        };
        let sends_body = *request.method() == Method::POST || *request.method() == Method::PUT;
        if sends_body && request.body().is_end_stream() {
            // Some servers require a length even without a body.
            let nothing = HeaderValue::from_static("0");
            request
                .headers_mut()
                .insert(header::CONTENT_LENGTH, nothing);
        }
        for (name, value) in &call.headers {
            if *name != header::CONTENT_TYPE || !target.drops_body {
                request.headers_mut().insert(name, value.clone());
            }
        }
        Ok(request)
    }

    /// The URL of a call, with the query of the endpoint itself.
    fn address(&self, call: &Call) -> String {
        let mut address =
            String::with_capacity(self.prefix.len() + call.path.len() + call.query.len() + 1);
        address.push_str(&self.prefix);
        address.push_str(&call.path);
        let own = self.query.as_deref().unwrap_or_default();
        for (query, sign) in [
            (own, '?'),
            (&call.query, if own.is_empty() { '?' } else { '&' }),
        ] {
            if !query.is_empty() {
                address.push(sign);
                address.push_str(query);
            }
        }
        address
    }
}

fn is_gzip(value: &HeaderValue) -> bool {
    value.as_bytes().eq_ignore_ascii_case(b"gzip")
        || value.as_bytes().eq_ignore_ascii_case(b"x-gzip")
}

/// A header's name in lower case, as the HTTP library requires of constants.
fn lower(name: &'static str) -> &'static str {
    if name == "Accept" {
        "accept"
    } else {
        "user-agent"
    }
}

/// All secrets of an endpoint that a server could repeat.
fn secrets(endpoint: &Endpoint) -> Vec<Secret> {
    let mut found = Vec::new();
    let proxy = endpoint.proxy().and_then(Proxy::credentials);
    for basic in endpoint.basic().into_iter().chain(proxy) {
        found.extend(basic.spellings());
    }
    if let Some(crate::endpoint::AuthMethod::Bearer(token)) = endpoint.auth_method() {
        found.extend(spellings(token));
    }
    for (name, value) in endpoint.headers() {
        found.extend(header_secrets(name, value).iter().flat_map(spellings));
    }
    found.extend(endpoint.query_secrets());
    // Redacting a part of a secret first would leave the rest of it.
    found.sort_by_key(|secret| Reverse(secret.expose().len()));
    found
}

/// The value of a header and the parts of it that are secrets on their own: a token without its scheme, and each cookie.
fn header_secrets(name: &str, value: &Secret) -> Vec<Secret> {
    let mut found = vec![value.clone()];
    let (name, text) = (name.to_ascii_lowercase(), value.expose());
    if name == "cookie" {
        let cookies = text.split(';').filter_map(|cookie| cookie.split_once('='));
        found.extend(cookies.map(|(_, value)| Secret::from(value.trim().trim_matches('"'))));
    } else if CREDENTIAL_HEADERS.iter().any(|part| name.contains(part))
        && let Some((_, token)) = text.split_once(' ')
    {
        found.push(Secret::from(token.trim()));
    }
    found
}
