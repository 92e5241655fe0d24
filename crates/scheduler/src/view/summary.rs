//! `_scheduler/summary`: the state of the whole service in one small response.

use std::collections::BTreeMap;

use jobs::State;
use serde_json::{Value, json};

use crate::data::{Census, counted};
use crate::fault::ServiceError;
use crate::service::Replications;
use crate::snapshot::{Row, RowState, Snapshot};

/// The work of some replications.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    running: u64,
    idle: u64,
    unreachable: u64,
    docs_per_second: f64,
    bytes_per_second: f64,
    changes_pending: u64,
    lag_seconds_max: u64,
}

impl Replications {
    /// `GET /_scheduler/summary`
    pub async fn summary(&self) -> Result<Value, ServiceError> {
        let snapshot = self.snapshot().await?;
        let labels = self.0.jobs.counts_by_label(&self.0.ty).await?;
        let count = |state| counted(&labels, state);
        let mut all = Work::default();
        snapshot.rows.iter().for_each(|row| all.add(row));
        let nodes = snapshot.work_by_node().into_iter().map(|(node, work)| {
            let mut shown = json!({"node": node});
            work.show(&mut shown);
            shown
        });
        // More than can be kept are counted by the queue, which knows jobs alone.
        let census = Census::of(&labels).filter(|_| !snapshot.complete);
        let mut shown = json!({
            "jobs": census.map_or_else(|| snapshot.states(), |census| census.to_json()),
            "exact": snapshot.complete,
            "sampled": !snapshot.complete,
            "nodes": nodes.collect::<Vec<_>>(),
            "unreachable": snapshot.outages(),
            "queue": {
                "pending": count(State::Pending), "running": count(State::Running),
                "finished": count(State::Finished),
            },
        });
        all.show(&mut shown);
        Ok(shown)
    }
}

impl Snapshot {
    /// Idle and unreachable replications are running, too, and paused ones are pending.
    fn states(&self) -> Value {
        use RowState as S;
        let count = |states: &[RowState]| {
            let rows = self.rows.iter();
            rows.filter(|row| states.contains(&row.state)).count()
        };
        json!({
            "pending": count(&[S::Pending, S::Paused, S::Initializing]),
            "running": count(&[S::Running, S::Idle, S::Unreachable]),
            "crashing": count(&[S::Crashing]), "completed": count(&[S::Completed]),
            "failed": count(&[S::Failed]), "idle": count(&[S::Idle]), "paused": count(&[S::Paused]),
            "unreachable": count(&[S::Unreachable]),
        })
    }

    fn outages(&self) -> Value {
        let mut outages: BTreeMap<&str, (&str, u64)> = BTreeMap::new();
        let unreachable = (self.rows.iter()).filter(|row| row.state == RowState::Unreachable);
        for error in unreachable.filter_map(|row| row.error.as_ref()) {
            let server = error.cause.server.as_deref().unwrap_or_default();
            outages.entry(server).or_insert((&error.reason, 0)).1 += 1;
        }
        let outages = outages.into_iter().map(
            |(server, (reason, jobs))| json!({"server": server, "reason": reason, "jobs": jobs}),
        );
        outages.collect()
    }

    pub(super) fn work_by_node(&self) -> BTreeMap<&str, Work> {
        let mut nodes: BTreeMap<&str, Work> = BTreeMap::new();
        for row in &self.rows {
            if let Some(node) = &row.node {
                nodes.entry(node).or_default().add(row);
            }
        }
        nodes
    }
}

impl Work {
    fn add(&mut self, row: &Row) {
        if !row.state.runs() {
            return;
        }
        self.running += 1;
        self.docs_per_second += row.figures.docs_per_second;
        self.bytes_per_second += row.figures.bytes_per_second;
        self.changes_pending += row.figures.changes_pending.unwrap_or(0);
        match row.state {
            RowState::Idle => self.idle += 1,
            RowState::Unreachable => self.unreachable += 1,
            _ => {}
        }
        if row.state != RowState::Idle {
            let lag = row.figures.lag_seconds.unwrap_or(0);
            self.lag_seconds_max = self.lag_seconds_max.max(lag);
        }
    }

    pub(super) fn show(&self, shown: &mut Value) {
        let rounded = |rate: f64| (rate * 10.0).round() / 10.0;
        for (name, count) in [
            ("running", self.running),
            ("idle", self.idle),
            ("unreachable", self.unreachable),
            ("changes_pending", self.changes_pending),
            ("lag_seconds_max", self.lag_seconds_max),
        ] {
            // The whole service has a list of this name.
            if shown.get(name).is_none() {
                shown[name] = count.into();
            }
        }
        shown["docs_per_second"] = rounded(self.docs_per_second).into();
        shown["bytes_per_second"] = rounded(self.bytes_per_second).into();
    }
}
