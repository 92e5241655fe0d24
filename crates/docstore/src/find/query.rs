//! The body of a `_find`.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use document::json::{self, Json};
use document::mango::Selector;

use super::Fields;
use crate::{Error, IdRange, Result};
use document::matching::Matcher;

const LIMIT_DEFAULT: u64 = 25;

/// Members about indexes and replicas, which have no effect here.
const IGNORED: [&str; 8] = [
    "use_index",
    "partition",
    "r",
    "stale",
    "update",
    "stable",
    "allow_fallback",
    "w",
];

#[derive(Clone, Debug)]
pub struct FindQuery {
    pub(super) matcher: Arc<Matcher>,
    pub fields: Fields,
    pub skip: u64,
    pub limit: u64,
    pub conflicts: bool,
    /// Whether the client asked for statistics.
    pub execution_stats: bool,
    /// The direction, and where to continue.
    pub(super) range: IdRange,
    /// The last document returned.
    pub(super) last: Option<String>,
}

impl FindQuery {
    /// Reads the body of a request.
    pub fn parse(text: &str) -> Result<Self> {
        let json = Json::parse(text).map_err(unreadable)?;
        let members = json
            .as_object()
            .ok_or_else(|| refuse("bad_request", "Request body must be a JSON object"))?;
        let selector = (json.get("selector"))
            .ok_or_else(|| refuse("missing_required_key", "Missing required key: selector"))?;
        let selector =
            Selector::new(selector).map_err(|error| refuse(error.name(), &error.to_string()))?;
        let mut query = Self {
            matcher: Arc::new(Matcher::new(selector)),
            fields: Fields::default(),
            skip: 0,
            limit: LIMIT_DEFAULT,
            conflicts: false,
            execution_stats: false,
            range: IdRange::default(),
            last: None,
        };
        for (name, value) in members {
            match &**name {
                "selector" => {}
                "fields" => query.fields = Fields::parse(value)?,
                "skip" => query.skip = number(value)?,
                "limit" => query.limit = number(value)?,
                "conflicts" => query.conflicts = boolean(value)?,
                "execution_stats" => query.execution_stats = boolean(value)?,
                "sort" => query.range.descending = is_descending(value)?,
                "bookmark" => query.last = bookmark(value)?,
                name if IGNORED.contains(&name) => {}
                name => {
                    let reason = format!("Invalid key {name} for this request.");
                    return Err(refuse("invalid_key", &reason));
                }
            }
        }
        query.range.after.clone_from(&query.last);
        Ok(query)
    }

    pub(super) fn bookmark(&self) -> Option<String> {
        self.last
            .as_ref()
            .map(|id| BASE64_URL_SAFE_NO_PAD.encode(id))
    }
}

fn unreadable(error: json::Error) -> Error {
    match error {
        json::Error::Syntax(_) => refuse("bad_request", "invalid UTF-8 JSON"),
        error => refuse("bad_request", &error.to_string()),
    }
}

fn refuse(error: &'static str, reason: &str) -> Error {
    Error::BadQuery {
        error,
        reason: reason.to_owned(),
    }
}

fn number(json: &Json) -> Result<u64> {
    let number = json
        .as_integer()
        .and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| {
        let reason = format!("{json} is not an integer greater than or equal to zero");
        refuse("invalid_non_neg_integer", &reason)
    })
}

fn boolean(json: &Json) -> Result<bool> {
    (json.as_bool())
        .ok_or_else(|| refuse("invalid_boolean", &format!("Invalid boolean value: {json}")))
}

/// Only ids can be sorted by.
fn is_descending(json: &Json) -> Result<bool> {
    let sort = json.as_array().ok_or_else(|| {
        let reason = format!("Sort must be an array of sort specs, not: {json}");
        refuse("invalid_sort_json", &reason)
    })?;
    let mut descending = false;
    for field in sort {
        let (name, direction) = match (field, field.as_object()) {
            (Json::String(name), _) => (name, "asc"),
            (_, Some([(name, direction)])) => (name, direction.as_str().unwrap_or_default()),
            _ => {
                let reason = format!("Invalid sort field: {field}");
                return Err(refuse("invalid_sort_field", &reason));
            }
        };
        descending = match direction {
            "asc" => false,
            "desc" => true,
            _ => {
                let reason = format!("Invalid sort direction: {field}");
                return Err(refuse("invalid_sort_dir", &reason));
            }
        };
        if name != "_id" || sort.len() > 1 {
            let reason = "No index exists for this sort, try indexing by the sort fields.";
            return Err(refuse("no_usable_index", reason));
        }
    }
    Ok(descending)
}

fn bookmark(json: &Json) -> Result<Option<String>> {
    let bad = || {
        refuse(
            "invalid_bookmark",
            &format!("Invalid bookmark value: {json}"),
        )
    };
    match json {
        Json::Null => Ok(None),
        Json::String(text) if text.is_empty() || text == "nil" => Ok(None),
        Json::String(text) => {
            let id = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
            String::from_utf8(id).map(Some).map_err(|_| bad())
        }
        _ => Err(bad()),
    }
}
