//! Makes calls.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use couch::{Called, Caller, NoAnswer, Secret};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request};
use jobs::Clock;
use scheduler::PasswordCell;
use tokio::time::Instant;
use url::Url;

use super::credentials::take_credentials;
use super::delivery::Delivery;
use super::hosts::Health;
use super::identity;
use super::options::Options;
use super::sign::{InvalidSecret, Keys, unsigned};
use crate::rule::call::{Attempt, CALL_HEADERS, Outcome, Sign, Target, is_secret};

/// Shorter values of a rule's headers and query are not redacted: they are more likely to be ordinary words.
const CREDENTIAL_BYTES_MIN: usize = 6;
/// How much of a response is kept.
const EXCERPT_BYTES_MAX: usize = 1_024;
const USER_AGENT: &str = concat!("Davenport/", env!("CARGO_PKG_VERSION"));
/// Headers that belong to the connection, not to a rule.
const RESERVED: [HeaderName; 7] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

pub(super) struct Sender {
    pub(super) caller: Caller,
    pub(super) options: Options,
    pub(super) passwords: PasswordCell,
    pub(super) secrets: scheduler::Secrets,
    pub(super) clock: Clock,
}

/// What an attempt led to.
pub(super) struct Sent {
    pub(super) attempt: Attempt,
    pub(super) outcome: Outcome,
    pub(super) health: Health,
}

/// A call that cannot be made.
enum Unsendable {
    /// It never can.
    Invalid(String),
    /// The configuration lacks something.
    Unconfigured(String),
}

impl Sender {
    /// Makes a call once.
    pub(super) async fn send(&self, target: &Target, delivery: &Delivery) -> Sent {
        let at_ms = self.clock.now_ms();
        let since = Instant::now();
        let (answer, outcome, health) = match self.try_send(target, delivery, at_ms).await {
            Ok(Ok(called)) => {
                let outcome = Outcome::of_status(called.status, called.retry_after);
                let health = health(&called);
                (Ok(called), outcome, health)
            }
            Ok(Err(error)) => (
                Err(error.to_string()),
                Outcome::Failed(None),
                Health::Failing,
            ),
            // These say nothing about the endpoint.
            Err(Unsendable::Unconfigured(why)) => {
                (Err(why), Outcome::Failed(None), Health::Unknown)
            }
            Err(Unsendable::Invalid(why)) => (Err(why), Outcome::Dead, Health::Unknown),
        };
        let took_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (status, error, body) = match answer {
            Ok(called) => (Some(called.status), None, called.excerpt),
            Err(why) => (None, Some(why), String::new()),
        };
        let attempt = Attempt {
            at_ms,
            took_ms,
            status,
            error,
            body,
        };
        Sent {
            attempt,
            outcome,
            health,
        }
    }

    async fn try_send(
        &self,
        target: &Target,
        delivery: &Delivery,
        now_ms: i64,
    ) -> Result<Result<Called, NoAnswer>, Unsendable> {
        let call = &delivery.call;
        if call.loops() {
            return Err(invalid(&format!(
                "calls cause each other: {} in a row led to this change; see loops in docs/webhooks.md",
                call.hops
            )));
        }
        if call.left_out > 0 {
            return Err(invalid(&format!(
                "a call of {} bytes is too large to wait; have less of the document in `params`, or set `block`: such calls are \
                 not stored",
                call.left_out
            )));
        }
        let mut url = target.with_query(call.query.as_deref());
        let basic = take_credentials(&mut url, &self.passwords.get(), &self.secrets);
        let body = Bytes::from(call.body.clone().unwrap_or_default());
        let mut headers = own_headers(target, call.body.is_some())?;
        let id = identity::message(call);
        let timestamp = now_ms.div_euclid(1_000);
        let mut put = |name: &'static str, value: String| {
            let value =
                HeaderValue::from_str(&value).map_err(|_| invalid("it has an invalid header"))?;
            headers.insert(name, value);
            Ok::<_, Unsendable>(())
        };
        if let Some(keys) = self.keys(target.sign.as_ref(), &url)? {
            put("webhook-signature", keys.sign(&id, timestamp, &body))?;
        }
        put("webhook-id", id)?;
        put("webhook-timestamp", timestamp.to_string())?;
        put("webhook-hop", (call.hops + 1).to_string())?;
        if delivery.replay {
            put("webhook-replay", "1".to_owned())?;
        }
        for (name, value) in [
            ("x-couch-db", &call.db),
            ("x-couch-doc-id", &call.doc_id),
            ("x-couch-seq", &call.seq),
        ] {
            if !value.is_empty() {
                put(name, wire::quote(value))?;
            }
        }
        let mut request = Request::new(body);
        *request.method_mut() = call
            .method
            .parse()
            .map_err(|_| invalid("its method is not valid"))?;
        *request.uri_mut() = url
            .as_str()
            .parse()
            .map_err(|_| invalid("its URL is not valid"))?;
        *request.headers_mut() = headers;
        let timeout = self.options.timeout(call.timeout_sec);
        Ok((self.caller)
            .call(
                request,
                basic.as_ref(),
                &credentials(target),
                timeout,
                EXCERPT_BYTES_MAX,
            )
            .await)
    }

    /// What signs a call, if anything does.
    fn keys(&self, sign: Option<&Sign>, url: &Url) -> Result<Option<Keys>, Unsendable> {
        match sign {
            None => Ok(None),
            Some(Sign::Secret(secret)) => match Keys::new([secret.0.as_str()]) {
                Ok(keys) => Ok(Some(keys)),
                Err(InvalidSecret) => Err(invalid("its signing secret is not `whsec_` and base64")),
            },
            Some(Sign::SecretRef(name)) => Keys::named(self.secrets.get(name), url)
                .map(Some)
                .map_err(|InvalidSecret| Unsendable::Unconfigured(unsigned(name))),
        }
    }
}

/// The headers of a rule, with those that every call has.
fn own_headers(target: &Target, has_body: bool) -> Result<HeaderMap, Unsendable> {
    let mut headers = HeaderMap::new();
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    if has_body {
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
    }
    for (name, value) in &target.headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        let name = name.map_err(|_| invalid("it has an invalid header"))?;
        let value =
            HeaderValue::from_str(value).map_err(|_| invalid("it has an invalid header"))?;
        if !RESERVED.contains(&name) && !CALL_HEADERS.contains(&name.as_str()) {
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

/// What an endpoint could repeat of the credentials in a rule, besides a password.
fn credentials(target: &Target) -> Vec<Secret> {
    let secret = target.headers.iter().filter(|(name, _)| is_secret(name));
    let headers = secret.flat_map(|(_, value)| {
        let token = value.split_once(' ').map(|(_scheme, token)| token.trim());
        [Some(value.as_str()), token]
    });
    let raw = target.url.query().unwrap_or_default().split('&');
    let raw = raw.map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
    let decoded = target
        .url
        .query_pairs()
        .map(|(name, value)| if value.is_empty() { name } else { value });
    (headers.flatten().chain(raw).map(Cow::Borrowed))
        .chain(decoded)
        .filter(|value| value.len() >= CREDENTIAL_BYTES_MIN)
        .map(|value| Secret::from(value.into_owned()))
        .collect()
}

fn invalid(why: &str) -> Unsendable {
    Unsendable::Invalid(why.to_owned())
}

/// An endpoint that refuses one call may accept others.
fn health(called: &Called) -> Health {
    match (called.status, called.retry_after) {
        (429 | 503, Some(asked)) if asked > Duration::ZERO => Health::Overloaded(asked),
        (408 | 425 | 429 | 500..=599, _) => Health::Failing,
        _ => Health::Well,
    }
}

/// What a URL is on.
pub(super) fn endpoint(url: &Url) -> String {
    url.origin().ascii_serialization()
}
