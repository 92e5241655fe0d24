//! Authentication by the cluster, cached for some seconds. A caller is identified by its credentials: name and
//! password, cookie, token, or the headers of a trusted proxy. Responses are cached under a keyed hash of those, and
//! credentials are never logged. Concurrent requests of one caller share one request to the cluster.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::body::{Body, to_bytes};
use futures::FutureExt as _;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::Upstream;
use super::forward::forwarded;
use crate::Error;
use crate::auth::authenticator::{Method, Proven};
use crate::auth::{Identity, proxy};
use crate::client::Client;

/// Time limit for the cluster's response.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const SESSION_BYTES_MAX: usize = 64 * 1024;
const ROWS_BYTES_MAX: usize = 16 * 1024 * 1024;
const KNOWN_MAX: usize = 10_000;

/// Headers with credentials.
pub(crate) static PROOFS: [HeaderName; 5] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static(proxy::NAME_HEADER),
    HeaderName::from_static(proxy::ROLES_HEADER),
    HeaderName::from_static(proxy::TOKEN_HEADER),
];

/// A recently authenticated caller.
pub(super) type Known = HashMap<[u8; 32], (Identity, Method, Instant)>;

#[derive(Deserialize)]
struct Session {
    #[serde(rename = "userCtx")]
    user: User,
    #[serde(default)]
    info: Info,
}

#[derive(Deserialize)]
struct User {
    name: Option<String>,
    #[serde(default)]
    roles: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Info {
    authenticated: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
    reason: String,
}

impl Upstream {
    /// Authenticates the caller of a request.
    pub(crate) async fn prove(&self, headers: &HeaderMap, client: Client) -> Result<Proven, Error> {
        let proofs = proofs(headers);
        if proofs.is_empty() {
            return Ok(Proven::anonymous());
        }
        let name = self.name(&proofs);
        if let Some(proven) = self.remembered(&name) {
            return Ok(proven);
        }
        let hold = Duration::from_secs(self.0.options.session_cache_sec);
        if hold.is_zero() {
            return self.ask(proofs, client).await;
        }
        self.ask_once(name, proofs, client, hold).await
    }

    /// Asks the cluster, or waits for another request with the same credentials.
    async fn ask_once(
        &self,
        name: [u8; 32],
        proofs: HeaderMap,
        client: Client,
        hold: Duration,
    ) -> Result<Proven, Error> {
        let upstream = self.clone();
        let question = async move {
            // Another request may have just finished.
            if let Some(proven) = upstream.remembered(&name) {
                return Ok(proven);
            }
            let proven = upstream.ask(proofs, client).await?;
            let until = Instant::now() + hold;
            upstream.remember(name, (proven.identity.clone(), proven.method, until));
            Ok(proven)
        };
        self.0
            .asked
            .join(name, || Ok::<_, Error>(question.boxed()))?
            .await
    }

    async fn ask(&self, proofs: HeaderMap, client: Client) -> Result<Proven, Error> {
        let by_cookie = proofs.contains_key(COOKIE);
        let (parts, body) = self
            .send_for("/_session", proofs, client, None)
            .await?
            .into_parts();
        let body = timeout(TIME_LIMIT, to_bytes(Body::new(body), SESSION_BYTES_MAX)).await;
        let body = body.map_err(Error::bad_gateway)?;
        let body = body.map_err(Error::bad_gateway)?;
        if parts.status != StatusCode::OK {
            return Err(refusal(parts.status, &body));
        }
        let session: Session = serde_json::from_slice(&body).map_err(Error::bad_gateway)?;
        let Some(name) = session.user.name else {
            if !session.user.roles.is_empty() {
                // The cluster lets anonymous callers do everything. That must not extend to replications.
                tracing::warn!("the cluster grants roles to anonymous callers; ignored here");
            }
            return Ok(Proven::anonymous());
        };
        let method = match session.info.authenticated.as_deref() {
            Some("default") => Method::Password,
            Some("jwt") => Method::Token,
            Some("proxy") => Method::Proxy,
            Some("cookie") => Method::Cookie,
            // Browsers send cookies automatically, so the cookie decides about forgery checks.
            _ if by_cookie => Method::Cookie,
            _ => Method::Password,
        };
        Ok(Proven {
            identity: Identity {
                name: Some(name),
                roles: session.user.roles,
            },
            method,
            scope: None,
            cookie: None,
            set_cookies: parts.headers.get_all(SET_COOKIE).iter().cloned().collect(),
        })
    }

    /// Sends a request to the cluster on behalf of a caller: a `POST` if there is JSON to send.
    async fn send_for(
        &self,
        path: &str,
        mut headers: HeaderMap,
        client: Client,
        json: Option<String>,
    ) -> Result<Response<Incoming>, Error> {
        let uri = (self.uri(path)).ok_or_else(|| Error::bad_request("invalid path"))?;
        forwarded(&mut headers, None, client);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Ok(host) = HeaderValue::from_str(&self.0.authority) {
            headers.insert(HOST, host);
        }
        let has_body = json.is_some();
        let mut request = Request::new(json.map_or_else(Body::empty, Body::from));
        if has_body {
            *request.method_mut() = http::Method::POST;
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        (*request.uri_mut(), *request.headers_mut()) = (uri, headers);
        let answer = timeout(TIME_LIMIT, self.send(request, has_body)).await;
        answer.map_err(Error::bad_gateway)?
    }

    /// The rows of a listing, as this caller sees them; with `json`, of a `POST`.
    pub(crate) async fn rows(
        &self,
        path: &str,
        headers: &HeaderMap,
        client: Client,
        json: Option<String>,
    ) -> Result<Vec<Value>, Error> {
        let answer = (self.send_for(path, proofs(headers), client, json)).await?;
        let (parts, body) = answer.into_parts();
        let body = timeout(TIME_LIMIT, to_bytes(Body::new(body), ROWS_BYTES_MAX)).await;
        let body = body.map_err(Error::bad_gateway)?;
        let body = body.map_err(Error::bad_gateway)?;
        if parts.status != StatusCode::OK {
            return Err(refusal(parts.status, &body));
        }
        serde_json::from_slice(&body).map_err(Error::bad_gateway)
    }

    /// The cache key of credentials.
    fn name(&self, proofs: &HeaderMap) -> [u8; 32] {
        let mut hash = hmac::Context::with_key(&self.0.key);
        for (at, name) in PROOFS.iter().enumerate() {
            for value in proofs.get_all(name) {
                hash.update(&[u8::try_from(at).unwrap_or(u8::MAX)]);
                hash.update(&(value.len() as u64).to_be_bytes());
                hash.update(value.as_bytes());
            }
        }
        let mut hashed = [0; 32];
        hashed.copy_from_slice(hash.sign().as_ref());
        hashed
    }

    fn remembered(&self, name: &[u8; 32]) -> Option<Proven> {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (identity, method, until) = known.get(name)?;
        (*until > Instant::now()).then(|| Proven {
            identity: identity.clone(),
            method: *method,
            ..Proven::anonymous()
        })
    }

    fn remember(&self, name: [u8; 32], entry: (Identity, Method, Instant)) {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            let now = Instant::now();
            known.retain(|_, (_, _, until)| *until > now);
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
        }
        known.insert(name, entry);
    }
}

fn proofs(headers: &HeaderMap) -> HeaderMap {
    let mut proofs = HeaderMap::new();
    for name in &PROOFS {
        for value in headers.get_all(name) {
            proofs.append(name.clone(), value.clone());
        }
    }
    proofs
}

/// For wrong credentials, the cluster's message is passed on; anything else means that the cluster is unhealthy.
fn refusal(status: StatusCode, body: &[u8]) -> Error {
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    match refusal {
        Some(Refusal { error, reason }) if status.is_client_error() => {
            Error::new(status, error, reason)
        }
        _ => Error::bad_gateway(std::io::Error::other(format!("it answered with {status}"))),
    }
}
