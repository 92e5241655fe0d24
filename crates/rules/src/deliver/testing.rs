//! What tests of deliveries share.

use crate::rule::call::{Call, Retry};

/// A call because of a change.
pub(super) fn call(url: &str) -> Call {
    Call {
        rule: "rule".into(),
        rules: "_rules".into(),
        method: "POST".into(),
        url: url.into(),
        query: None,
        body: Some("{}".into()),
        source: "upstream".into(),
        db: "db".into(),
        doc_id: "doc".into(),
        rev: "1-a".into(),
        seq: "1-x".into(),
        retry: Retry::default(),
        timeout_sec: None,
        debounce: false,
        hops: 0,
        left_out: 0,
        generation: None,
        target: None,
    }
}
