//! Metrics: collected for the whole process and served as text.

mod described;
mod process;

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

/// How often histogram samples are aggregated.
const INTERVAL: Duration = Duration::from_secs(15);
const BUCKETS: [f64; 14] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

/// How the series of servers begin.
const SERVERS: &str = "davenport_endpoint_up{";

#[derive(Clone)]
pub struct Collected(PrometheusHandle);

impl std::fmt::Debug for Collected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collected").finish_non_exhaustive()
    }
}

impl Collected {
    /// Installs the recorder, once per process.
    pub fn begin() -> anyhow::Result<Self> {
        static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
        if let Some(handle) = RECORDER.get() {
            return Ok(Self(handle.clone()));
        }
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)?
            .build_recorder();
        let handle = RECORDER.get_or_init(|| recorder.handle()).clone();
        // If another thread was faster, the process uses its recorder.
        let _ = metrics::set_global_recorder(recorder);
        described::describe();
        let version = env!("CARGO_PKG_VERSION");
        gauge!("davenport_info", "version" => version).set(1.0);
        Ok(Self(handle))
    }

    pub fn render(&self) -> String {
        let _ = process::update();
        let text = self.0.render();
        // The exporter never drops a series: those of unused servers are set to NaN and left out here.
        let is_gone = |line: &str| line.starts_with(SERVERS) && line.trim_end().ends_with(" NaN");
        let lines = text.split_inclusive('\n');
        lines.filter(|line| !is_gone(line)).collect()
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
            self.0.run_upkeep();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_not_used_have_no_series() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            gauge!("davenport_endpoint_up", "server" => "http://a").set(f64::NAN);
            gauge!("davenport_endpoint_up", "server" => "http://b").set(0.0);
        });
        let text = Collected(recorder.handle()).render();
        assert!(!text.contains("http://a"), "{text}");
        let used = "davenport_endpoint_up{server=\"http://b\"} 0\n";
        assert!(text.contains(used), "{text}");
    }
}
