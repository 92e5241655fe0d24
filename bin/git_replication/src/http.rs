//! The node's HTTP: events in, the queue out.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::json;
use sha2::Sha256;
use tokio::sync::watch;

use crate::config::{Config, Target};
use crate::event;
use crate::mirrors::{Mirrors, When};
use crate::show;
use crate::target::hex;

/// GitHub's largest.
const BODY_BYTES_MAX: usize = 25 * 1024 * 1024;

/// What requests need.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    pub(crate) mirrors: Mirrors,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    /// Proves who sent a request. Without one, only this host can reach the node.
    pub(crate) secret: Option<Arc<str>>,
}

impl Http {
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/_up", get(async || axum::Json(json!({"status": "ok"}))))
            .route("/_git/queue", get(queue))
            .route("/_git/events", post(events))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self)
    }

    /// The secret itself, or for a body also a signature made with it.
    fn is_allowed(&self, headers: &HeaderMap, body: Option<&[u8]>) -> bool {
        let Some(secret) = &self.secret else {
            return true;
        };
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        // Both sides are hashed, so that comparing them takes as long whatever they have in common.
        let is_same = |a: &str, b: &str| tag(secret, a.as_bytes()) == tag(secret, b.as_bytes());
        if bearer.is_some_and(|token| is_same(token, secret)) {
            return true;
        }
        let github = header("x-hub-signature-256").and_then(|value| value.strip_prefix("sha256="));
        let signature = github.or_else(|| header("x-gitea-signature"));
        let (Some(signature), Some(body)) = (signature, body) else {
            return false;
        };
        is_same(&signature.to_ascii_lowercase(), &hex(&tag(secret, body)))
    }
}

/// What cannot be made of a text without the secret.
fn tag(secret: &str, text: &[u8]) -> Vec<u8> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key may have any length");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

async fn queue(State(http): State<Http>, headers: HeaderMap) -> Response {
    if !http.is_allowed(&headers, None) {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "send Authorization: Bearer with the secret",
        );
    }
    match show::rows(&http.mirrors, false).await {
        Ok(rows) => axum::Json(json!({"queue": rows})).into_response(),
        Err(error) => unavailable(&error),
    }
}

async fn events(State(http): State<Http>, headers: HeaderMap, body: Bytes) -> Response {
    if !http.is_allowed(&headers, Some(&body)) {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "sign the body with the secret (X-Hub-Signature-256), or send Authorization: Bearer with it",
        );
    }
    let event = match event::parse(&body) {
        Ok(Some(event)) => event,
        Ok(None) => return axum::Json(json!({"ok": true, "targets": 0})).into_response(),
        Err(reason) => return refuse(StatusCode::BAD_REQUEST, "bad_request", &reason),
    };
    let config = Arc::clone(&http.config.borrow());
    let targets: Vec<Target> = config.targets(&event.project).collect();
    match http
        .mirrors
        .notify(&targets, &event.refs, When::Delayed)
        .await
    {
        Ok(()) => (
            StatusCode::ACCEPTED,
            axum::Json(json!({"ok": true, "targets": targets.len()})),
        )
            .into_response(),
        Err(error) => unavailable(&error),
    }
}

fn refuse(status: StatusCode, error: &str, reason: &str) -> Response {
    (
        status,
        axum::Json(json!({"error": error, "reason": reason})),
    )
        .into_response()
}

fn unavailable(error: &jobs::Error) -> Response {
    tracing::error!(error = %error, "cannot answer a request");
    refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        "the store cannot be reached; repeat the request",
    )
}
