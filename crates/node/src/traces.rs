//! Exports spans to an OpenTelemetry collector.

use std::collections::HashMap;

use anyhow::{Context as _, anyhow};
use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use scheduler::traces::{Collector, collect};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use url::Url;

/// Spans of the exporter itself are not exported, which would never end.
const OWN: [&str; 4] = ["hyper", "h2", "opentelemetry", "reqwest"];

/// Collects spans and sends them in batches, from its own thread.
#[derive(Debug)]
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    pub(crate) fn start(url: &Url, node: &str) -> anyhow::Result<Self> {
        let mut traces = url.clone();
        traces
            .path_segments_mut()
            .map_err(|()| anyhow!("`otlp_url` has no host"))?
            .pop_if_empty()
            .extend(["v1", "traces"]);
        // Its blocking client must not be created or dropped on an async thread.
        let exporter = std::thread::spawn(move || {
            SpanExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpJson)
                .with_endpoint(traces)
                .build()
        });
        let exporter = exporter
            .join()
            .map_err(|_| anyhow!("cannot create its client"))?;
        let exporter = exporter.context("cannot create the span exporter")?;
        let resource = Resource::builder()
            .with_service_name("davenport")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(exporter)
            .build();
        collect(Box::new(TraceContext));
        Ok(Self(provider))
    }

    /// The layer that collects spans.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("davenport"));
        layer.with_filter(filter_fn(|metadata| {
            !OWN.iter().any(|own| metadata.target().starts_with(own))
        }))
    }

    /// Sends the remaining spans; blocks.
    pub(crate) fn stop(&self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "cannot send the remaining spans");
        }
    }
}

/// Reads and writes `traceparent`.
#[derive(Debug)]
struct TraceContext;

impl Collector for TraceContext {
    fn current(&self) -> Option<String> {
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
        carrier.remove("traceparent")
    }

    fn follow(&self, span: &Span, parent: &str) {
        let carrier = HashMap::from([("traceparent".to_owned(), parent.to_owned())]);
        // Fails if the span is not collected.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
    }
}
