//! Metrics: collected for the whole process and served as text.

mod described;
mod process;
mod servers;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::Health;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use listen::Answer;
use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use store::Store;
use tokio_util::sync::CancellationToken;

use servers::{Recording, Servers};

/// How often histogram samples are aggregated.
const INTERVAL: Duration = Duration::from_secs(15);
/// Of durations.
const BUCKETS: [f64; 14] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];
/// Of numbers of attempts.
const COUNT_BUCKETS: [f64; 9] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

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

fn builder() -> anyhow::Result<PrometheusBuilder> {
    let counted = Matcher::Full("davenport_webhook_attempts".to_owned());
    Ok(PrometheusBuilder::new()
        .set_buckets(&BUCKETS)?
        .set_buckets_for_metric(counted, &COUNT_BUCKETS)?)
}

impl Collected {
    /// Installs the recorder, once per process.
    pub fn begin() -> anyhow::Result<Self> {
        static COLLECTED: OnceLock<Collected> = OnceLock::new();
        if let Some(collected) = COLLECTED.get() {
            return Ok(collected.clone());
        }
        let recorder = Recording {
            exporter: builder()?.build_recorder(),
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
        let upkeep = host::every(INTERVAL, || self.exporter.run_upkeep());
        token.run_until_cancelled(upkeep).await;
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
    async fn answer(&self, request: Request<Body>, _: SocketAddr) -> Response<Body> {
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

#[cfg(test)]
mod tests {
    use metrics::{histogram, with_local_recorder};

    use super::*;

    #[test]
    fn attempts_are_counted_and_durations_measured() {
        let recorder = builder().unwrap().build_recorder();
        with_local_recorder(&recorder, || {
            histogram!("davenport_webhook_attempts").record(2.0);
            histogram!("davenport_webhook_seconds").record(0.02);
        });
        let text = recorder.handle().render();
        for line in [
            "davenport_webhook_attempts_bucket{le=\"1\"} 0",
            "davenport_webhook_attempts_bucket{le=\"2\"} 1",
            "davenport_webhook_attempts_bucket{le=\"100\"} 1",
            "davenport_webhook_seconds_bucket{le=\"0.01\"} 0",
            "davenport_webhook_seconds_bucket{le=\"0.025\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
