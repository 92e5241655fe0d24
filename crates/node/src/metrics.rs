//! Metrics: collected for the whole process and served as text.

mod described;
mod process;
mod servers;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::Health;
use api::listen::Answer;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use metrics::gauge;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use store::Store;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use servers::{Recording, Servers};

/// How often histogram samples are aggregated.
const INTERVAL: Duration = Duration::from_secs(15);
const BUCKETS: [f64; 14] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

#[derive(Clone)]
pub struct Collected {
    exporter: PrometheusHandle,
    servers: Servers,
}

impl std::fmt::Debug for Collected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collected").finish_non_exhaustive()
    }
}

impl Collected {
    /// Installs the recorder, once per process.
    pub fn begin() -> anyhow::Result<Self> {
        static COLLECTED: OnceLock<Collected> = OnceLock::new();
        if let Some(collected) = COLLECTED.get() {
            return Ok(collected.clone());
        }
        let recorder = Recording {
            exporter: PrometheusBuilder::new()
                .set_buckets(&BUCKETS)?
                .build_recorder(),
            servers: Servers::default(),
        };
        let collected = COLLECTED.get_or_init(|| Self {
            exporter: recorder.exporter.handle(),
            servers: recorder.servers.clone(),
        });
        // If another thread was faster, the process uses its recorder.
        let _ = metrics::set_global_recorder(recorder);
        described::describe();
        let version = env!("CARGO_PKG_VERSION");
        gauge!("davenport_info", "version" => version).set(1.0);
        Ok(collected.clone())
    }

    pub fn render(&self) -> String {
        let _ = process::update();
        let mut text = self.exporter.render();
        self.servers.render(&mut text);
        text
    }

    /// Aggregates samples periodically until the token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                _ = ticks.tick() => {}
            }
            self.exporter.run_upkeep();
        }
    }
}

/// Serves `/_metrics` and `/_up` on nodes that are not frontends.
#[derive(Clone, Debug)]
pub struct Scraped {
    collected: Collected,
    health: Arc<Health>,
}

impl Scraped {
    /// Serves these metrics, and the health of this store.
    pub fn new(collected: Collected, store: Store) -> Self {
        Self {
            collected,
            health: Arc::new(Health::new(store)),
        }
    }
}

impl Answer for Scraped {
    async fn answer(&self, request: Request<Incoming>, _: SocketAddr) -> Response<Body> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, kind, text) = match request.uri().path() {
            "/_metrics" if reads => {
                let text = self.collected.render();
                (StatusCode::OK, "text/plain; version=0.0.4", text)
            }
            "/_up" if reads && let Err(unwell) = self.health.check().await => {
                return unwell.into_response();
            }
            "/_up" if reads => (
                StatusCode::OK,
                "application/json",
                "{\"status\":\"ok\"}\n".to_owned(),
            ),
            _ => (
                StatusCode::NOT_FOUND,
                "application/json",
                "{\"error\":\"not_found\",\"reason\":\"missing\"}\n".to_owned(),
            ),
        };
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}
