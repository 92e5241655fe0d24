//! The progress of a job, which changes often and has its own row.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use replication::Stats;
use replication::engine::FailedDoc;

/// Less than [`store::limits::VALUE_BYTES_MAX`].
const ROW_BYTES_MAX: usize = 90_000;
/// What is left of each long text if the row is too large.
const TEXT_CHARS_MAX: usize = 1000;

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

    /// The row. If it were too large for the store, long texts are cut and the oldest rejected documents left out: progress
    /// that cannot be saved would keep the run from ending.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let row = json_bytes(self);
        if row.len() <= ROW_BYTES_MAX {
            return row;
        }
        let mut short = self.clone();
        let failures = short.failures.iter_mut().filter_map(Value::as_object_mut);
        let members = failures.flat_map(Map::values_mut);
        let seqs = short.info.values_mut().chain(&mut short.start_seq);
        members.chain(seqs).for_each(cut);
        let mut bytes = json_bytes(&short).len();
        let mut surplus = 0;
        while bytes > ROW_BYTES_MAX && surplus < short.failures.len() {
            bytes = bytes.saturating_sub(json_bytes(&short.failures[surplus]).len());
            surplus += 1;
        }
        short.failures.drain(..surplus);
        json_bytes(&short)
    }
}

fn json_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("progress is JSON")
}

/// Cuts an id, a sequence or a reason that is much longer than any server's.
fn cut(value: &mut Value) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
        _ => return,
    };
    if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
        *value = Value::from(format!("{}…", &text[..end]));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn live(seq: &Value, id: &str, reason: &str) -> Live {
        let failed = |n: usize| {
            let failed = FailedDoc {
                id: format!("{n}{id}"),
                rev: Some("1-x".to_owned()),
                error: "forbidden".to_owned(),
                reason: reason.to_owned(),
                time: Timestamp::UNIX_EPOCH,
            };
            show_failed_doc(&failed)
        };
        let names = ["checkpointed_source_seq", "source_seq", "through_seq"];
        let seqs = names.map(|name| (name.to_owned(), seq.clone()));
        Live {
            info: seqs.into_iter().collect(),
            start_seq: Some(seq.clone()),
            failures: (0..100).map(failed).collect(),
            ..Live::default()
        }
    }

    #[test]
    fn a_row_always_fits_into_the_store() {
        let whole = live(&json!("7-abc"), "id", &"x".repeat(800));
        assert_eq!(Live::decode(&whole.encode()), whole);

        let long = "\u{1}".repeat(10_000);
        for seq in [json!("7-abc"), json!(long), json!([7, long])] {
            for (id, reason) in [
                ("id", "é".repeat(900)),
                ("id", long.clone()),
                (&long, String::new()),
            ] {
                let row = live(&seq, id, &reason).encode();
                assert!(row.len() <= ROW_BYTES_MAX, "{}", row.len());
                let left = Live::decode(&row).failures;
                assert!((1..100).contains(&left.len()), "{}", left.len());
                let newest = left.last().and_then(|failed| failed["id"].as_str());
                assert!(newest.unwrap().starts_with("99"), "the newest are left");
            }
        }
        let few = live(&json!(long), "id", "no").encode();
        assert_eq!(Live::decode(&few).failures.len(), 100, "only texts are cut");
    }
}
