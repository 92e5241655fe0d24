//! `_scheduler/docs`: the documents of a database and their states.

use std::collections::BTreeMap;

use docstore::{AllDocsQuery, Db, IdRange, ReadOptions};
use document::json::Json;
use futures::future::try_join_all;
use serde_json::{Map, Value, json};
use store::Transaction;

use super::rules::{Standing, Summary, has_replications};
use super::{VISITS_MAX, with_hint};
use crate::data::{JobState, document_job_id, job_text};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::snapshot::Seen;
use crate::snapshot::cause::{Causes, parts};
use crate::snapshot::{Failure, Figures, Row, RowState};
use crate::strip::without_credentials;

/// Documents per transaction.
const ROWS: u64 = 100;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocsQuery {
    /// Only documents in these states; empty for all.
    pub states: Vec<JobState>,
    /// Ids, rows to skip, and maximum rows to return.
    pub range: IdRange,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocsPage {
    /// The number of documents without filters, not counting design documents.
    pub total_rows: u64,
    /// The number before the first row; `None` if there are too many to count.
    pub offset: Option<u64>,
    pub docs: Vec<Value>,
    /// The next query; `None` at the end.
    pub rest: Option<DocsQuery>,
}

impl Replications {
    pub async fn scheduler_docs(
        &self,
        db: &Db,
        query: &DocsQuery,
    ) -> Result<DocsPage, ServiceError> {
        let designs = self.count_designs(db).await?;
        let all = AllDocsQuery {
            range: IdRange {
                skip: 0,
                limit: None,
                ..query.range.clone()
            },
            ..AllDocsQuery::default()
        };
        let counts = self.0.docs.all_docs_counts(db, &all).await?;
        let total_rows = counts.total_rows.saturating_sub(designs);
        let mut page = DocsPage {
            total_rows,
            offset: (counts.offset)
                .map(|before| before.saturating_add(query.range.skip).min(total_rows)),
            ..DocsPage::default()
        };
        let summaries = &self.summaries(db).await?;
        let mut rest = query.clone();
        let mut visits = 0;
        while rest.range.limit != Some(0) {
            if visits >= VISITS_MAX.max(query.range.skip) {
                page.rest = Some(rest);
                break;
            }
            let (rows, more) = self.docs_step(db, &rest, summaries).await?;
            visits += rows.len() as u64;
            let done = !more;
            for (id, row) in rows {
                rest.range.after = Some(id);
                let Some(row) = row else { continue };
                if rest.range.skip > 0 {
                    rest.range.skip -= 1;
                    continue;
                }
                page.docs.push(row);
                rest.range.limit = rest.range.limit.map(|limit| limit - 1);
                if rest.range.limit == Some(0) {
                    break;
                }
            }
            if done {
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// Ids in order, each with its row if it is listed or skipped, and whether there are more.
    async fn docs_step(
        &self,
        db: &Db,
        query: &DocsQuery,
        summaries: &BTreeMap<String, Summary>,
    ) -> Result<(Vec<(String, Option<Value>)>, bool), ServiceError> {
        // Rows that are skipped without reading them are cheap.
        let blind = query.states.is_empty() && query.range.skip >= ROWS;
        let limit = if blind { query.range.skip } else { ROWS };
        let limit = limit.min(1000);
        let all = AllDocsQuery {
            range: IdRange {
                skip: 0,
                limit: Some(limit),
                ..query.range.clone()
            },
            ..AllDocsQuery::default()
        };
        let all = &all;
        (self.0.jobs.store())
            .transact("list_docs", |tx| async move {
                let page = self.0.docs.all_docs_page_in(&tx, db, all).await?;
                let more = page.rest.is_some() || page.rows.len() as u64 >= limit;
                let rows = page.rows.into_iter().map(|row| {
                    let tx = &tx;
                    async move {
                        if row.id.starts_with("_design/") {
                            return Ok((row.id, None));
                        }
                        if blind {
                            return Ok((row.id, Some(Value::Null)));
                        }
                        let found = self.found_in(tx, db, &row.id).await?;
                        let shown = found.map(|found| found.scheduler_doc(summaries.get(&row.id)));
                        let shown = shown.filter(|shown| matches(&query.states, shown));
                        Ok::<_, ServiceError>((row.id, shown))
                    }
                });
                Ok((try_join_all(rows).await?, more))
            })
            .await
    }

    async fn count_designs(&self, db: &Db) -> Result<u64, ServiceError> {
        let mut range = IdRange {
            start: Some("_design/".to_owned()),
            end: Some("_design0".to_owned()),
            inclusive_end: false,
            ..IdRange::default()
        };
        let mut count = 0;
        loop {
            let query = AllDocsQuery {
                range,
                ..AllDocsQuery::default()
            };
            let page = self.0.docs.all_docs_page(db, &query).await?;
            count += page.rows.len() as u64;
            match page.rest {
                Some(rest) => range = rest.range,
                None => return Ok(count),
            }
        }
    }

    pub async fn scheduler_doc(&self, db: &Db, doc_id: &str) -> Result<Value, ServiceError> {
        if doc_id.starts_with("_design/") {
            return Err(ServiceError::Missing);
        }
        let found = (self.0.jobs.store())
            .transact("show_doc", |tx| async move {
                self.found_in(&tx, db, doc_id).await
            })
            .await?;
        let found = found.ok_or(ServiceError::Missing)?;
        let summary = match &found {
            Found::Job(..) => None,
            Found::Document { .. } => self.summaries(db).await?.remove(doc_id),
        };
        Ok(found.scheduler_doc(summary.as_ref()))
    }

    pub(super) async fn found_in(
        &self,
        tx: &Transaction,
        db: &Db,
        doc_id: &str,
    ) -> Result<Option<Found>, ServiceError> {
        let job = document_job_id(db.instance(), doc_id);
        let seen = self.see_in(tx, job.clone()).await?;
        let seen = match seen.map(Box::new) {
            Some(seen) if has_replications(db.name().as_str()) => {
                return Ok(Some(Found::Job(seen, Standing::Replication)));
            }
            seen => seen,
        };
        let body = self.body_in(tx, db, doc_id).await?;
        let standing = match &body {
            Some(body) if !has_replications(db.name().as_str()) => {
                self.standing_in(tx, body).await?
            }
            _ => Standing::Replication,
        };
        if let Some(seen) = seen {
            return Ok(Some(Found::Job(seen, standing)));
        }
        Ok(body.map(|body| Found::Document {
            key: job_text(&job),
            continuous: body.get("continuous").and_then(Json::as_bool) == Some(true),
            row: row_of_document(db, doc_id, &body),
            standing,
        }))
    }

    /// `None` if there is no document, or a deleted one.
    async fn body_in(
        &self,
        tx: &Transaction,
        db: &Db,
        doc_id: &str,
    ) -> Result<Option<Json>, ServiceError> {
        let doc = (self.0.docs)
            .get_in(tx, db, doc_id, &ReadOptions::default())
            .await;
        match doc {
            Ok(doc) => {
                Ok(Some(Json::parse(&doc.body).map_err(|_| {
                    ServiceError::corrupt("a document cannot be decoded")
                })?))
            }
            Err(docstore::Error::Missing | docstore::Error::Deleted) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A document, by its job if it has one.
pub(super) enum Found {
    Job(Box<Seen>, Standing),
    Document {
        /// The id that its job would have.
        key: String,
        continuous: bool,
        row: Value,
        standing: Standing,
    },
}

impl Found {
    /// The row: from its job, or without a job from the document itself and from the jobs of its rule.
    fn scheduler_doc(self, summary: Option<&Summary>) -> Value {
        let (mut row, standing) = match self {
            Self::Job(seen, standing) => (seen.scheduler_doc(), standing),
            Self::Document {
                mut row, standing, ..
            } => {
                if let Some(summary) = summary {
                    summary.show(&mut row);
                }
                (row, standing)
            }
        };
        standing.show(&mut row);
        row
    }

    pub(super) fn row(self, causes: &mut Causes) -> Row {
        let (key, continuous, row) = match self {
            Self::Job(seen, _) => return seen.row((0.0, 0.0), causes),
            Self::Document {
                key,
                continuous,
                row,
                ..
            } => (key, continuous, row),
        };
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        let count = |name: &str| row["info"].get(name).and_then(Value::as_u64);
        let state = match row["state"].as_str() {
            Some("completed") => RowState::Completed,
            Some("failed") => RowState::Failed,
            _ => RowState::Initializing,
        };
        let (error, reason) = parts(&row["info"]);
        let error = (state == RowState::Failed).then(|| Failure {
            cause: causes.of(state, error, reason),
            reason: reason.to_owned(),
            count: 1,
        });
        let updated = row["last_updated"].as_str();
        let updated = updated.and_then(|time| time.parse::<jiff::Timestamp>().ok());
        Row {
            key,
            has_job: false,
            replication_id: None,
            database: text("database"),
            doc_id: text("doc_id"),
            user: None,
            source: text("source"),
            target: text("target"),
            state,
            continuous,
            error,
            node: None,
            figures: Figures {
                docs_written: count("docs_written"),
                doc_write_failures: count("doc_write_failures"),
                ..Figures::default()
            },
            next_try: None,
            last_updated: updated.map(jiff::Timestamp::as_second),
        }
    }
}

fn matches(states: &[JobState], row: &Value) -> bool {
    states.is_empty() || states.iter().any(|state| row["state"] == state.as_str())
}

fn row_of_document(db: &Db, doc_id: &str, body: &Json) -> Value {
    let text = |name| body.get(name).and_then(Json::as_str);
    let url = |name| match body.get(name) {
        Some(Json::String(url)) => Some(without_credentials(url)),
        Some(endpoint) => endpoint
            .get("url")
            .and_then(Json::as_str)
            .map(without_credentials),
        None => None,
    };
    let proxy = |name| url(name).or_else(|| url("proxy"));
    let state = match text("_replication_state") {
        Some("completed") => "completed",
        Some("failed") => "failed",
        _ => "initializing",
    };
    let stats = body.get("_replication_stats").map(Json::to_value);
    let mut stats: Map<String, Value> = stats
        .and_then(|stats| stats.as_object().cloned())
        .unwrap_or_default();
    let start_time = stats.remove("start_time");
    let info = match state {
        "completed" => Value::Object(stats),
        "failed" => json!({"error": text("_replication_state_reason")}),
        _ => Value::Null,
    };
    let row = json!({
        "database": db.name().as_str(),
        "doc_id": doc_id,
        "id": null,
        "node": null,
        "pid": null,
        "source": url("source"),
        "target": url("target"),
        "source_proxy": proxy("source_proxy"),
        "target_proxy": proxy("target_proxy"),
        "state": state,
        "info": info,
        "error_count": u8::from(state == "failed"),
        "last_updated": text("_replication_state_time"),
        "start_time": start_time,
        "job_id": null,
    });
    with_hint(row)
}
