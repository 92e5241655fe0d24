//! Who a caller is: the cluster says so, and is believed for some seconds.
//!
//! A caller is asked for by what proves it: name and password, cookie, token, or the headers of a proxy that the cluster
//! trusts. What was answered is remembered under a keyed hash of that, and nothing of it is logged. Many requests of one
//! caller at a time ask once.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::body::{Body, to_bytes};
use futures::FutureExt as _;
use http::header::{ACCEPT, AUTHORIZATION, COOKIE, HOST, SET_COOKIE};
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

/// How long the cluster may think about who somebody is.
const PATIENCE: Duration = Duration::from_secs(30);
const SESSION_BYTES_MAX: usize = 64 * 1024;
const TASKS_BYTES_MAX: usize = 16 * 1024 * 1024;
const KNOWN_MAX: usize = 10_000;

/// What proves a caller.
pub(crate) static PROOFS: [HeaderName; 5] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static(proxy::NAME_HEADER),
    HeaderName::from_static(proxy::ROLES_HEADER),
    HeaderName::from_static(proxy::TOKEN_HEADER),
];

/// Who was behind some credentials a short while ago.
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
    /// Proves the caller of a request.
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

    /// Asks, or waits for the answer to another request with the same credentials.
    async fn ask_once(
        &self,
        name: [u8; 32],
        proofs: HeaderMap,
        client: Client,
        hold: Duration,
    ) -> Result<Proven, Error> {
        let upstream = self.clone();
        let question = async move {
            // It may have been answered just now.
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
        let (parts, body) = self.get("/_session", proofs, client).await?.into_parts();
        let body = timeout(PATIENCE, to_bytes(Body::new(body), SESSION_BYTES_MAX)).await;
        let body = body.map_err(Error::bad_gateway)?;
        let body = body.map_err(Error::bad_gateway)?;
        if parts.status != StatusCode::OK {
            return Err(refusal(parts.status, &body));
        }
        let session: Session = serde_json::from_slice(&body).map_err(Error::bad_gateway)?;
        let Some(name) = session.user.name else {
            if !session.user.roles.is_empty() {
                // Nobody has to log in there. That is no reason to let everybody steer replications.
                tracing::warn!(
                    "the cluster gives roles to callers without a name, who get none here"
                );
            }
            return Ok(Proven::anonymous());
        };
        let method = match session.info.authenticated.as_deref() {
            Some("default") => Method::Password,
            Some("jwt") => Method::Token,
            Some("proxy") => Method::Proxy,
            Some("cookie") => Method::Cookie,
            // A cookie may come of a browser's own accord, so it is what to beware of.
            _ if by_cookie => Method::Cookie,
            _ => Method::Password,
        };
        Ok(Proven {
            identity: Identity {
                name: Some(name),
                roles: session.user.roles,
            },
            method,
            cookie: None,
            set_cookies: parts.headers.get_all(SET_COOKIE).iter().cloned().collect(),
        })
    }

    /// Asks the cluster for something on behalf of a caller.
    async fn get(
        &self,
        path: &str,
        mut headers: HeaderMap,
        client: Client,
    ) -> Result<Response<Incoming>, Error> {
        let uri = (self.uri(path)).ok_or_else(|| Error::bad_request("the path is not one"))?;
        forwarded(&mut headers, None, client);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Ok(host) = HeaderValue::from_str(&self.0.authority) {
            headers.insert(HOST, host);
        }
        let mut request = Request::new(Body::empty());
        (*request.uri_mut(), *request.headers_mut()) = (uri, headers);
        let answer = timeout(PATIENCE, self.send(request, false)).await;
        answer.map_err(Error::bad_gateway)?
    }

    /// The tasks that the cluster itself is busy with, as this caller sees them.
    pub(crate) async fn active_tasks(
        &self,
        headers: &HeaderMap,
        client: Client,
    ) -> Result<Vec<Value>, Error> {
        let answer = self.get("/_active_tasks", proofs(headers), client).await?;
        let (parts, body) = answer.into_parts();
        let body = timeout(PATIENCE, to_bytes(Body::new(body), TASKS_BYTES_MAX)).await;
        let body = body.map_err(Error::bad_gateway)?;
        let body = body.map_err(Error::bad_gateway)?;
        if parts.status != StatusCode::OK {
            return Err(refusal(parts.status, &body));
        }
        serde_json::from_slice(&body).map_err(Error::bad_gateway)
    }

    /// What credentials are remembered by.
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

/// What the cluster says of wrong credentials is for the caller; anything else says that it is not well.
fn refusal(status: StatusCode, body: &[u8]) -> Error {
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    match refusal {
        Some(Refusal { error, reason }) if status.is_client_error() => {
            Error::new(status, error, reason)
        }
        _ => Error::bad_gateway(std::io::Error::other(format!("it answered with {status}"))),
    }
}
