//! Checkpoints: the `_local` documents on both sides that record how far a replication has come.
//!
//! A checkpoint counts only if both sides have the same session. Whatever happened to one of them in between (a restore
//! from a backup, a replacement, a new database under the same name), the newest common session is a safe position.
//! Format and procedure are CouchDB's, so either replicator can continue the other's work.

mod resume;
mod writer;

use couch::Seq;
use serde_json::{Map, Value};

pub use resume::Resume;
pub(crate) use resume::{Since, is_far};
pub(crate) use writer::{Checkpointer, SOURCE_STARTED, Session, Side, same_instance};

/// Maximum number of history entries.
const HISTORY_MAX: usize = 50;

/// The body of one side's checkpoint document, empty if there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Log {
    body: Map<String, Value>,
}

/// The position where a replication resumes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    pub(crate) start: Seq,
    /// Earlier sessions, newest first.
    pub(crate) history: Vec<Value>,
}

impl Log {
    pub(crate) fn new(body: Map<String, Value>) -> Self {
        Self { body }
    }

    /// The body without `_id`, `_rev` and the like.
    pub(crate) fn body(&self) -> Map<String, Value> {
        let special = |name: &str| name == "_id" || name == "_rev";
        self.body
            .iter()
            .filter(|(name, _)| !special(name))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.body.get(name)
    }

    fn session_id(&self) -> Option<&Value> {
        self.body.get("session_id")
    }

    fn history(&self) -> &[Value] {
        self.body
            .get("history")
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }
}

/// Finds the newest session that both sides have. If they have different positions for it, the earlier one counts;
/// CouchDB uses the one of the side it looks at. Positions differ after a crash between the two writes, which is
/// harmless, but also if one database was restored from a backup: then only the earlier position is certain to be in
/// both.
pub(crate) fn compare(source: &Log, target: &Log) -> Start {
    if source.session_id() == target.session_id() {
        let start = earlier(source.get("source_last_seq"), target.get("source_last_seq"));
        return Start {
            start,
            history: source.history().to_vec(),
        };
    }
    let (mut ours, mut theirs) = (source.history(), target.history());
    while let ([our_head, our_rest @ ..], [their_head, their_rest @ ..]) = (ours, theirs) {
        if let Some(same) = find(our_head, theirs) {
            return Start {
                start: recorded(our_head, same),
                history: our_rest.to_vec(),
            };
        }
        if let Some(same) = find(their_head, our_rest) {
            return Start {
                start: recorded(their_head, same),
                history: their_rest.to_vec(),
            };
        }
        (ours, theirs) = (our_rest, their_rest);
    }
    Start {
        start: Seq::zero(),
        history: Vec::new(),
    }
}

/// The entry of a session in `entries`.
fn find<'a>(entry: &Value, entries: &'a [Value]) -> Option<&'a Value> {
    let session = entry.get("session_id")?;
    entries
        .iter()
        .find(|other| other.get("session_id") == Some(session))
}

fn recorded(entry: &Value, same: &Value) -> Seq {
    earlier(entry.get("recorded_seq"), same.get("recorded_seq"))
}

fn earlier(a: Option<&Value>, b: Option<&Value>) -> Seq {
    let (a, b) = (seq(a), seq(b));
    match (number(&a), number(&b)) {
        (Some(first), Some(second)) if second < first => b,
        _ => a,
    }
}

/// The number at the start of a sequence, which orders the sequences of one database.
fn number(seq: &Seq) -> Option<u64> {
    let text = seq.as_json().trim_start_matches(['"', '[', ' ']);
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    text[..digits].parse().ok()
}

/// Whether `seq` is past `known`. The same position may be spelled differently.
pub(crate) fn is_later(seq: &Seq, known: &Seq) -> bool {
    match (number(seq), number(known)) {
        (Some(new), Some(old)) => new > old,
        _ => seq != known,
    }
}

fn seq(value: Option<&Value>) -> Seq {
    value
        .filter(|value| !value.is_null())
        .map_or_else(Seq::zero, Seq::from_value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn log(sessions: &[(&str, u64)]) -> Log {
        let history: Vec<_> = sessions
            .iter()
            .map(|(id, seq)| json!({"session_id": id, "recorded_seq": seq}))
            .collect();
        let Some((id, seq)) = sessions.first() else {
            return Log::default();
        };
        let body = json!({"_id": "_local/x", "_rev": "0-1", "session_id": id, "source_last_seq": seq, "history": history});
        Log::new(body.as_object().unwrap().clone())
    }

    fn check(source: &[(&str, u64)], target: &[(&str, u64)], start: u64, history: &[&str]) {
        let found = compare(&log(source), &log(target));
        let ids: Vec<_> = found
            .history
            .iter()
            .map(|entry| entry["session_id"].as_str().unwrap())
            .collect();
        assert_eq!(
            (found.start.as_number(), ids.as_slice()),
            (Some(start), history)
        );
    }

    #[test]
    fn common_sessions() {
        check(&[], &[], 0, &[]);
        check(&[("a", 5)], &[], 0, &[]);
        check(&[], &[("a", 5)], 0, &[]);
        check(&[("b", 9), ("a", 5)], &[("b", 9), ("a", 5)], 9, &["b", "a"]);
        // One side is behind, because the last write to it failed or it was restored.
        check(&[("b", 9), ("a", 5)], &[("a", 5)], 5, &[]);
        check(&[("a", 5)], &[("b", 9), ("a", 5)], 5, &[]);
        check(
            &[("c", 9), ("b", 7), ("a", 5)],
            &[("d", 8), ("b", 7), ("a", 5)],
            7,
            &["a"],
        );
        check(&[("c", 9)], &[("d", 8)], 0, &[]);
        check(
            &[("c", 9), ("a", 1)],
            &[("d", 8), ("b", 2), ("a", 1)],
            1,
            &[],
        );
        check(
            &[("c", 9), ("x", 3), ("a", 1)],
            &[("d", 8), ("b", 2), ("a", 1)],
            1,
            &[],
        );
    }

    #[test]
    fn of_two_positions_the_earlier_counts() {
        check(&[("s", 7), ("a", 1)], &[("t", 9), ("s", 4)], 4, &["a"]);
        check(
            &[("t", 9), ("s", 4), ("a", 1)],
            &[("s", 7), ("b", 1)],
            4,
            &["b"],
        );
        check(&[("s", 7)], &[("s", 4)], 4, &["s"]);
        check(&[("s", 4)], &[("s", 7)], 4, &["s"]);
        let at = |seq: Value| {
            let body = json!({"session_id": "a", "source_last_seq": seq});
            Log::new(body.as_object().unwrap().clone())
        };
        let start = |a: Value, b: Value| compare(&at(a), &at(b)).start.to_query();
        assert_eq!(start(json!("12-abc"), json!("9-xyz")), "9-xyz");
        assert_eq!(start(json!([12, "x"]), json!([100, "y"])), r#"[12,"x"]"#);
        assert_eq!(start(json!("x12"), json!("9-x")), "x12");
        assert_eq!(start(json!("12-abc"), json!(null)), "0");
    }

    #[test]
    fn odd_documents_do_not_confuse() {
        let odd = |body: Value| Log::new(body.as_object().unwrap().clone());
        let zero = Start {
            start: Seq::zero(),
            history: Vec::new(),
        };
        assert_eq!(
            compare(
                &odd(json!({"history": 5})),
                &odd(json!({"history": [1, null]}))
            ),
            zero
        );
        assert_eq!(
            compare(
                &odd(json!({"session_id": "a"})),
                &odd(json!({"session_id": "a"}))
            ),
            zero
        );
        let opaque = odd(json!({"session_id": "a", "source_last_seq": [3, "x"]}));
        assert_eq!(compare(&opaque, &opaque).start.as_json(), r#"[3,"x"]"#);
    }
}
