//! Trace context that a job carries from node to node.
//!
//! Libraries create spans without knowing the collector, which registers itself here, once per process.

use std::fmt;
use std::sync::OnceLock;

use tracing::Span;

pub trait Collector: fmt::Debug + Send + Sync {
    /// The current span as W3C Trace Context, in the form of `traceparent`; `None` if it is not collected.
    fn current(&self) -> Option<String>;
    /// Makes a span the child of a remote one. Malformed contexts are ignored.
    fn follow(&self, span: &Span, parent: &str);
}

static COLLECTOR: OnceLock<Box<dyn Collector>> = OnceLock::new();

/// Registers the collector for the life of the process. False if there already is one.
pub fn collect(collector: Box<dyn Collector>) -> bool {
    COLLECTOR.set(collector).is_ok()
}

pub(crate) fn current() -> Option<String> {
    COLLECTOR.get()?.current()
}

/// Makes a span the child of a remote one, if spans are collected.
pub fn follow(span: &Span, parent: &str) {
    if let Some(collector) = COLLECTOR.get() {
        collector.follow(span, parent);
    }
}
