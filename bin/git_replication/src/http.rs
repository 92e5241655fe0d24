//! The node's HTTP: events in, the queue out.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use listen::{Bodies, Proof, ProofHeaders, Refusal, Secret, not_from_a_page};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::{Config, Target};
use crate::event;
use crate::mirrors::{Mirrors, When};
use crate::show;

/// GitHub's largest.
const BODY_BYTES_MAX: usize = 25 * 1024 * 1024;
/// As GitHub, GitLab and Gitea send them.
const PROOFS: ProofHeaders = ProofHeaders {
    secret: &[("authorization", "Bearer "), ("x-gitlab-token", "")],
    signature: &[
        ("x-hub-signature-256", "sha256="),
        ("x-gitea-signature", ""),
    ],
};

/// Limits on connections.
pub(crate) fn limits() -> listen::Options {
    listen::Options {
        connections_max: 256,
        head_timeout: Duration::from_secs(10),
        request_timeout: Some(Duration::from_mins(2)),
        stop_timeout: Duration::from_secs(5),
        ..listen::Options::default()
    }
}

/// Limits on bodies.
pub(crate) fn bodies() -> Bodies {
    Bodies::new(BODY_BYTES_MAX, 2 * BODY_BYTES_MAX, Duration::from_secs(30))
}

/// What requests need.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    pub(crate) mirrors: Mirrors,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    /// Proves who sent a request. Without one, only this host can reach the node, and its web pages get no answer.
    pub(crate) secret: Option<Secret>,
    pub(crate) bodies: Bodies,
    pub(crate) metrics: PrometheusHandle,
}

impl Http {
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/_up", get(async || Json(json!({"status": "ok"}))))
            .route("/_metrics", get(metrics))
            .route("/_git/queue", get(queue))
            .route("/_git/events", post(events))
            .with_state(self)
    }

    /// What a head proves, or else a refusal.
    fn proof(&self, headers: &HeaderMap, advice: &str) -> Result<Proof, Refusal> {
        let Some(secret) = &self.secret else {
            not_from_a_page(headers).map_err(|error| {
                Refusal::forbidden(format!(
                    "a node without a secret {error}; set --secret-file, and send the secret"
                ))
            })?;
            return Ok(Proof::Given);
        };
        let proof = secret.proof(headers, &PROOFS);
        proof.ok_or_else(|| Refusal::unauthorized(advice))
    }

    /// Refuses a request that does not carry the secret; a signature is not enough.
    fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let advice = "send Authorization: Bearer with the secret";
        match self.proof(headers, advice)? {
            Proof::Given => Ok(()),
            Proof::Signature(_) => Err(Refusal::unauthorized(advice)),
        }
    }
}

fn no_store(error: &jobs::Error) -> Refusal {
    tracing::error!(error = %store::chain(error), "cannot answer a request");
    Refusal::unavailable("the store cannot be reached; repeat the request")
}

async fn metrics(State(http): State<Http>, headers: HeaderMap) -> Result<String, Refusal> {
    http.check(&headers)?;
    Ok(http.metrics.render())
}

async fn queue(State(http): State<Http>, headers: HeaderMap) -> Result<Json<Value>, Refusal> {
    http.check(&headers)?;
    let rows = show::rows(&http.mirrors, false)
        .await
        .map_err(|error| no_store(&error))?;
    Ok(Json(json!({"queue": rows})))
}

async fn events(
    State(http): State<Http>,
    request: Request,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    const UNSIGNED: &str = "sign the body with the secret (X-Hub-Signature-256), or send it as X-Gitlab-Token or Authorization: Bearer";
    let (head, body) = request.into_parts();
    let headers = head.headers;
    let proof = http.proof(&headers, UNSIGNED)?;
    let (body, room) = http.bodies.read(body).await?;
    if !proof.covers(&body) {
        return Err(Refusal::unauthorized(UNSIGNED));
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let kinds = ["x-gitea-event", "x-github-event", "x-gitlab-event"];
    let kind = kinds.into_iter().find_map(header);
    if kind.is_some_and(|kind| !["push", "Push Hook", "Tag Push Hook"].contains(&kind)) {
        // Some of them have a `ref`, too, but not by its whole name. A push tells the same.
        return Ok((StatusCode::OK, Json(json!({"ok": true, "targets": 0}))));
    }
    let is_form = header("content-type").is_some_and(|kind| kind.contains("form-urlencoded"));
    let event = event::parse(&body).map_err(|reason| match reason {
        reason if is_form => reason + "; set the content type of the webhook to application/json",
        reason => reason,
    });
    let event = event.map_err(Refusal::bad_request)?;
    drop((body, room));
    let Some(mut event) = event else {
        return Ok((StatusCode::OK, Json(json!({"ok": true, "targets": 0}))));
    };
    if headers.contains_key("x-gitea-event") {
        event.project = event.project.to_lowercase();
    }
    let config = Arc::clone(&http.config.borrow());
    let targets: Vec<Target> = config.targets(&event.project).collect();
    let notified = http.mirrors.notify(&targets, &event.refs, When::Delayed);
    notified.await.map_err(|error| no_store(&error))?;
    let answer = json!({"ok": true, "targets": targets.len()});
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::config::tests::read;

    const SECRET: &str = "0123456789abcdef";
    const SHORT: Duration = Duration::from_millis(50);

    async fn start(limits: listen::Options, bodies: Bodies) -> std::net::SocketAddr {
        start_with(limits, bodies, Some(SECRET)).await
    }

    async fn start_with(
        limits: listen::Options,
        bodies: Bodies,
        secret: Option<&str>,
    ) -> std::net::SocketAddr {
        let config = read("[remote \"a\"]\nurl = /m/${name}\n").unwrap();
        let http = Http {
            mirrors: Mirrors::open("memory:").await.unwrap(),
            config: watch::channel(Arc::new(config)).1,
            secret: secret.map(|text| Secret::new(text.to_owned()).unwrap()),
            bodies,
            metrics: PrometheusBuilder::new().build_recorder().handle(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(listen::serve(listener, None, limits, http.router(), stop));
        address
    }

    /// What comes back until the node closes the connection.
    async fn talk(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn post(headers: &str, body: &str) -> String {
        format!("POST /_git/events HTTP/1.1\r\nhost: a\r\n{headers}\r\n{body}")
    }

    /// None of these requests has all of its body.
    #[tokio::test]
    async fn what_can_be_refused_by_its_head_is() {
        let address = start(limits(), bodies()).await;
        let bearer = format!("authorization: Bearer {SECRET}\r\n");
        for (headers, status) in [
            ("content-length: 9\r\n", "401"),
            ("content-length: 9\r\nauthorization: Bearer x\r\n", "401"),
            ("transfer-encoding: chunked\r\n", "401"),
            ("content-length: 9\r\nx-gitea-signature: 0\r\n", "401"),
            (&format!("{bearer}content-length: 26214401\r\n"), "413"),
        ] {
            let answer = talk(address, &post(headers, "{")).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{answer}"
            );
        }
    }

    #[tokio::test]
    async fn slow_clients_are_cut_off() {
        let limits = listen::Options {
            connections_max: 1,
            head_timeout: SHORT,
            ..limits()
        };
        let bodies = Bodies::new(BODY_BYTES_MAX, BODY_BYTES_MAX, SHORT);
        let address = start(limits, bodies).await;
        assert_eq!(talk(address, "").await, "");
        let half = talk(address, "GET /_up HTTP/1.1\r\nhost:").await;
        assert!(!half.starts_with("HTTP/1.1 200"), "{half}");
        let slow = format!("authorization: Bearer {SECRET}\r\ncontent-length: 9\r\n");
        let slow = talk(address, &post(&slow, "{")).await;
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
        let huge = format!("GET /_up HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000));
        assert!(!talk(address, &huge).await.starts_with("HTTP/1.1 200"));
        let up = talk(address, "GET /_up HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(up.starts_with("HTTP/1.1 200"), "{up}");
    }

    /// A page that is open in a browser on this host could send events, or read the queue under a name that it changes.
    #[tokio::test]
    async fn without_a_secret_no_web_page_is_answered() {
        let address = start_with(limits(), bodies(), None).await;
        let own = host::name();
        for (request, headers, status) in [
            ("POST /_git/events", "host: 127.0.0.1:5987\r\n", "200"),
            ("POST /_git/events", "host: localhost:5987\r\n", "200"),
            ("POST /_git/events", "host: [::1]:5987\r\n", "200"),
            ("POST /_git/events", &format!("host: {own}\r\n"), "200"),
            ("GET /_git/queue", "host: 127.0.0.1\r\n", "200"),
            ("GET /_metrics", "host: 127.0.0.1\r\n", "200"),
            ("GET /_metrics", "host: evil.example\r\n", "403"),
            ("GET /_git/queue", "host: evil.example:5987\r\n", "403"),
            ("POST /_git/events", "host: evil.example\r\n", "403"),
            (
                "POST /_git/events",
                "host: 127.0.0.1.evil.example\r\n",
                "403",
            ),
            (
                "POST /_git/events",
                "host: localhost\r\norigin: http://evil.example\r\n",
                "403",
            ),
            (
                "POST /_git/events",
                "host: localhost\r\norigin: null\r\n",
                "403",
            ),
        ] {
            let request = format!(
                "{request} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: 2\r\n\r\n{{}}"
            );
            let answer = talk(address, &request).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{request}: {answer}"
            );
            assert_eq!(answer.contains("set --secret-file"), status == "403");
        }
        let address = start(limits(), bodies()).await;
        let headers = format!(
            "authorization: Bearer {SECRET}\r\norigin: http://a\r\nconnection: close\r\ncontent-length: 2\r\n"
        );
        let answer = talk(address, &post(&headers, "{}")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
