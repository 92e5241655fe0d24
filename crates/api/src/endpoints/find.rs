//! Queries: `_find`, `_explain`, `_index`.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use docstore::FindQuery;
use document::json::Json;
use futures::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::reading::Reading;
use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::reply::{self, Reply};

const WARNING: &str = "No matching index found, create an index to optimize query time.";

pub(crate) async fn find(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let query = call.parse(FindQuery::parse).await?;
    let mut pages = Pages {
        reading: Reading::new(call, opened),
        stats: query.execution_stats,
        next: Some(query),
        began: Instant::now(),
        examined: 0,
        returned: 0,
        bookmark: None,
        begun: false,
    };
    // Errors before the first row still get their own status.
    let (first, over) = pages.next().await?;
    let first = stream::once(async move { Ok(Bytes::from(first)) });
    let pages = stream::try_unfold((!over).then_some(pages), |pages| async move {
        let Some(mut pages) = pages else {
            return Ok(None);
        };
        let page = pages.next().await?;
        let more = (!page.1).then_some(pages);
        Ok(Some((Bytes::from(page.0), more)))
    });
    let all = first.chain(Box::pin(pages));
    Ok(reply::stream("application/json", Box::pin(all)))
}

/// The state of a response.
struct Pages {
    reading: Reading,
    next: Option<FindQuery>,
    stats: bool,
    began: Instant,
    examined: u64,
    returned: u64,
    bookmark: Option<String>,
    begun: bool,
}

impl Pages {
    /// The next chunk, and whether it is the last.
    async fn next(&mut self) -> Result<(String, bool), Error> {
        let mut piece = String::new();
        if !std::mem::replace(&mut self.begun, true) {
            piece.push_str("{\"docs\":[\n");
        }
        let Some(query) = self.next.take() else {
            self.end(&mut piece);
            return Ok((piece, true));
        };
        let reading = &self.reading;
        let view = |stored| reading.view(stored);
        let page = reading
            .docs()
            .find_page(reading.db(), &query, &view)
            .await?;
        for doc in page.docs {
            piece.push_str(if self.returned == 0 { "" } else { ",\n" });
            piece.push_str(&doc);
            self.returned += 1;
        }
        self.examined += page.examined;
        self.bookmark = page.bookmark.or(self.bookmark.take());
        self.next = page.rest;
        Ok((piece, false))
    }

    fn end(&self, piece: &mut String) {
        let bookmark = json!(self.bookmark.as_deref().unwrap_or("nil"));
        let _ = write!(piece, "\n],\n\"bookmark\": {bookmark}");
        if self.stats {
            let took: Duration = self.began.elapsed();
            let stats = json!({
                "total_keys_examined": self.examined, "total_docs_examined": self.examined,
                "total_quorum_docs_examined": 0, "results_returned": self.returned,
                "execution_time_ms": took.as_secs_f64() * 1000.0,
            });
            let _ = write!(piece, ",\n\"execution_stats\": {stats}");
        }
        let _ = write!(piece, ",\n\"warning\": {}}}\n", json!(WARNING));
    }
}

fn all_docs_index() -> Value {
    json!({
        "ddoc": null, "name": "_all_docs", "type": "special",
        "def": {"fields": [{"_id": "asc"}]},
    })
}

pub(crate) async fn explain(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let read = |text: &str| Ok::<_, Error>((FindQuery::parse(text)?, Json::parse(text)?));
    let (query, body) = call.parse(read).await?;
    let fields = body
        .get("fields")
        .map_or(json!("all_fields"), Json::to_value);
    let selector = body.get("selector").map_or(Value::Null, Json::to_value);
    Ok(reply::ok(&json!({
        "dbname": opened.db.name().as_str(),
        "index": all_docs_index(),
        "partitioned": false,
        "selector": selector,
        "opts": {
            "use_index": [], "limit": query.limit, "skip": query.skip, "fields": fields,
            "conflicts": query.conflicts, "execution_stats": query.execution_stats,
        },
        "limit": query.limit,
        "skip": query.skip,
        "fields": fields,
        "index_candidates": [],
        "covering": false,
    })))
}

pub(crate) fn index(call: &Call) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST")?;
    if call.method == Method::POST {
        return Err(Error::not_implemented(
            "There is no index but that of ids here; `_find` answers without one.",
        ));
    }
    Ok(reply::ok(
        &json!({"total_rows": 1, "indexes": [all_docs_index()]}),
    ))
}
