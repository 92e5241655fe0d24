//! The listing of all replications: filtered, counted, sorted and grouped by cause.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::data::iso;
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::snapshot::cause::hint;
use crate::snapshot::{Row, RowState, Snapshot};
use replication::params::Invalid;

/// The most rows of a page.
const ROWS_MAX: u64 = 500;
/// Replications shown for each cause.
const EXAMPLES: usize = 3;

/// What rows can be sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    #[default]
    State,
    Id,
    Type,
    Source,
    Target,
    Lag,
    Rate,
    NextTry,
    LastUpdated,
}

impl Column {
    pub fn named(name: &str) -> Option<Self> {
        Self::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name))
            .ok()
    }
}

/// Which replications, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableQuery {
    /// Only in these states; none is all.
    pub states: Vec<RowState>,
    /// Only of documents of this database.
    pub database: Option<String>,
    /// Only with this in an id or URL.
    pub text: Option<String>,
    /// Only those that share this cause.
    pub cause: Option<String>,
    pub sort: Column,
    pub descending: bool,
    pub limit: u64,
    /// Where the last page ended.
    pub bookmark: Option<String>,
}

/// What a row is sorted by. Rows without a value come last in either direction.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(untagged)]
enum Sorted {
    Number(f64),
    Text(String),
}

/// The place of a row in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Place(Option<Sorted>, String, String);

impl Replications {
    /// `GET /_scheduler/replications`
    pub async fn table(&self, query: &TableQuery) -> Result<Value, ServiceError> {
        let snapshot = self.snapshot().await?;
        let after = query.bookmark.as_deref().map(decode).transpose()?;
        let order = |one: &Place, other: &Place| compare(one, other, query.descending);
        let mut found: Vec<(Place, &Row)> = (snapshot.matching(query))
            .map(|row| (row.place(query.sort), row))
            .collect();
        let matching = found.len();
        if let Some(after) = &after {
            found.retain(|(place, _)| order(place, after).is_gt());
        }
        found.sort_unstable_by(|one, other| order(&one.0, &other.0));
        let limit = usize::try_from(query.limit.min(ROWS_MAX)).unwrap_or(0);
        let page = &found[..limit.min(found.len())];
        let mut shown = snapshot.head();
        shown["matching"] = matching.into();
        shown["states"] = snapshot.count_states(&TableQuery {
            states: Vec::new(),
            ..query.clone()
        });
        shown["databases"] = snapshot.count_databases(&TableQuery {
            database: None,
            ..query.clone()
        });
        shown["replications"] = page.iter().map(|(_, row)| row.to_json()).collect();
        if let Some((last, _)) = page.last().filter(|_| page.len() < found.len()) {
            let bytes = serde_json::to_vec(last).expect("a place is JSON");
            shown["bookmark"] = BASE64.encode(bytes).into();
        }
        Ok(shown)
    }

    /// `GET /_scheduler/causes`: what needs attention, by cause; those that need it most come first.
    pub async fn causes(&self, limit: u64) -> Result<Value, ServiceError> {
        let snapshot = self.snapshot().await?;
        let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &snapshot.rows {
            if let Some(error) = &row.error {
                groups.entry(&error.cause.key).or_default().push(row);
            }
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        let state = |rows: &[&Row]| rows.iter().map(|row| row.state).min();
        groups.sort_by_key(|rows| (state(rows), std::cmp::Reverse(rows.len())));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut shown = snapshot.head();
        shown["states"] = snapshot.count_states(&TableQuery::default());
        shown["total_causes"] = groups.len().into();
        shown["causes"] = groups.iter().take(limit).map(|rows| group(rows)).collect();
        Ok(shown)
    }
}

fn group(rows: &[&Row]) -> Value {
    let Some((first, error)) = rows
        .first()
        .and_then(|row| Some((row, row.error.as_ref()?)))
    else {
        return Value::Null;
    };
    let cause = &error.cause;
    let state = rows.iter().map(|row| row.state).min();
    json!({
        "cause": cause.key,
        "state": state.unwrap_or(first.state),
        "error": cause.error,
        "reason": cause.reason,
        "server": cause.server,
        "hint": hint(&cause.error, &cause.reason),
        "replications": rows.len(),
        "examples": rows.iter().take(EXAMPLES).map(|row| row.to_json()).collect::<Vec<_>>(),
    })
}

impl Snapshot {
    pub(crate) fn head(&self) -> Value {
        json!({
            "total_rows": self.rows.len(),
            "complete": self.complete,
            "as_of": iso(self.at_ms.div_euclid(1000)),
        })
    }

    pub(crate) fn matching<'a>(&'a self, query: &TableQuery) -> impl Iterator<Item = &'a Row> {
        let query = TableQuery {
            text: query.text.as_ref().map(|text| text.to_lowercase()),
            ..query.clone()
        };
        self.rows.iter().filter(move |row| query.admits(row))
    }

    fn count_states(&self, query: &TableQuery) -> Value {
        let mut counts = RowState::ALL.map(|state| (state, 0_u64));
        for row in self.matching(query) {
            for (state, count) in &mut counts {
                *count += u64::from(*state == row.state);
            }
        }
        let named = |(state, count): (RowState, u64)| (state.as_str().to_owned(), count.into());
        Value::Object(counts.into_iter().map(named).collect::<Map<_, _>>())
    }

    /// Rows without a database are requests of `_replicate`.
    fn count_databases(&self, query: &TableQuery) -> Value {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for name in self
            .matching(query)
            .filter_map(|row| row.database.as_deref())
        {
            *counts.entry(name).or_default() += 1;
        }
        json!(counts)
    }
}

impl TableQuery {
    /// `text` is in lower case.
    fn admits(&self, row: &Row) -> bool {
        let texts = [
            row.doc_id.as_deref(),
            Some(&*row.key),
            row.replication_id.as_deref(),
            row.source.as_deref(),
            row.target.as_deref(),
        ];
        let has = |text: &str| {
            let mut texts = texts.iter().flatten();
            texts.any(|given| given.to_lowercase().contains(text))
        };
        let cause = || row.error.as_ref().map(|error| &*error.cause.key);
        (self.states.is_empty() || self.states.contains(&row.state))
            && (self.database.is_none() || self.database == row.database)
            && (self.cause.as_deref()).is_none_or(|key| cause() == Some(key))
            && self.text.as_deref().is_none_or(has)
    }
}

impl Row {
    fn name(&self) -> &str {
        let id = self.doc_id.as_deref().or(self.replication_id.as_deref());
        id.unwrap_or(&self.key)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a place needs no more than 52 bits"
    )]
    fn place(&self, column: Column) -> Place {
        let text = |text: &str| Some(Sorted::Text(text.to_owned()));
        let number = |number: f64| Some(Sorted::Number(number));
        let value = match column {
            Column::State => number(f64::from(self.state as u8)),
            Column::Id => text(self.name()),
            Column::Type => text(self.kind()),
            Column::Source => self.source.as_deref().and_then(text),
            Column::Target => self.target.as_deref().and_then(text),
            Column::Lag => self.figures.lag_seconds.and_then(|lag| number(lag as f64)),
            Column::Rate if self.state.runs() => number(self.figures.docs_per_second),
            Column::Rate => None,
            Column::NextTry => self.next_try.and_then(|at| number(at as f64)),
            Column::LastUpdated => self.last_updated.and_then(|at| number(at as f64)),
        };
        Place(value, self.name().to_owned(), self.key.clone())
    }

    fn kind(&self) -> &'static str {
        if self.continuous {
            "continuous"
        } else {
            "one-shot"
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let figures = &self.figures;
        let rate = |rate: f64| {
            let rounded = (rate * 10.0).round() / 10.0;
            self.state.runs().then_some(rounded)
        };
        let mut shown = json!({
            "key": self.key,
            "job_id": self.has_job.then_some(&self.key),
            "id": self.replication_id,
            "database": self.database,
            "doc_id": self.doc_id,
            "user": self.user,
            "type": self.kind(),
            "state": self.state,
            "source": self.source,
            "target": self.target,
            "lag_seconds": figures.lag_seconds,
            "docs_per_second": rate(figures.docs_per_second),
            "changes_pending": figures.changes_pending,
            "docs_written": figures.docs_written,
            "doc_write_failures": figures.doc_write_failures,
            "next_try": self.next_try.map(iso),
            "last_updated": self.last_updated.map(iso),
            "node": self.node,
        });
        if let Some(error) = &self.error {
            shown["error"] = error.cause.error.as_str().into();
            shown["reason"] = error.reason.as_str().into();
            shown["error_count"] = error.count.into();
            shown["cause"] = error.cause.key.as_str().into();
            shown["hint"] = hint(&error.cause.error, &error.reason).into();
        }
        shown
    }
}

fn compare(one: &Place, other: &Place, descending: bool) -> Ordering {
    let values = match (&one.0, &other.0) {
        (Some(one), Some(other)) => {
            let order = one.partial_cmp(other).unwrap_or(Ordering::Equal);
            if descending { order.reverse() } else { order }
        }
        (one, other) => one.is_none().cmp(&other.is_none()),
    };
    values.then_with(|| (&one.1, &one.2).cmp(&(&other.1, &other.2)))
}

fn decode(bookmark: &str) -> Result<Place, ServiceError> {
    let bytes = BASE64.decode(bookmark).ok();
    let place = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    place.ok_or_else(|| Invalid::new("`bookmark` is not valid").into())
}
