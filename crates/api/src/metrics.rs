//! The metrics of this crate, under the names of CouchDB's exporter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use metrics::{counter, histogram};

/// Renders the metrics of the process in Prometheus text format.
#[derive(Clone)]
pub struct Metrics(Arc<dyn Fn() -> String + Send + Sync>);

impl Metrics {
    pub fn new(render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(render))
    }

    pub(crate) fn render(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

pub(crate) fn answered(method: &Method, status: StatusCode, took: Duration) {
    // Clients choose the method: only known ones become label values.
    let method = match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    };
    counter!("couchdb_httpd_requests_total").increment(1);
    counter!("couchdb_httpd_request_methods", "method" => method).increment(1);
    counter!("couchdb_httpd_status_codes", "code" => status.as_str().to_owned()).increment(1);
    histogram!("couchdb_request_time_seconds").record(took.as_secs_f64());
}

/// A request was forwarded to the cluster, and got a response or failed.
pub(crate) fn upstream_asked(answered: bool) {
    counter!("davenport_upstream_requests_total").increment(1);
    if !answered {
        counter!("davenport_upstream_failures_total").increment(1);
    }
}

/// A request was rejected because there were too many.
pub(crate) fn turned_away() {
    counter!("davenport_httpd_turned_away_total").increment(1);
}

pub(crate) fn panicked() {
    counter!("davenport_httpd_panics_total").increment(1);
}
