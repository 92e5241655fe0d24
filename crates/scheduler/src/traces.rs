//! How the spans of one request hang together when a job carries them from node to node.
//!
//! Libraries make spans and do not know who collects them. Whoever does says so, once in a process.

use std::fmt;
use std::sync::OnceLock;

use tracing::Span;

pub trait Collector: fmt::Debug + Send + Sync {
    /// The current span as W3C Trace Context writes it in `traceparent`; `None` when it is not collected.
    fn current(&self) -> Option<String>;
    /// Makes a span the child of such a one. What cannot be read changes nothing.
    fn follow(&self, span: &Span, parent: &str);
}

static COLLECTOR: OnceLock<Box<dyn Collector>> = OnceLock::new();

/// Says who collects spans, for as long as the process lives; nobody does before. False when somebody has said so already.
pub fn collect(collector: Box<dyn Collector>) -> bool {
    COLLECTOR.set(collector).is_ok()
}

pub(crate) fn current() -> Option<String> {
    COLLECTOR.get()?.current()
}

/// Makes a span the child of one elsewhere, if spans are collected.
pub fn follow(span: &Span, parent: &str) {
    if let Some(collector) = COLLECTOR.get() {
        collector.follow(span, parent);
    }
}
