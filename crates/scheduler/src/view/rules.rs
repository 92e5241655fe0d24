//! Rules about many databases in `_scheduler/docs`: each of their replications has a job of its own, and the document none.

use std::collections::BTreeMap;

use docstore::Db;
use document::json::Json;
use serde_json::{Map, Value, json};

use crate::data::{JobState, iso};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::snapshot::{Row, RowState};

/// What the replications of a rule are doing.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    states: BTreeMap<RowState, u64>,
    error_count: u32,
    last_updated: Option<i64>,
}

/// What a document is, besides the replications it has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Standing {
    /// A replication, or a rule that has some.
    Replicates,
    /// A rule that has calls made.
    Calls,
    /// A rule that begins nothing any more.
    Paused,
}

/// Whether the documents of this database are replications. Otherwise they are rules.
pub(crate) fn has_replications(name: &str) -> bool {
    name == "_replicator" || name.ends_with("/_replicator")
}

impl Replications {
    /// The summaries of a database's rules by the ids of their documents, as of a short time ago; none if it has no rules.
    pub(super) async fn summaries(
        &self,
        db: &Db,
    ) -> Result<BTreeMap<String, Summary>, ServiceError> {
        let (mut summaries, name) = (BTreeMap::<String, Summary>::new(), db.name().as_str());
        if has_replications(name) {
            return Ok(summaries);
        }
        let snapshot = self.snapshot().await?;
        for row in &snapshot.rows {
            if let (Some(database), Some(id)) = (&row.database, &row.doc_id)
                && database == name
            {
                match summaries.get_mut(id) {
                    Some(summary) => summary.add(row),
                    None => summaries.entry(id.clone()).or_default().add(row),
                }
            }
        }
        Ok(summaries)
    }
}

impl Standing {
    /// That of a document in a database that has rules.
    pub(super) fn of(body: &Json) -> Self {
        if body.get("enabled").and_then(Json::as_bool) == Some(false) {
            Self::Paused
        } else if body.get("type").and_then(Json::as_str) == Some("on_change") {
            Self::Calls
        } else {
            Self::Replicates
        }
    }

    /// Shows it in the document's row, which describes its replications.
    pub(super) fn show(self, row: &mut Value) {
        match self {
            Self::Replicates => {}
            Self::Calls => {
                row["state"] = JobState::Running.as_str().into();
                row["info"] = json!({"waits_for": "changes of its databases"});
            }
            Self::Paused => {
                // Runs in progress end first. Those that sleep are removed when they are woken.
                let runs = match row["info"].get("states") {
                    Some(states) => states.get(RowState::Running.as_str()).is_some(),
                    None => row["state"] == "running" && row["info"]["idle"] != true,
                };
                if !runs {
                    row["state"] = JobState::Pending.as_str().into();
                }
                row["info"]["paused"] = true.into();
            }
        }
    }
}

impl Summary {
    fn add(&mut self, row: &Row) {
        *self.states.entry(row.state).or_default() += 1;
        let errors = row.error.as_ref().map_or(0, |error| error.count);
        self.error_count = self.error_count.max(errors);
        self.last_updated = self.last_updated.max(row.last_updated);
    }

    /// That of the replications which says most: it runs if any of them does.
    fn state(&self) -> JobState {
        use RowState as S;
        let has = |states: &[RowState]| states.iter().any(|state| self.states.contains_key(state));
        if has(&[S::Running, S::Idle, S::Unreachable]) {
            JobState::Running
        } else if has(&[S::Crashing]) {
            JobState::Crashing
        } else if has(&[S::Pending, S::Paused, S::Initializing]) {
            JobState::Pending
        } else if has(&[S::Failed]) {
            JobState::Failed
        } else {
            JobState::Completed
        }
    }

    /// Writes it into the row of the rule's document.
    pub(super) fn show(&self, row: &mut Value) {
        let states = self.states.iter();
        let states: Map<String, Value> = states
            .map(|(state, count)| (state.as_str().to_owned(), (*count).into()))
            .collect();
        row["state"] = self.state().as_str().into();
        row["info"] = json!({
            "replications": self.states.values().sum::<u64>(),
            "states": states,
        });
        row["error_count"] = self.error_count.into();
        row["last_updated"] = self.last_updated.map(iso).into();
    }
}
