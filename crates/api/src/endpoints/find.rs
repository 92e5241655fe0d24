//! Queries: `_find`, `_explain`, `_index`.

use std::fmt::Write as _;

use docstore::FindQuery;
use document::json::Json;
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
    let reading = Reading::new(call, opened);
    reply::json_pieces(|mut pieces| async move {
        let (began, stats) = (Instant::now(), query.execution_stats);
        let (mut examined, mut returned, mut bookmark) = (0, 0_u64, None);
        let mut piece = String::from("{\"docs\":[\n");
        let mut next = Some(query);
        while let Some(query) = next.take() {
            let view = |stored| reading.view(stored);
            let page = (reading.docs())
                .find_page(reading.db(), &query, &view)
                .await?;
            for doc in page.docs {
                piece.push_str(if returned == 0 { "" } else { ",\n" });
                piece.push_str(&doc);
                returned += 1;
            }
            examined += page.examined;
            bookmark = page.bookmark.or(bookmark);
            next = page.rest;
            pieces.send(std::mem::take(&mut piece)).await;
        }
        let bookmark = json!(bookmark.as_deref().unwrap_or("nil"));
        let _ = write!(piece, "\n],\n\"bookmark\": {bookmark}");
        if stats {
            let stats = json!({
                "total_keys_examined": examined, "total_docs_examined": examined,
                "total_quorum_docs_examined": 0, "results_returned": returned,
                "execution_time_ms": began.elapsed().as_secs_f64() * 1000.0,
            });
            let _ = write!(piece, ",\n\"execution_stats\": {stats}");
        }
        let _ = write!(piece, ",\n\"warning\": {}}}\n", json!(WARNING));
        pieces.send(piece).await;
        Ok(())
    })
    .await
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
            "The only index is `_all_docs`; `_find` works without others.",
        ));
    }
    Ok(reply::ok(
        &json!({"total_rows": 1, "indexes": [all_docs_index()]}),
    ))
}
