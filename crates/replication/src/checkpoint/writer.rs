//! Writes checkpoints.

use couch::{Database, Rev, Seq};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use serde_json::{Map, Value, json};

use super::{HISTORY_MAX, Log};
use crate::error::Error;
use crate::id::BaseId;
use crate::stats::Stats;

/// The version of replication ids, recorded in checkpoints.
const ID_VERSION: u32 = 4;

/// One side of a replication.
pub(crate) struct Side {
    /// `source` or `target`.
    pub(crate) name: &'static str,
    pub(crate) database: Database,
    pub(crate) log: Log,
    /// Identifies the instance of the database.
    pub(crate) instance_start_time: String,
}

impl Side {
    pub(crate) fn new(
        name: &'static str,
        database: &Database,
        instance_start_time: String,
        log: Log,
    ) -> Self {
        Self {
            name,
            database: database.clone(),
            log,
            instance_start_time,
        }
    }
}

/// This run as a history entry.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) started: Timestamp,
    pub(crate) start: Seq,
    /// Earlier entries, newest first.
    pub(crate) history: Vec<Value>,
    /// Whether the body repeats some totals, as it does for replications by document ids.
    pub(crate) has_totals: bool,
}

/// Writes the checkpoints of one run.
pub(crate) struct Checkpointer {
    pub(crate) base: BaseId,
    pub(crate) session: Session,
    pub(crate) source: Side,
    pub(crate) target: Side,
    /// Whether the source gets one as well.
    pub(crate) both: bool,
    /// The sequence of the last checkpoint.
    pub(crate) committed: Seq,
    /// When this run last wrote one.
    pub(crate) written: Option<Timestamp>,
}

impl Checkpointer {
    /// Records that everything up to `through` is on the target. Returns the body, which is also the result of a
    /// replication.
    pub(crate) async fn write(
        &mut self,
        through: &Seq,
        stats: &Stats,
        now: Timestamp,
    ) -> Result<Map<String, Value>, Error> {
        self.commit().await?;
        let body = self.body(through, stats, now);
        // The source first: if the target's write fails, its older position counts.
        if self.both {
            put(&mut self.source, &self.base, &body).await?;
        }
        put(&mut self.target, &self.base, &body).await?;
        self.committed = through.clone();
        self.written = Some(now);
        Ok(body)
    }

    /// Commits both sides, and checks that the databases were not recreated.
    async fn commit(&self) -> Result<(), Error> {
        let source = async {
            if self.both {
                self.source.database.ensure_full_commit().await
            } else {
                self.source
                    .database
                    .info()
                    .await
                    .map(|info| info.instance_start_time)
            }
        };
        let (source, target) = tokio::join!(source, self.target.database.ensure_full_commit());
        let started = |side: &Side, outcome: Result<String, couch::Error>| {
            outcome.map_err(|cause| {
                Error::checkpoint(format!("Failure on {} commit", side.name), cause)
            })
        };
        let source = started(&self.source, source)?;
        let target = started(&self.target, target)?;
        let changed = match (
            is_same(&self.source, &source),
            is_same(&self.target, &target),
        ) {
            (true, true) => return Ok(()),
            (true, false) => "target",
            (false, true) => "source",
            (false, false) => "source and target",
        };
        Err(Error::Checkpoint(format!(
            "instance_start_time on {changed} database has changed since last checkpoint."
        )))
    }

    /// The body of a checkpoint.
    pub(crate) fn body(&self, through: &Seq, stats: &Stats, now: Timestamp) -> Map<String, Value> {
        let session = &self.session;
        let (started, ended) = (rfc1123(session.started), rfc1123(now));
        let text = |name: &str, value: Value| (name.to_owned(), value);
        let mut entry: Map<String, Value> = [
            text("session_id", json!(session.id)),
            text("start_time", json!(started)),
            text("end_time", json!(ended)),
            text("start_last_seq", json!(session.start)),
            text("end_last_seq", json!(through)),
            text("recorded_seq", json!(through)),
        ]
        .into_iter()
        .collect();
        entry.extend(stats.to_history());

        let mut body: Map<String, Value> = [
            text("session_id", json!(session.id)),
            text("source_last_seq", json!(through)),
            text("replication_id_version", json!(ID_VERSION)),
        ]
        .into_iter()
        .collect();
        if !self.both {
            // Without a checkpoint on the source, this detects that the source was replaced.
            body.extend([text(SOURCE_STARTED, json!(self.source.instance_start_time))]);
        }
        if session.has_totals {
            body.extend([
                text("start_time", json!(started)),
                text("end_time", json!(ended)),
                text("docs_read", json!(stats.docs_read)),
                text("docs_written", json!(stats.docs_written)),
                text("doc_write_failures", json!(stats.doc_write_failures)),
            ]);
        }
        let history = std::iter::once(Value::Object(entry)).chain(session.history.iter().cloned());
        body.insert("history".to_owned(), history.take(HISTORY_MAX).collect());
        body
    }
}

/// The member for the source's instance, used if only the target has checkpoints.
pub(crate) const SOURCE_STARTED: &str = "source_instance_start_time";

/// Some servers report `0` instead of a start time.
fn is_same(side: &Side, now: &str) -> bool {
    same_instance(&side.instance_start_time, now)
}

pub(crate) fn same_instance(a: &str, b: &str) -> bool {
    a == b || a == "0" || b == "0"
}

async fn put(side: &mut Side, base: &BaseId, body: &Map<String, Value>) -> Result<(), Error> {
    let name = side.name;
    let failed = |cause| {
        Error::checkpoint(
            format!("Error updating the {name} checkpoint document"),
            cause,
        )
    };
    let mut document = body.clone();
    if let Some(rev) = side.log.get("_rev") {
        document.insert("_rev".to_owned(), rev.clone());
    }
    let rev = match side.database.put_local(base.as_str(), &document).await {
        Ok(rev) => rev,
        Err(conflict @ couch::Error::Conflict(_)) => {
            // The response to an earlier attempt may have been lost.
            let stored: Option<Map<String, Value>> =
                side.database.local(base.as_str()).await.map_err(failed)?;
            let stored = Log::new(stored.unwrap_or_default());
            match stored.get("_rev").and_then(Value::as_str) {
                Some(rev) if stored.body() == *body => Rev::from(rev),
                _ => return Err(failed(conflict)),
            }
        }
        Err(error) => return Err(failed(error)),
    };
    document.insert("_rev".to_owned(), json!(rev));
    side.log = Log::new(document);
    Ok(())
}

fn rfc1123(time: Timestamp) -> String {
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&time)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_http_writes_them() {
        let time: Timestamp = "2026-11-20T19:55:27.9Z".parse().unwrap();
        assert_eq!(rfc1123(time), "Fri, 20 Nov 2026 19:55:27 GMT");
    }

    #[test]
    fn instances() {
        assert!(same_instance("1", "1") && same_instance("0", "1") && same_instance("1", "0"));
        assert!(!same_instance("1", "2"));
    }
}
