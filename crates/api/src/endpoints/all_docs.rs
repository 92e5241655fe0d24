//! Documents by id: `_all_docs`, `_all_docs/queries`, `_design_docs`.

use std::fmt::Write as _;

use docstore::{AllDocsCounts, AllDocsQuery, AllDocsRow, IdRange, ReadOptions};
use document::doc::push_string;
use document::json::Json;
use http::Method;

use super::reading::Reading;
use crate::Error;
use crate::access::Opened;
use crate::call::Call;
use crate::query::Query;
use crate::reply::{self, Reply};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Among {
    All,
    Designs,
}

/// One listing of a request.
#[derive(Debug, Clone)]
struct Listing {
    query: AllDocsQuery,
    among: Among,
    conflicts: bool,
    update_seq: bool,
}

pub(crate) async fn all_docs(
    call: &mut Call,
    opened: &Opened,
    among: Among,
) -> Result<Reply, Error> {
    call.allow("GET,HEAD,POST")?;
    let mut listing = Listing::new(among);
    listing.read_query(&call.query)?;
    if call.method == Method::POST {
        call.check_json()?;
        let body = call.json_object().await?;
        if let Some(queries) = body.get("queries") {
            return several(call, opened, among, queries).await;
        }
        listing.read_object(&body)?;
    }
    answer(call, opened, vec![listing], false).await
}

pub(crate) async fn queries(call: &mut Call, opened: &Opened) -> Result<Reply, Error> {
    call.allow("POST")?;
    call.check_json()?;
    let body = call.json_object().await?;
    let queries = body.get("queries").unwrap_or(&Json::Null);
    several(call, opened, Among::All, queries).await
}

async fn several(
    call: &Call,
    opened: &Opened,
    among: Among,
    queries: &Json,
) -> Result<Reply, Error> {
    let invalid = || Error::bad_request("`queries` must be an array of objects.");
    let mut listings = Vec::new();
    for query in queries.as_array().ok_or_else(invalid)? {
        let mut listing = Listing::new(among);
        listing.read_query(&call.query)?;
        query.as_object().ok_or_else(invalid)?;
        listing.read_object(query)?;
        listings.push(listing);
    }
    answer(call, opened, listings, true).await
}

async fn answer(
    call: &Call,
    opened: &Opened,
    listings: Vec<Listing>,
    several: bool,
) -> Result<Reply, Error> {
    let reading = Reading::new(call, opened);
    reply::json_pieces(|mut pieces| async move {
        let mut page = String::from(if several { "{\"results\":[\n" } else { "" });
        for (index, listing) in listings.into_iter().enumerate() {
            page.push_str(if index == 0 { "" } else { ",\n" });
            begin(&reading, &listing, &mut page).await?;
            let (mut next, mut any) = (Some(listing.query), false);
            while let Some(query) = next {
                let listed = reading.docs().all_docs_page(reading.db(), &query).await?;
                for row in listed.rows {
                    page.push_str(if any { ",\n" } else { "" });
                    any = true;
                    push(&reading, &mut page, row, query.include_docs.is_some());
                }
                pieces.send(std::mem::take(&mut page)).await;
                next = listed.rest;
            }
            page.push_str("\n]}");
        }
        page.push_str(if several { "\n]}\n" } else { "\n" });
        pieces.send(page).await;
        Ok(())
    })
    .await
}

impl Listing {
    fn new(among: Among) -> Self {
        Self {
            query: AllDocsQuery::default(),
            among,
            conflicts: false,
            update_seq: false,
        }
    }

    fn read_query(&mut self, query: &Query) -> Result<(), Error> {
        for (name, text) in query.iter() {
            let json = match name {
                "key" | "keys" | "startkey" | "start_key" | "endkey" | "end_key" => {
                    Json::parse(text).map_err(|_| Error::not_json())?
                }
                _ => match text {
                    "true" | "false" => Json::Bool(text == "true"),
                    _ => match query.number(name) {
                        Ok(Some(number)) => Json::Number(number.to_string().into()),
                        // Strings are mostly parameters that are ignored here.
                        Err(error) if matches!(name, "limit" | "skip") => return Err(error),
                        _ => Json::String(text.to_owned()),
                    },
                },
            };
            self.set(name, &json)?;
        }
        self.finish();
        Ok(())
    }

    fn read_object(&mut self, object: &Json) -> Result<(), Error> {
        for (name, value) in object.as_object().unwrap_or_default() {
            self.set(name, value)?;
        }
        self.finish();
        Ok(())
    }

    fn set(&mut self, name: &str, value: &Json) -> Result<(), Error> {
        let flag = || {
            let reason = format!("Invalid boolean parameter: {value}");
            value.as_bool().ok_or_else(|| Error::query(reason))
        };
        let number = || {
            let number = value
                .as_integer()
                .and_then(|number| u64::try_from(number).ok());
            let reason = format!("Invalid value for positive integer: {value}");
            number.ok_or_else(|| Error::query(reason))
        };
        let range = &mut self.query.range;
        match name {
            "key" => {
                range.start = start_key(value);
                range.end.clone_from(&range.start);
                if range.start.is_none() {
                    range.limit = Some(0);
                }
            }
            "keys" => {
                let bad = || Error::bad_request("`keys` body member must be an array.");
                let keys = value.as_array().ok_or_else(bad)?.iter().map(|key| {
                    let bad = || Error::bad_request("`keys` must be strings.");
                    key.as_str().map(str::to_owned).ok_or_else(bad)
                });
                self.query.keys = Some(keys.collect::<Result<_, _>>()?);
            }
            "startkey" | "start_key" => range.start = Some(start_key(value).unwrap_or_default()),
            "endkey" | "end_key" => range.end = Some(start_key(value).unwrap_or_default()),
            "inclusive_end" => range.inclusive_end = flag()?,
            "descending" => range.descending = flag()?,
            "skip" => range.skip = number()?,
            "limit" => range.limit = Some(number()?),
            "include_docs" => self.query.include_docs = flag()?.then(ReadOptions::default),
            "conflicts" => self.conflicts = flag()?,
            "update_seq" => self.update_seq = flag()?,
            // Parameters of views and clusters are ignored.
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) {
        if let Some(options) = &mut self.query.include_docs {
            options.conflicts = self.conflicts;
        }
        if self.among == Among::Designs && self.query.keys.is_none() {
            // Keys cannot extend the range beyond these.
            let (low, high) = ("_design/".to_owned(), "_design0".to_owned());
            let range = &mut self.query.range;
            let (start, end) = if range.descending {
                (high, low)
            } else {
                (low, high)
            };
            range.start = Some(range.start.take().map_or(start.clone(), |given| {
                if range.descending {
                    given.min(start)
                } else {
                    given.max(start)
                }
            }));
            range.end = Some(range.end.take().map_or(end.clone(), |given| {
                if range.descending {
                    given.max(end)
                } else {
                    given.min(end)
                }
            }));
        }
    }
}

/// An id as a key. Values that are not strings sort before all strings, like the empty one.
fn start_key(value: &Json) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Writes the start of a listing.
async fn begin(reading: &Reading, listing: &Listing, page: &mut String) -> Result<(), Error> {
    let (docs, db) = (reading.docs(), reading.db());
    let counts = match listing.among {
        Among::All => docs.all_docs_counts(db, &listing.query).await?,
        Among::Designs => count_designs(reading, &listing.query).await?,
    };
    let _ = write!(page, "{{\"total_rows\":{},\"offset\":", counts.total_rows);
    match counts.offset {
        Some(offset) => {
            let _ = write!(page, "{offset}");
        }
        None => page.push_str("null"),
    }
    if listing.update_seq {
        let _ = write!(
            page,
            ",\"update_seq\":\"{}\"",
            docs.info(db).await?.update_seq
        );
    }
    page.push_str(",\"rows\":[\n");
    Ok(())
}

/// There are few design documents, so their count is not stored.
async fn count_designs(reading: &Reading, query: &AllDocsQuery) -> Result<AllDocsCounts, Error> {
    let mut all = Listing::new(Among::Designs);
    all.finish();
    let mut total_rows = 0;
    let mut rest = Some(all.query);
    while let Some(query) = rest {
        let page = reading.docs().all_docs_page(reading.db(), &query).await?;
        total_rows += page.rows.len() as u64;
        rest = page.rest;
    }
    let IdRange { skip, .. } = query.range;
    Ok(AllDocsCounts {
        total_rows,
        offset: query.keys.is_none().then_some(skip.min(total_rows)),
    })
}

fn push(reading: &Reading, page: &mut String, row: AllDocsRow, with_docs: bool) {
    let Some(value) = row.value else {
        page.push_str("{\"key\":");
        push_string(page, &row.id);
        page.push_str(",\"error\":\"not_found\"}");
        return;
    };
    let shown = value.doc.map(|stored| reading.view(stored));
    let rev = shown
        .as_ref()
        .map_or(&value.rev, |shown| &shown.rev)
        .to_string();
    page.push_str("{\"id\":");
    push_string(page, &row.id);
    page.push_str(",\"key\":");
    push_string(page, &row.id);
    page.push_str(",\"value\":{\"rev\":");
    push_string(page, &rev);
    page.push_str(if value.deleted {
        ",\"deleted\":true}"
    } else {
        "}"
    });
    if with_docs {
        page.push_str(",\"doc\":");
        match &shown {
            Some(shown) => page.push_str(&shown.to_json()),
            None => page.push_str("null"),
        }
    }
    page.push('}');
}
