//! The series of servers, which come and go. The exporter never drops a series, so these are kept here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusRecorder;

const NAME: &str = "davenport_endpoint_up";

/// Which servers respond. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Servers(Arc<Mutex<Series>>);

#[derive(Default)]
struct Series {
    description: SharedString,
    values: BTreeMap<String, f64>,
}

impl Servers {
    fn series(&self) -> MutexGuard<'_, Series> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn render(&self, text: &mut String) {
        let series = self.series();
        if series.values.is_empty() {
            return;
        }
        let mut add = || {
            writeln!(text, "# HELP {NAME} {}", series.description)?;
            writeln!(text, "# TYPE {NAME} gauge")?;
            for (server, value) in &series.values {
                writeln!(text, "{NAME}{{server={server:?}}} {value}")?;
            }
            writeln!(text)
        };
        add().expect("a string takes all text");
    }
}

/// One server. NaN removes its series.
struct Server {
    name: String,
    servers: Servers,
}

impl GaugeFn for Server {
    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {}

    fn set(&self, value: f64) {
        let values = &mut self.servers.series().values;
        if value.is_nan() {
            values.remove(&self.name);
        } else {
            values.insert(self.name.clone(), value);
        }
    }
}

/// Leaves everything except the series of servers to the exporter.
pub(super) struct Recording {
    pub(super) exporter: PrometheusRecorder,
    pub(super) servers: Servers,
}

impl Recorder for Recording {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.exporter.describe_counter(name, unit, description);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        if name.as_str() == NAME {
            self.servers.series().description = description;
        } else {
            self.exporter.describe_gauge(name, unit, description);
        }
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.exporter.describe_histogram(name, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.exporter.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let server = key.labels().find(|label| label.key() == "server");
        match server.filter(|_| key.name() == NAME) {
            Some(server) => Gauge::from_arc(Arc::new(Server {
                name: server.value().to_owned(),
                servers: self.servers.clone(),
            })),
            None => self.exporter.register_gauge(key, metadata),
        }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.exporter.register_histogram(key, metadata)
    }
}

#[cfg(test)]
mod tests {
    use metrics::{describe_gauge, gauge};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn servers_that_are_forgotten_take_no_room() {
        let (exporter, servers) = (
            PrometheusBuilder::new().build_recorder(),
            Servers::default(),
        );
        let handle = exporter.handle();
        let recording = Recording {
            exporter,
            servers: servers.clone(),
        };
        metrics::with_local_recorder(&recording, || {
            describe_gauge!(NAME, "Whether it responds.");
            for (server, up) in [("http://a", 1.0), ("http://b", 0.0), ("http://a", f64::NAN)] {
                gauge!(NAME, "server" => server).set(up);
            }
            gauge!("davenport_info").set(1.0);
        });
        let mut text = String::new();
        servers.render(&mut text);
        let expected = "# HELP davenport_endpoint_up Whether it responds.\n\
            # TYPE davenport_endpoint_up gauge\n\
            davenport_endpoint_up{server=\"http://b\"} 0\n\n";
        assert_eq!(text, expected);
        let others = handle.render();
        assert!(
            others.contains("davenport_info 1") && !others.contains(NAME),
            "{others}"
        );
    }
}
