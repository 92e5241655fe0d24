//! Requests for `_changes`.

use http::{Method, header};
use wire::FeedKind;

use crate::feed::Idle;
use crate::payload::Payload;
use crate::peer::Call;
use crate::types::{DocId, Seq};

/// Parameters of view filters that are JSON; all others are plain text.
const VIEW_PARAMS: [&str; 27] = [
    "key",
    "view_type",
    "reduce",
    "preflight_fun",
    "start_key",
    "start_key_docid",
    "end_key",
    "end_key_docid",
    "keys",
    "direction",
    "limit",
    "skip",
    "group_level",
    "group",
    "stable",
    "update",
    "multi_get",
    "inclusive_end",
    "include_docs",
    "doc_options",
    "update_seq",
    "conflicts",
    "callback",
    "sorted",
    "extra",
    "startkey",
    "endkey",
];

/// Parameters that users may not set: those of the feed itself, and those that change the form of rows.
const OURS: [&str; 12] = [
    "feed",
    "descending",
    "style",
    "since",
    "timeout",
    "heartbeat",
    "filter",
    "seq_interval",
    "include_docs",
    "att_encoding_info",
    "attachments",
    "conflicts",
];

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ChangesFilter {
    #[default]
    None,
    /// The changes that a function of the source passes, called with these parameters.
    Named(String, serde_json::Map<String, serde_json::Value>),
    DocIds(Vec<DocId>),
    /// The changes of documents that match a Mango selector (JSON text).
    Selector(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangesRequest {
    pub feed: FeedKind,
    /// The changes after this sequence.
    pub since: Seq,
    /// All leaf revisions (`style=all_docs`) instead of winners only.
    pub all_leaves: bool,
    pub filter: ChangesFilter,
    pub include_docs: bool,
    /// The newest change first, whatever `since` is.
    pub descending: bool,
    pub limit: Option<u64>,
    /// Asks for a sequence in every nth row only, because they are costly for clusters.
    pub seq_interval: Option<u64>,
    pub idle: Idle,
}

impl Default for ChangesRequest {
    fn default() -> Self {
        Self {
            feed: FeedKind::default(),
            since: Seq::zero(),
            all_leaves: true,
            filter: ChangesFilter::default(),
            include_docs: false,
            descending: false,
            limit: None,
            seq_interval: None,
            idle: Idle::default(),
        }
    }
}

impl Call {
    /// Adds everything but the filter.
    fn with(self, request: &ChangesRequest) -> Self {
        let mut call = self
            .param("feed", request.feed.name())
            .param(
                "style",
                if request.all_leaves {
                    "all_docs"
                } else {
                    "main_only"
                },
            )
            .param("since", &request.since.to_query());
        let (limit, interval) = match &request.filter {
            // The user's limit ends the feed, as in CouchDB. Our `seq_interval` only fits our own limit.
            ChangesFilter::Named(_, params) if params.contains_key("limit") => (None, None),
            _ => (request.limit, request.seq_interval),
        };
        let numbers = [
            request.idle.param(),
            limit.map(|limit| ("limit", limit)),
            interval.map(|interval| ("seq_interval", interval)),
        ];
        for (name, number) in numbers.into_iter().flatten() {
            call = call.param(name, &number.to_string());
        }
        if request.descending {
            call = call.param("descending", "true");
        }
        if request.include_docs {
            // Makes stubs include the encoding of compressed attachments.
            call = call
                .param("include_docs", "true")
                .param("att_encoding_info", "true");
        }
        if request.feed != FeedKind::Normal {
            // A compressing server delays rows until its buffer is full.
            call = call.header(header::ACCEPT_ENCODING, "identity");
        }
        call.stream()
    }
}

/// Asks for all changes, whatever the filter.
pub(super) fn unfiltered_call(request: &ChangesRequest) -> Call {
    Call::get("_changes").with(request)
}

pub(super) fn filtered_call(request: &ChangesRequest) -> Call {
    let post = |filter: &str, body: String| {
        Call::new(Method::POST, "_changes")
            .with(request)
            .param("filter", filter)
            .json(Payload::Bytes(body.into()))
    };
    match &request.filter {
        ChangesFilter::None => unfiltered_call(request),
        ChangesFilter::Selector(json) => post("_selector", format!("{{\"selector\":{json}}}")),
        ChangesFilter::DocIds(ids) => {
            let ids: Vec<_> = ids
                .iter()
                .map(|id| serde_json::Value::from(id.as_str()))
                .collect();
            post(
                "_doc_ids",
                serde_json::json!({ "doc_ids": ids }).to_string(),
            )
        }
        ChangesFilter::Named(name, params) => {
            let mut call = unfiltered_call(request);
            for (key, value) in params
                .iter()
                .filter(|(key, _)| !OURS.contains(&key.as_str()))
            {
                let text = match value {
                    serde_json::Value::String(text)
                        if name != "_view" || !VIEW_PARAMS.contains(&key.as_str()) =>
                    {
                        text.clone()
                    }
                    other => other.to_string(),
                };
                call = call.param(key, &text);
            }
            call.param("filter", name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(request: &ChangesRequest) -> (Method, String) {
        let call = filtered_call(request);
        (call.method, call.query)
    }

    #[test]
    fn queries() {
        let mut request = ChangesRequest::default();
        let plain = "feed=normal&style=all_docs&since=0";
        assert_eq!(query(&request), (Method::GET, plain.to_owned()));

        request.feed = FeedKind::Continuous;
        request.since = Seq::from_json("\"12-g1AAA+/\"").unwrap();
        request.all_leaves = false;
        request.include_docs = true;
        request.limit = Some(7);
        request.seq_interval = Some(100);
        request.idle = Idle::HeartbeatMs(10_000);
        let all = "feed=continuous&style=main_only&since=12-g1AAA%2B%2F&heartbeat=10000&limit=7\
                   &seq_interval=100&include_docs=true&att_encoding_info=true";
        assert_eq!(query(&request), (Method::GET, all.to_owned()));
    }

    #[test]
    fn filters() {
        let params = serde_json::json!({
            "a": "x y", "n": 1, "since": "9", "key": "k", "startkey": ["a"], "o": { "b": true },
        });
        let params = params.as_object().unwrap().clone();
        let named = |name: &str| ChangesRequest {
            filter: ChangesFilter::Named(name.to_owned(), params.clone()),
            ..ChangesRequest::default()
        };
        let base = "feed=normal&style=all_docs&since=0";
        let plain = "&a=x%20y&n=1&key=k&startkey=%5B%22a%22%5D&o=%7B%22b%22%3Atrue%7D&filter=d%2Ff";
        assert_eq!(query(&named("d/f")).1, format!("{base}{plain}"));
        let view =
            "&a=x%20y&n=1&key=%22k%22&startkey=%5B%22a%22%5D&o=%7B%22b%22%3Atrue%7D&filter=_view";
        assert_eq!(query(&named("_view")).1, format!("{base}{view}"));

        // The user's limit applies, but the form of rows is not theirs to change.
        let params = serde_json::json!({
            "limit": "2", "include_docs": "true", "attachments": "true", "seq_interval": "3", "b": "c",
        });
        let limited = ChangesRequest {
            filter: ChangesFilter::Named("d/f".to_owned(), params.as_object().unwrap().clone()),
            limit: Some(100),
            seq_interval: Some(10),
            ..ChangesRequest::default()
        };
        assert_eq!(
            query(&limited).1,
            format!("{base}&limit=2&b=c&filter=d%2Ff")
        );

        let ids = ChangesRequest {
            filter: ChangesFilter::DocIds(vec![DocId::from("a\"b")]),
            ..ChangesRequest::default()
        };
        let call = filtered_call(&ids);
        assert_eq!(
            (call.method, call.query),
            (Method::POST, format!("{base}&filter=_doc_ids"))
        );
        let Payload::Bytes(body) = call.payload else {
            panic!()
        };
        assert_eq!(body, r#"{"doc_ids":["a\"b"]}"#);
    }
}
