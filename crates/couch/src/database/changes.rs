//! `_changes`: what happened in a database, as a stream.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use http::{Method, header};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Database;
use crate::document::Document;
use crate::error::Error;
use crate::feed::Feed;
use crate::payload::Payload;
use crate::peer::{Call, Reply};
use crate::rows::Layout;
use crate::types::{DocId, Rev, Seq};

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

/// Parameters that users may not set: those of the feed itself, and those that say what a row looks like.
const OURS: [&str; 11] = [
    "feed",
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FeedKind {
    /// After the last change there is now.
    #[default]
    Normal,
    /// After the next change, if there is none yet.
    Longpoll,
    /// When nothing happens for the time-out.
    Continuous,
    /// The same as events for browsers, which some proxies let through that hold back other streams.
    EventSource,
}

impl FeedKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Longpoll => "longpoll",
            Self::Continuous => "continuous",
            Self::EventSource => "eventsource",
        }
    }

    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Normal | Self::Longpoll => Layout::Member("results"),
            Self::Continuous => Layout::Values,
            Self::EventSource => Layout::Events,
        }
    }

    /// Whether what comes around the rows belongs to one JSON value.
    pub(crate) fn has_envelope(self) -> bool {
        matches!(self, Self::Normal | Self::Longpoll)
    }
}

/// What a server does while nothing happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Idle {
    /// Whatever it likes.
    #[default]
    Default,
    /// It ends the feed after so many milliseconds (`timeout`).
    TimeoutMs(u64),
    /// It sends an empty line every so many milliseconds (`heartbeat`), also while a filter lets
    /// nothing through.
    HeartbeatMs(u64),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ChangesFilter {
    #[default]
    None,
    /// Those that a function of the source lets through; its parameters by name.
    Named(String, serde_json::Map<String, serde_json::Value>),
    /// Those of these documents.
    DocIds(Vec<DocId>),
    /// Those whose documents match a Mango selector, given as JSON text.
    Selector(String),
}

/// What is asked of a feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangesRequest {
    /// How it ends.
    pub feed: FeedKind,
    /// After which sequence it starts.
    pub since: Seq,
    /// All leaf revisions (`style=all_docs`) instead of winners only.
    pub all_leaves: bool,
    pub filter: ChangesFilter,
    pub include_docs: bool,
    /// At most so many rows.
    pub limit: Option<u64>,
    /// A sequence with every so many rows only.
    pub seq_interval: Option<u64>,
    /// What the server does while nothing happens.
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
            limit: None,
            seq_interval: None,
            idle: Idle::default(),
        }
    }
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The document; empty in databases that were damaged by old versions.
    pub id: DocId,
    /// The sequence, which [may be null](Seq::is_null).
    pub seq: Seq,
    pub revs: Vec<Rev>,
    /// Whether the winner is deleted.
    pub deleted: bool,
    /// The winning document, if it was asked for and is one.
    pub document: Option<Document>,
}

/// A feed being read.
pub struct Changes {
    feed: Feed,
    kind: FeedKind,
    /// Documents to let through, when the server cannot filter.
    only: Option<HashSet<DocId>>,
    last_seq: Option<Seq>,
    pending: Option<u64>,
    is_done: bool,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    seq: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    changes: Vec<RowRev<'a>>,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    removed: bool,
    #[serde(borrow)]
    doc: Option<&'a RawValue>,
    last_seq: Option<Seq>,
    pending: Option<u64>,
    error: Option<String>,
    reason: Option<String>,
    /// There only when the server does not know this kind of feed and answers with a normal one.
    results: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RowRev<'a> {
    #[serde(borrow)]
    rev: Cow<'a, str>,
}

#[derive(Deserialize)]
struct End {
    last_seq: Option<Seq>,
    pending: Option<u64>,
}

impl Database {
    /// Opens a feed. A server too old for `_doc_ids` is asked for everything, and filtered here.
    pub async fn changes(&self, request: &ChangesRequest) -> Result<Changes, Error> {
        let reply = Box::pin(self.peer.send(&filtered_call(request))).await?;
        match &request.filter {
            ChangesFilter::DocIds(ids) if reply.status == 405 => {
                drop(reply);
                let reply = self.peer.send(&Call::get("_changes").with(request)).await?;
                let mut changes = Changes::new(reply.success().await?, request.feed);
                changes.only = Some(ids.iter().cloned().collect());
                Ok(changes)
            }
            _ => Ok(Changes::new(reply.success().await?, request.feed)),
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
        let idle = match request.idle {
            Idle::Default => None,
            Idle::TimeoutMs(ms) => Some(("timeout", ms)),
            Idle::HeartbeatMs(ms) => Some(("heartbeat", ms)),
        };
        let (limit, interval) = match &request.filter {
            // The user's limit, which ends the feed as in CouchDB; the interval between sequences goes with ours.
            ChangesFilter::Named(_, params) if params.contains_key("limit") => (None, None),
            _ => (request.limit, request.seq_interval),
        };
        let numbers = [
            idle,
            limit.map(|limit| ("limit", limit)),
            interval.map(|interval| ("seq_interval", interval)),
        ];
        for (name, number) in numbers.into_iter().flatten() {
            call = call.param(name, &number.to_string());
        }
        if request.include_docs {
            // Stubs then say which attachments are compressed.
            call = call
                .param("include_docs", "true")
                .param("att_encoding_info", "true");
        }
        if request.feed != FeedKind::Normal {
            // Servers that compress hold rows back until they have enough to compress.
            call = call.header(header::ACCEPT_ENCODING, "identity");
        }
        call.stream()
    }
}

fn filtered_call(request: &ChangesRequest) -> Call {
    let post = |filter: &str, body: String| {
        Call::new(Method::POST, "_changes")
            .with(request)
            .param("filter", filter)
            .json(Payload::Bytes(body.into()))
    };
    match &request.filter {
        ChangesFilter::None => Call::get("_changes").with(request),
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
            let mut call = Call::get("_changes").with(request);
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

impl Changes {
    fn new(reply: Reply, kind: FeedKind) -> Self {
        let feed = Feed::new(reply, kind.layout());
        Self {
            feed,
            kind,
            only: None,
            last_seq: None,
            pending: None,
            is_done: false,
        }
    }

    /// The next change, `None` at the end of the feed. May be cancelled and called again.
    ///
    /// [`Error::Interrupted`] says that the feed broke off: open it again after the last row. A
    /// continuous feed that ends without [`Changes::last_seq`] was closed by its server.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        if self.is_done {
            return Ok(None);
        }
        let next = self.read_next().await;
        // Nothing comes after the end, nor after an error.
        self.is_done |= !matches!(next, Ok(Some(_)));
        next
    }

    async fn read_next(&mut self) -> Result<Option<Change>, Error> {
        while !self.is_done {
            let Some(row) = self.feed.next_row().await? else {
                if self.kind.has_envelope() {
                    let end: End = self.feed.envelope()?;
                    (self.last_seq, self.pending) = (end.last_seq, end.pending);
                }
                return Ok(None);
            };
            if let Some(change) = self.read(&row)? {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }

    /// The sequence that the server named at the end of the feed: everything up to it was told.
    pub fn last_seq(&self) -> Option<&Seq> {
        self.last_seq.as_ref()
    }

    /// How many changes were left then, if the server said.
    pub fn pending(&self) -> Option<u64> {
        self.pending
    }

    fn read(&mut self, bytes: &Bytes) -> Result<Option<Change>, Error> {
        let row: Row<'_> = match serde_json::from_slice(bytes) {
            Ok(row) => row,
            Err(error) => return Err(self.feed.bad_row(&error)),
        };
        let Some(id) = row.id else {
            return self.read_other(row);
        };
        let id = DocId::new(id.into_owned());
        if self.only.as_ref().is_some_and(|only| !only.contains(&id)) {
            return Ok(None);
        }
        // One document that makes no sense shall not keep the others back: it can be asked for by itself.
        let document = row
            .doc
            .filter(|raw| raw.get() != "null")
            .and_then(|raw| Document::parse(bytes.slice_ref(raw.get().as_bytes())).ok());
        let revs = row
            .changes
            .into_iter()
            .map(|change| Rev::new(change.rev.into_owned()));
        Ok(Some(Change {
            id,
            seq: row.seq.map_or_else(Seq::null, Seq::from_raw),
            // Access to the first revision was taken away.
            revs: revs.skip(usize::from(row.removed)).collect(),
            deleted: row.deleted,
            document,
        }))
    }

    /// A row that is no change: the end of a continuous feed, or an error in the middle of one.
    fn read_other(&mut self, row: Row<'_>) -> Result<Option<Change>, Error> {
        if row.results.is_some() {
            return Err(self.feed.bad("it is another kind of feed"));
        }
        if row.last_seq.is_some() {
            (self.last_seq, self.pending) = (row.last_seq, row.pending);
            self.is_done = true;
            return Ok(None);
        }
        Err(match (row.error, row.reason) {
            (None, _) => self.feed.bad("a row without an id"),
            (Some(error), reason) => {
                let said = format!("{error}: {}", reason.unwrap_or_default());
                self.feed.reported(&said)
            }
        })
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

        // A limit of the user's counts. What a row looks like is nothing for them to say.
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
