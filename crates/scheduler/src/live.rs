//! The progress of a job, which changes often and has its own row.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use replication::Stats;
use replication::engine::FailedDoc;

/// The state that changes while a job runs, and remains when it does not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Live {
    /// `info` while it runs or waits.
    pub(crate) info: Map<String, Value>,
    pub(crate) updated: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_seq: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_from: Option<String>,
    /// The last rejected documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<Value>,
}

/// What a run continues of earlier ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seed {
    pub(crate) stats: Stats,
    pub(crate) failures: Arc<Vec<FailedDoc>>,
    pub(crate) last_progress: Option<Timestamp>,
}

impl Live {
    pub(crate) fn seed(self) -> Seed {
        let last_progress = self.info.get("last_progress_time").and_then(Value::as_str);
        Seed {
            last_progress: last_progress.and_then(|time| time.parse().ok()),
            failures: Arc::new(self.failures.iter().filter_map(failed_doc).collect()),
            stats: Stats::from_info(&Value::Object(self.info)),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        // Progress is not essential: if it cannot be decoded, it counts as missing.
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("progress is JSON")
    }
}

/// A rejected document as readers see it.
pub(crate) fn show_failed_doc(failed: &FailedDoc) -> Value {
    json!({
        "id": failed.id, "rev": failed.rev, "error": failed.error,
        "reason": failed.reason, "time": failed.time.to_string(),
    })
}

fn failed_doc(shown: &Value) -> Option<FailedDoc> {
    let text = |name| shown.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(FailedDoc {
        id: text("id")?,
        rev: text("rev"),
        error: text("error")?,
        reason: text("reason").unwrap_or_default(),
        time: text("time")?.parse().ok()?,
    })
}
