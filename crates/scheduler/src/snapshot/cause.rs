//! Why replications fail: causes that several of them share, and what to do about an error.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::RowState;

/// The first line that has a word of the error or its reason, in lower case.
const HINTS: [(&[&str], &str); 15] = [
    (
        &["security_not_copied"],
        "Only administrators may read and write _security. Use such users in the remote's source and url, or set copy_security to false.",
    ),
    (
        &["duplicate", "already started", "already running"],
        "Another replication does the same work. Delete one of them; this one starts when the other is gone.",
    ),
    (
        &["egress", "denied", "not allowed"],
        "The service may not connect to this address. An administrator can allow it in network.egress.allow.",
    ),
    (
        &[
            "unauthorized",
            "forbidden",
            "auth_error",
            "session_request",
            "incorrect",
        ],
        "Check the user and password of this endpoint. The user must be able to read the source or write to the target.",
    ),
    (
        &["db_not_found", "could not open"],
        "Create the database on that server. If it is the target, you can set create_target instead.",
    ),
    (
        &["nxdomain", "could not resolve"],
        "Check the host name in the URL and the DNS settings of the replication nodes.",
    ),
    (
        &["filter_fetch_error"],
        "Check that the design document and its filter function exist on the source.",
    ),
    (
        &["tls", "certificate", "unknown_ca", "hostname"],
        "Check the server's certificate and host name. Replication nodes must trust its certificate authority.",
    ),
    (
        &["max_backoff", "429"],
        "The server is limiting requests. Run fewer replications against it or raise its limit.",
    ),
    (
        &["no_progress"],
        "The source reports pending changes but sends none. Look for a proxy that buffers responses.",
    ),
    (
        &["checkpoint", "out of sync"],
        "A database was recreated, or the user cannot write _local documents. Check both, then restart the replication.",
    ),
    (
        &["doc_write_failed"],
        "The target rejects a document. Correct the document, or set on_write_failure to skip.",
    ),
    (
        &[
            "timeout",
            "refused",
            "unreachable",
            "connect",
            "respond",
            "500",
            "502",
            "503",
            "504",
        ],
        "The server does not respond properly. Check the server; the job is retried automatically.",
    ),
    (
        &["local_endpoints_not_supported", "invalid url"],
        "Enter a full URL, such as https://couch.example.com/database.",
    ),
    (
        &["field", "must be", "invalid", "exclusive", "endpoint"],
        "This is not a valid replication document. Correct the document to start a new job.",
    ),
];

/// What to do about an error, if that is known.
pub fn hint(error: &str, reason: &str) -> Option<&'static str> {
    let text = format!("{error} {reason}").to_lowercase();
    let fits = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let found = HINTS.iter().find(|(words, _)| fits(words));
    found.map(|(_, hint)| *hint)
}

/// The `error` and `reason` of a job's `info`. Documents have both in one text.
pub(crate) fn parts(info: &Value) -> (&str, &str) {
    let part = |name| info.get(name).and_then(Value::as_str);
    match (part("error"), part("reason")) {
        (Some(error), Some(reason)) => (error, reason),
        (Some(text), None) | (None, Some(text)) => text.split_once(": ").unwrap_or((text, "")),
        (None, None) => ("", ""),
    }
}

/// What replications have in common that fail for the same reason: the state, the error and the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Names the cause in requests.
    pub(crate) key: String,
    pub(crate) error: String,
    /// The reason of one of them.
    pub(crate) reason: String,
    pub(crate) server: Option<String>,
}

/// The causes of a listing, each once.
#[derive(Debug, Default)]
pub(crate) struct Causes(HashMap<String, Arc<Cause>>);

impl Causes {
    pub(crate) fn of(&mut self, state: RowState, error: &str, reason: &str) -> Arc<Cause> {
        let server = server_in(reason).or_else(|| server_in(error));
        self.named(state, error, reason, server)
    }

    /// The outage of a server.
    pub(crate) fn outage(&mut self, server: &str, reason: &str) -> Arc<Cause> {
        let state = RowState::Unreachable;
        self.named(state, "does not respond", reason, Some(server))
    }

    /// The outage that explains why a job crashed, if there is one.
    pub(crate) fn outage_behind(&self, cause: &Cause) -> Option<&Arc<Cause>> {
        let server = cause.server.as_deref()?;
        let unanswered = ["_failed", "auth_error"];
        let fits = unanswered.iter().any(|end| cause.error.ends_with(end));
        let key = key(RowState::Unreachable, "does not respond", Some(server));
        self.0.get(&key).filter(|_| fits)
    }

    fn named(
        &mut self,
        state: RowState,
        error: &str,
        reason: &str,
        server: Option<&str>,
    ) -> Arc<Cause> {
        let key = key(state, error, server);
        let cause = self.0.entry(key.clone()).or_insert_with(|| {
            Arc::new(Cause {
                key,
                error: error.to_owned(),
                reason: reason.to_owned(),
                server: server.map(str::to_owned),
            })
        });
        Arc::clone(cause)
    }
}

fn key(state: RowState, error: &str, server: Option<&str>) -> String {
    [state.as_str(), error, server.unwrap_or_default()].join(" ")
}

/// The server of the first URL in a text, as outages name it.
fn server_in(text: &str) -> Option<&str> {
    let begin = ["http://", "https://"].iter().filter_map(|s| text.find(s));
    let text = &text[begin.min()?..];
    let host = text.find("//")? + 2;
    let end = text[host..].find(['/', ' ', '"', '\'', ',', ';', ')', '?']);
    Some(text[..end.map_or(text.len(), |end| host + end)].trim_end_matches([':', '.']))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_are_found_in_reasons() {
        for (reason, server) in [
            ("could not open http://a:5984/x/", Some("http://a:5984")),
            (
                "503 GET https://a.example/db/: no",
                Some("https://a.example"),
            ),
            ("cannot reach http://b: refused", Some("http://b")),
            ("no server", None),
        ] {
            assert_eq!(server_in(reason), server, "{reason}");
        }
    }

    #[test]
    fn one_cause_is_of_one_server_and_state() {
        let mut causes = Causes::default();
        let mut of = |state, reason| causes.of(state, "db_not_found", reason);
        let one = of(RowState::Failed, "could not open http://a/x/");
        assert_eq!(one, of(RowState::Failed, "could not open http://a/y/"));
        assert_ne!(one, of(RowState::Failed, "could not open http://b/y/"));
        assert_ne!(one, of(RowState::Crashing, "could not open http://a/x/"));
        let outage = causes.outage("http://a", "timeout");
        let crash = causes.of(RowState::Crashing, "http_request_failed", "GET http://a/x");
        assert_eq!(causes.outage_behind(&crash), Some(&outage));
        assert_eq!(causes.outage_behind(&one), None);
    }

    #[test]
    fn errors_have_hints() {
        assert!(hint("db_not_found", "").unwrap().starts_with("Create the"));
        let refused = hint(
            "egress_not_allowed",
            "the address 10.0.0.1 is not allowed: forbidden",
        );
        assert!(refused.unwrap().contains("network.egress.allow"));
        assert_eq!(hint("completed", ""), None);
        assert_eq!(
            parts(&json!({"error": "db_not_found: could not open x"})),
            ("db_not_found", "could not open x")
        );
    }
}
