//! The progress of a job, which changes often and has its own row.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

impl Live {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        // Progress is not essential: if it cannot be decoded, it counts as missing.
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("progress is JSON")
    }
}
