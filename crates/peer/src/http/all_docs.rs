//! `_all_docs`, `_design_docs` and `_local_docs`: documents by id.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use crate::db::{Database, Document, Id, State, local_rev};
use crate::refusal::Refusal;
use crate::render::{self, Attachments, Shown};
use crate::reply::{self, Reply};
use crate::request::Request;
use crate::server::Server;

/// Which rows to return, and in what form.
#[expect(clippy::struct_excessive_bools, reason = "each is a query parameter")]
struct Query {
    keys: Option<Vec<Value>>,
    start: Option<Value>,
    end: Option<Value>,
    inclusive_end: bool,
    descending: bool,
    limit: usize,
    skip: usize,
    include_docs: bool,
    conflicts: bool,
    update_seq: bool,
    attachments: Attachments,
    encoding: bool,
}

pub(super) async fn all_docs(
    server: &Arc<Server>,
    mut request: Request,
    db: &Arc<Database>,
) -> Result<Reply, Refusal> {
    let body = match request.method {
        Method::GET => Value::Null,
        Method::POST => {
            request.check_json()?;
            serde_json::from_str(&request.json_object().await?).unwrap_or_default()
        }
        _ => return Err(Refusal::method("GET,HEAD,POST")),
    };
    let query = Query::parse(&request, &body)?;
    let space = request.path.last().map(String::as_str).unwrap_or_default();
    let state = db.read();
    let seq = query.update_seq.then(|| server.seqs(db).json(state.seq));
    let mut out = Vec::new();
    match space {
        "_local_docs" => local_docs(&mut out, &state, &query),
        _ => match &query.keys {
            Some(keys) => by_keys(&mut out, &state, &query, keys, seq),
            None => range(&mut out, &state, &query, space == "_design_docs", seq),
        },
    }
    out.extend_from_slice(b"\r\n]}\n");
    Ok(reply::stream(
        "application/json",
        futures::stream::iter([Bytes::from(out)]),
    ))
}

impl Query {
    /// Parameters come in the query, or in the body of a `POST`.
    fn parse(request: &Request, body: &Value) -> Result<Self, Refusal> {
        let get = |names: &[&str]| -> Result<Option<Value>, Refusal> {
            if let Some(value) = names.iter().find_map(|name| body.get(name)) {
                return Ok(Some(value.clone()));
            }
            let text = names.iter().find_map(|name| request.param(name));
            let parse = |text| {
                serde_json::from_str(text).map_err(|_| Refusal::bad_request("invalid UTF-8 JSON"))
            };
            text.map(parse).transpose()
        };
        let flag = |name: &str, default: bool| match get(&[name])? {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(Refusal::query_parse(format!(
                "Invalid boolean parameter: {}",
                quoted_once(&other)
            ))),
        };
        let number = |name: &str, default: usize| match get(&[name])? {
            None => Ok(default),
            Some(value) => value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .ok_or_else(|| {
                    Refusal::query_parse(format!(
                        "Invalid value for integer: {}",
                        quoted_once(&value)
                    ))
                }),
        };
        let keys = match get(&["keys"])? {
            None | Some(Value::Null) => None,
            Some(Value::Array(keys)) => Some(keys),
            Some(_) => return Err(Refusal::bad_request("`keys` parameter must be an array.")),
        };
        let key = get(&["key"])?;
        let start = get(&["startkey", "start_key"])?.or_else(|| key.clone());
        let end = get(&["endkey", "end_key"])?.or(key);
        Ok(Self {
            keys,
            start,
            end,
            inclusive_end: flag("inclusive_end", true)?,
            descending: flag("descending", false)?,
            limit: number("limit", usize::MAX)?,
            skip: number("skip", 0)?,
            include_docs: flag("include_docs", false)?,
            conflicts: flag("conflicts", false)?,
            update_seq: flag("update_seq", false)?,
            attachments: if flag("attachments", false)? {
                Attachments::Inline
            } else {
                Attachments::Stubs
            },
            encoding: flag("att_encoding_info", false)?,
        })
    }

    /// The requested ids as an ascending range; `None` if it is empty. Keys other than strings sort before all strings.
    fn bounds(&self) -> Option<(Bound<&str>, Bound<&str>)> {
        let (low, high) = if self.descending {
            (&self.end, &self.start)
        } else {
            (&self.start, &self.end)
        };
        if high.as_ref().is_some_and(|high| !high.is_string()) {
            return None;
        }
        let bound = |key: Option<_>, inclusive| match key {
            None => Bound::Unbounded,
            Some(text) if inclusive => Bound::Included(text),
            Some(text) => Bound::Excluded(text),
        };
        let low = low.as_ref().and_then(Value::as_str);
        let high = high.as_ref().and_then(Value::as_str);
        let open = if self.inclusive_end {
            low > high
        } else {
            low >= high
        };
        if low.is_some() && high.is_some() && open {
            return None;
        }
        Some((
            bound(low, !self.descending || self.inclusive_end),
            bound(high, self.descending || self.inclusive_end),
        ))
    }

    fn shown(&self, document: &Document) -> Shown {
        let shown = Shown {
            attachments: self.attachments,
            encoding: self.encoding,
            ..Shown::default()
        };
        if self.conflicts {
            shown.with_conflicts(document)
        } else {
            shown
        }
    }
}

fn quoted_once(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| format!("\"{value}\""), |text| format!("\"{text}\""))
}

fn head(out: &mut Vec<u8>, total: &str, offset: &str, seq: Option<String>) {
    let seq = seq
        .map(|seq| format!(",\"update_seq\":{seq}"))
        .unwrap_or_default();
    out.extend_from_slice(
        format!("{{\"total_rows\":{total},\"offset\":{offset}{seq},\"rows\":[\r\n").as_bytes(),
    );
}

fn range(out: &mut Vec<u8>, state: &State, query: &Query, design_only: bool, seq: Option<String>) {
    let live = |(id, document): &(&Id, &Document)| {
        !document.tree.is_deleted() && (!design_only || id.starts_with("_design/"))
    };
    let total = if design_only {
        state.docs.iter().filter(live).count()
    } else {
        state.live_docs()
    };
    let Some(bounds) = query.bounds() else {
        return head(out, &total.to_string(), &total.to_string(), seq);
    };
    // The number of rows before the range.
    let before = match (bounds, query.descending) {
        ((Bound::Unbounded, _), false) | ((_, Bound::Unbounded), true) => 0,
        ((low, _), false) => state
            .docs
            .range::<str, _>((Bound::Unbounded, opposite(low)))
            .filter(live)
            .count(),
        ((_, high), true) => state
            .docs
            .range::<str, _>((opposite(high), Bound::Unbounded))
            .filter(live)
            .count(),
    };
    head(
        out,
        &total.to_string(),
        &(before + query.skip).min(total).to_string(),
        seq,
    );
    let docs = state.docs.range::<str, _>(bounds).filter(live);
    let docs: Box<dyn Iterator<Item = (&Id, &Document)>> = if query.descending {
        Box::new(docs.rev())
    } else {
        Box::new(docs)
    };
    for (index, (id, document)) in docs.skip(query.skip).take(query.limit).enumerate() {
        if index > 0 {
            out.extend_from_slice(b",\r\n");
        }
        row(out, id, document, query);
    }
}

fn opposite(bound: Bound<&str>) -> Bound<&str> {
    match bound {
        Bound::Included(text) => Bound::Excluded(text),
        Bound::Excluded(text) => Bound::Included(text),
        Bound::Unbounded => Bound::Unbounded,
    }
}

fn row(out: &mut Vec<u8>, id: &str, document: &Document, query: &Query) {
    let winner = document.winner();
    for name in [&b"{\"id\":"[..], b",\"key\":"] {
        out.extend_from_slice(name);
        render::string(out, id);
    }
    out.extend_from_slice(b",\"value\":{\"rev\":");
    render::rev(out, winner.rev);
    out.extend_from_slice(if winner.deleted {
        b",\"deleted\":true}"
    } else {
        b"}"
    });
    if query.include_docs {
        out.extend_from_slice(b",\"doc\":");
        if winner.deleted {
            out.extend_from_slice(b"null");
        } else {
            render::node(out, id, winner, &query.shown(document));
        }
    }
    out.push(b'}');
}

fn by_keys(out: &mut Vec<u8>, state: &State, query: &Query, keys: &[Value], seq: Option<String>) {
    head(
        out,
        &state.live_docs().to_string(),
        "null",
        seq.map(|_| "null".to_owned()),
    );
    let keys: Box<dyn Iterator<Item = &Value>> = if query.descending {
        Box::new(keys.iter().rev())
    } else {
        Box::new(keys.iter())
    };
    for (index, key) in keys.skip(query.skip).take(query.limit).enumerate() {
        if index > 0 {
            out.extend_from_slice(b",\r\n");
        }
        match key.as_str().and_then(|id| state.docs.get_key_value(id)) {
            Some((id, document)) => row(out, id, document, query),
            None => out
                .extend_from_slice(format!("{{\"key\":{key},\"error\":\"not_found\"}}").as_bytes()),
        }
    }
}

fn local_docs(out: &mut Vec<u8>, state: &State, query: &Query) {
    head(out, "null", "null", None);
    let wanted = |id: &Id| match (&query.keys, query.bounds()) {
        (Some(keys), _) => keys.iter().any(|key| key.as_str() == Some(id)),
        (None, Some(bounds)) => std::ops::RangeBounds::<str>::contains(&bounds, &**id),
        (None, None) => false,
    };
    let locals = state.locals.iter().filter(|(id, _)| wanted(id));
    let locals: Box<dyn Iterator<Item = _>> = if query.descending {
        Box::new(locals.rev())
    } else {
        Box::new(locals)
    };
    for (index, (id, local)) in locals.skip(query.skip).take(query.limit).enumerate() {
        if index > 0 {
            out.extend_from_slice(b",\r\n");
        }
        for name in [&b"{\"id\":"[..], b",\"key\":"] {
            out.extend_from_slice(name);
            render::string(out, id);
        }
        out.extend_from_slice(b",\"value\":{\"rev\":");
        render::rev(out, &local_rev(local.generation));
        out.push(b'}');
        if query.include_docs {
            out.extend_from_slice(b",\"doc\":");
            render::local(out, id, local.generation, &local.body);
        }
        out.push(b'}');
    }
}
