//! `_changes`.

mod feed;
mod filter;

use std::sync::Arc;
use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::{HeaderName, Method};
use wire::FeedKind;

use crate::db::Database;
use crate::refusal::Refusal;
use crate::render::Attachments;
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::seq::Seqs;
use crate::server::Server;

use feed::Feed;
use filter::Filter;

/// Idle feeds end or send a heartbeat after this time at the latest.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct FeedWait {
    pub(super) wait: Duration,
    /// Whether the feed then sends a heartbeat and continues, or ends.
    pub(super) heartbeat: bool,
}

impl FeedWait {
    pub(super) fn parse(request: &Request) -> Result<Self, Refusal> {
        let milliseconds = |text: &str| text.parse::<i64>().ok();
        let wait_options = match request.param("heartbeat") {
            None | Some("false") => None,
            Some("true") => Some(TIMEOUT_MAX),
            Some(text) => {
                let reason = "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).";
                let heartbeat = milliseconds(text).ok_or_else(|| Refusal::bad_request(reason))?;
                let reason = "The heartbeat value should be a positive integer (in milliseconds).";
                let heartbeat = u64::try_from(heartbeat)
                    .ok()
                    .filter(|heartbeat| *heartbeat > 0);
                Some(Duration::from_millis(
                    heartbeat.ok_or_else(|| Refusal::bad_request(reason))?,
                ))
            }
        };
        let timeout = match request.param("timeout") {
            None => TIMEOUT_MAX,
            Some(text) => {
                let reason = "The timeout parameter should be a non-negative integer";
                let timeout = milliseconds(text).ok_or_else(|| Refusal::bad_request(reason))?;
                let reason = "The timeout value should be a non-negative integer";
                Duration::from_millis(
                    u64::try_from(timeout).map_err(|_| Refusal::bad_request(reason))?,
                )
            }
        };
        let wait = wait_options.unwrap_or(timeout).min(TIMEOUT_MAX);
        Ok(Self {
            wait,
            heartbeat: wait_options.is_some(),
        })
    }
}

/// How documents are shown in a feed.
#[derive(Clone, Copy, Debug)]
struct Docs {
    conflicts: bool,
    attachments: Attachments,
    encoding: bool,
}

#[derive(Debug)]
struct Query {
    kind: FeedKind,
    filter: Filter,
    since: u64,
    descending: bool,
    limit: u64,
    seq_interval: Option<u64>,
    docs: Option<Docs>,
    all_leaves: bool,
    wait_options: FeedWait,
}

impl Query {
    fn parse(
        request: &Request,
        body: Option<&str>,
        db: &Database,
        seqs: Seqs,
        now: u64,
    ) -> Result<Self, Refusal> {
        let kind = FeedKind::parse(request.param("feed")).ok_or_else(|| {
            let forms = "normal, continuous, live, longpoll, eventsource";
            Refusal::bad_request(format!("Supported `feed` types: {forms}"))
        })?;
        let last_event = request.header(&HeaderName::from_static("last-event-id"));
        let last_event = last_event.filter(|_| kind == FeedKind::EventSource);
        let descending = request.flag("descending");
        let since = match last_event
            .or(request.param("last-event-id"))
            .or(request.param("since"))
        {
            _ if descending => now,
            None => 0,
            Some("now") => now,
            Some(text) => seqs.parse(text)?,
        };
        let seq_interval = match request.param("seq_interval").map(str::parse::<u64>) {
            None => None,
            Some(Ok(interval)) if interval > 0 => Some(interval),
            Some(_) => return Err(Refusal::bad_request("invalid_seq_interval")),
        };
        let docs = Docs {
            conflicts: request.flag("conflicts"),
            attachments: if request.flag("attachments") {
                Attachments::Inline
            } else {
                Attachments::Stubs
            },
            encoding: request.flag("att_encoding_info"),
        };
        let all_leaves = match request.param("style") {
            None | Some("main_only") => false,
            Some("all_docs") => true,
            Some(_) => return Err(Refusal::internal("badarg", "style")),
        };
        Ok(Self {
            kind,
            filter: Filter::parse(request, body, db)?,
            since,
            descending,
            limit: limit(request)?,
            seq_interval,
            docs: request.flag("include_docs").then_some(docs),
            all_leaves,
            wait_options: FeedWait::parse(request)?,
        })
    }
}

fn limit(request: &Request) -> Result<u64, Refusal> {
    let Some(text) = request.param("limit") else {
        return Ok(u64::MAX);
    };
    let reason = "The limit parameter should be a non-negative integer";
    let limit = text
        .parse::<i64>()
        .map_err(|_| Refusal::bad_request(reason))?;
    u64::try_from(limit)
        .map_err(|_| Refusal::bad_request("The limit value should be a non-negative integer"))
}

pub(super) async fn changes(
    server: &Arc<Server>,
    mut request: Request,
    db: &Arc<Database>,
) -> Result<Reply, Refusal> {
    let body = match request.method {
        Method::GET => None,
        Method::POST => {
            request.check_json()?;
            if request.has_body() {
                Some(request.json_object().await?)
            } else {
                None
            }
        }
        _ => return Err(Refusal::method("GET,POST,HEAD")),
    };
    let seqs = server.seqs(db);
    let now = db.read().seq;
    let query = Query::parse(&request, body.as_deref(), db, seqs, now)?;
    let kind = query.kind;
    let feed = Feed::new(Arc::clone(db), seqs, query, now);
    let stream = || reply::stream(kind.content_type(), feed.into_stream());
    Ok(match kind {
        FeedKind::Normal => {
            let etag = format!(
                "\"{:X}-{now:X}-{}\"",
                u64::from_be_bytes(db.uuid),
                db.created
            );
            reply::with_etag(&request, &etag, stream)
        }
        FeedKind::EventSource => reply::with(stream(), &CACHE_CONTROL, "no-cache"),
        FeedKind::Longpoll | FeedKind::Continuous => stream(),
    })
}
