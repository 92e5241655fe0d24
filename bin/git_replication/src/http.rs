//! The node's HTTP: events in, the queue out.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Target};
use crate::event;
use crate::mirrors::{Mirrors, When};
use crate::show;
use crate::target::hex;

/// GitHub's largest.
const BODY_BYTES_MAX: usize = 25 * 1024 * 1024;

/// How long requests may take to end when the node stops.
const END_MAX: Duration = Duration::from_secs(5);

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
            .route("/_up", get(async || Json(json!({"status": "ok"}))))
            .route("/_git/queue", get(queue))
            .route("/_git/events", post(events))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self)
    }

    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let serving = axum::serve(listener, self.router());
        let serving = serving.with_graceful_shutdown(stop.clone().cancelled_owned());
        let ended = async {
            stop.cancelled().await;
            tokio::time::sleep(END_MAX).await;
        };
        tokio::select! {
            served = serving => if let Err(error) = served {
                tracing::error!(%error, "the HTTP server stopped");
            },
            () = ended => {}
        }
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
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes());
    let mac = mac.expect("a key may have any length").chain_update(text);
    mac.finalize().into_bytes().to_vec()
}

/// Status, error and reason.
struct Refusal(StatusCode, &'static str, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, error, reason) = self;
        (status, Json(json!({"error": error, "reason": reason}))).into_response()
    }
}

impl From<jobs::Error> for Refusal {
    fn from(error: jobs::Error) -> Self {
        tracing::error!(error = %store::chain(&error), "cannot answer a request");
        let reason = "the store cannot be reached; repeat the request".to_owned();
        Self(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
    }
}

fn unauthorized(reason: &str) -> Refusal {
    Refusal(StatusCode::UNAUTHORIZED, "unauthorized", reason.to_owned())
}

async fn queue(State(http): State<Http>, headers: HeaderMap) -> Result<Json<Value>, Refusal> {
    if !http.is_allowed(&headers, None) {
        return Err(unauthorized("send Authorization: Bearer with the secret"));
    }
    Ok(Json(
        json!({"queue": show::rows(&http.mirrors, false).await?}),
    ))
}

async fn events(
    State(http): State<Http>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    if !http.is_allowed(&headers, Some(&body)) {
        return Err(unauthorized(
            "sign the body with the secret (X-Hub-Signature-256), or send Authorization: Bearer with it",
        ));
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = header("x-gitea-event").or_else(|| header("x-github-event"));
    if kind.is_some_and(|kind| kind != "push") {
        // Some of them have a `ref`, too, but not by its whole name. A push tells the same.
        return Ok((StatusCode::OK, Json(json!({"ok": true, "targets": 0}))));
    }
    let is_form = header("content-type").is_some_and(|kind| kind.contains("form-urlencoded"));
    let event = event::parse(&body).map_err(|reason| match reason {
        reason if is_form => reason + "; set the content type of the webhook to application/json",
        reason => reason,
    });
    let event = event.map_err(|reason| Refusal(StatusCode::BAD_REQUEST, "bad_request", reason))?;
    let Some(mut event) = event else {
        return Ok((StatusCode::OK, Json(json!({"ok": true, "targets": 0}))));
    };
    if headers.contains_key("x-gitea-event") {
        event.project = event.project.to_lowercase();
    }
    let config = Arc::clone(&http.config.borrow());
    let targets: Vec<Target> = config.targets(&event.project).collect();
    let notified = http.mirrors.notify(&targets, &event.refs, When::Delayed);
    notified.await?;
    let answer = json!({"ok": true, "targets": targets.len()});
    Ok((StatusCode::ACCEPTED, Json(answer)))
}
