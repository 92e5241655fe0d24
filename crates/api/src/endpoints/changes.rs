//! `_changes`: parsing the request.

mod feed;
mod guard;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use docstore::{ChangesQuery, Filter, Since};
use document::json::Json;
use document::mango::Selector;
use document::matching::Matcher;
use http::{HeaderName, Method};
use wire::FeedKind;

use super::reading::{self, Reading};
use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::Reply;
use feed::Feed;
use guard::Guard;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The interval of `heartbeat=true`.
const HEARTBEAT: Duration = Duration::from_mins(1);

pub(crate) async fn changes(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("GET,POST,HEAD")?;
    let body = if call.method == Method::POST {
        call.check_json()?;
        let read = |text: &str| match text.trim() {
            "" => Ok(Json::Null),
            text => Json::parse(text),
        };
        call.parse(read).await?
    } else {
        Json::Null
    };
    let kind = FeedKind::parse(call.query.get("feed")).ok_or_else(|| {
        let forms = "normal, continuous, live, longpoll, eventsource";
        Error::bad_request(format!("Supported `feed` types: {forms}"))
    })?;
    let query = ChangesQuery {
        since: since(call, kind)?,
        descending: call.query.flag("descending")?,
        before: None,
        limit: call.query.number("limit")?,
        all_leaves: style(call)?,
        include_docs: if call.query.flag("include_docs")? {
            Some(reading::options(&call.query)?)
        } else {
            None
        },
        filter: filter(call, &body)?,
    };
    let heartbeat = heartbeat(call)?;
    let max = call.options().changes_timeout;
    let timeout = call
        .query
        .number("timeout")?
        .map_or(max, |given| given.min(max));
    let feed = Feed::new(Reading::new(call, opened), Guard::of(call), kind, query).waiting(
        heartbeat,
        Duration::from_millis(timeout),
        call.shared.stop.clone(),
    );
    feed.answer().await
}

fn since(call: &Call, kind: FeedKind) -> Result<Since, Error> {
    let resumed = || {
        call.header(&LAST_EVENT_ID)
            .filter(|_| kind == FeedKind::EventSource)
    };
    let given = call.query.get("last-event-id").or_else(resumed);
    match given.or(call.query.get("since")) {
        None | Some("") => Ok(Since::default()),
        Some(text) => Ok(text.parse()?),
    }
}

fn style(call: &Call) -> Result<bool, Error> {
    match call.query.get("style") {
        None | Some("main_only") => Ok(false),
        Some("all_docs") => Ok(true),
        Some(_) => Err(Error::query("`style` must be main_only or all_docs")),
    }
}

fn heartbeat(call: &Call) -> Result<Option<Duration>, Error> {
    match call.query.get("heartbeat") {
        None | Some("false") => Ok(None),
        Some("true") => Ok(Some(HEARTBEAT)),
        Some(_) => match call.query.number("heartbeat") {
            // Shorter intervals only waste time on both sides.
            Ok(Some(ms)) if ms > 0 => Ok(Some(Duration::from_millis(ms.clamp(100, 86_400_000)))),
            _ => Err(Error::bad_request(
                "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).",
            )),
        },
    }
}

fn filter(call: &Call, body: &Json) -> Result<Filter, Error> {
    match call.query.get("filter") {
        None | Some("") => Ok(Filter::Everything),
        Some("_design") => Ok(Filter::Design),
        Some("_doc_ids") => {
            let given = match body.get("doc_ids") {
                Some(given) => Some(given.clone()),
                None => call.query.json("doc_ids")?,
            };
            let bad = || Error::bad_request("`doc_ids` filter parameter is not a list of doc ids.");
            let given = given.ok_or_else(bad)?;
            let ids = given.as_array().ok_or_else(bad)?.iter();
            let ids = ids.map(|id| id.as_str().map(str::to_owned).ok_or_else(bad));
            Ok(Filter::DocIds(Arc::new(
                ids.collect::<Result<HashSet<_>, _>>()?,
            )))
        }
        Some("_selector") => {
            let selector = body
                .get("selector")
                .filter(|given| given.as_object().is_some());
            let selector = selector
                .ok_or_else(|| Error::bad_request("Selector error: expected a JSON object"))?;
            let selector = Selector::new(selector).map_err(|error| {
                let status = http::StatusCode::BAD_REQUEST;
                Error::new(status, error.name(), error.to_string())
            })?;
            Ok(Filter::Selector(Arc::new(Matcher::new(selector))))
        }
        Some(name) if name == "_view" || name.contains('/') => Err(Error::not_implemented(
            "Functions of design documents are not run here; filter by `_selector`, `_doc_ids` or \
             `_design`.",
        )),
        Some(_) => Err(Error::bad_request(
            "`filter` must be of the form `designname/filtername`",
        )),
    }
}
