//! Rules about many databases in `_scheduler/docs`: each of their replications has a job of its own, and the document none.

use std::collections::BTreeMap;

use couch::Endpoint;
use docstore::Db;
use document::json::Json;
use serde_json::{Map, Value, json};
use store::{RangeOptions, Transaction};

use crate::data::{JobState, iso};
use crate::fault::ServiceError;
use crate::keys;
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
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// A replication.
    Replication,
    /// A rule that has replications, and why it may have none.
    Replicates(Followed),
    /// A rule that has calls made.
    Calls(Followed),
    /// A rule that begins nothing any more.
    Paused,
}

/// Whether a rule hears of changes.
#[derive(Clone, Debug)]
pub(super) enum Followed {
    Yes,
    /// The server of its source is not followed.
    NotThis(String),
    /// A rule about databases of all servers, and none is followed.
    None,
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

    /// That of a document in a database that has rules.
    pub(super) async fn standing_in(
        &self,
        tx: &Transaction,
        body: &Json,
    ) -> Result<Standing, ServiceError> {
        let text = |name| body.get(name).and_then(Json::as_str);
        if body.get("enabled").and_then(Json::as_bool) == Some(false) {
            return Ok(Standing::Paused);
        }
        Ok(match text("type") {
            Some("on_change") => Standing::Calls(self.any_followed_in(tx).await?),
            Some("replicator") if text("match") == Some("name_only") => {
                Standing::Replicates(self.any_followed_in(tx).await?)
            }
            Some("replicator" | "remote") => {
                Standing::Replicates(self.source_followed_in(tx, body).await?)
            }
            _ => Standing::Replication,
        })
    }

    async fn source_followed_in(
        &self,
        tx: &Transaction,
        body: &Json,
    ) -> Result<Followed, ServiceError> {
        let source = body.get("source");
        let url = source.and_then(|side| side.get("url").unwrap_or(side).as_str());
        let source = url.and_then(|url| Endpoint::from_url(url).ok());
        let Some((server, _)) = source.and_then(|source| source.server()) else {
            return Ok(Followed::Yes);
        };
        let server = server.url_text();
        let is_followed = self.following_in(tx, server).await?.is_some();
        Ok(if is_followed {
            Followed::Yes
        } else {
            Followed::NotThis(server.to_owned())
        })
    }

    async fn any_followed_in(&self, tx: &Transaction) -> Result<Followed, ServiceError> {
        let rows = tx
            .snapshot()
            .get_range(keys::all_followed(), RangeOptions::limit(1));
        let is_empty = rows.collect().await?.is_empty();
        Ok(if is_empty {
            Followed::None
        } else {
            Followed::Yes
        })
    }
}

impl Followed {
    /// Why the rule hears of no changes.
    fn reason(&self) -> Option<String> {
        let what = match self {
            Self::Yes => return None,
            Self::NotThis(server) => format!("the server of `source`, {server}"),
            Self::None => "a server".to_owned(),
        };
        Some(format!(
            "no node follows {what}; add a section `[sources.NAME]` with its `url` to the configuration of all nodes, or see in \
             `davenport sources` why it is not followed"
        ))
    }
}

impl Standing {
    /// Shows it in the document's row, which describes its replications.
    pub(super) fn show(self, row: &mut Value) {
        match self {
            Self::Replication => {}
            Self::Replicates(followed) => {
                if row["state"] == "initializing" {
                    row["info"] = match followed.reason() {
                        Some(reason) => json!({"reason": reason}),
                        None => json!({"waits_for": "its databases, none of which has been found"}),
                    };
                }
            }
            Self::Calls(followed) => {
                row["state"] = JobState::Running.as_str().into();
                row["info"] = match followed.reason() {
                    Some(reason) => json!({"reason": reason}),
                    None => json!({"waits_for": "changes of its databases"}),
                };
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
