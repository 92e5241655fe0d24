//! `_scheduler/nodes`: the nodes of the store, and what each does.

use serde_json::{Value, json};

use super::summary::Work;
use crate::data::iso;
use crate::fault::ServiceError;
use crate::service::Replications;

/// A node that was not heard of for longer than this has stopped, unless clocks differ.
const SILENCE_MAX_MS: i64 = 60_000;

impl Replications {
    /// `GET /_scheduler/nodes`: all that are registered, those that were killed for some minutes more.
    pub async fn nodes(&self) -> Result<Value, ServiceError> {
        let snapshot = self.snapshot().await?;
        let mut nodes = self.0.jobs.store().nodes().await?;
        let now_ms = self.0.jobs.clock().now_ms();
        nodes.sort_by(|one, other| {
            let name = |node: &store::nodes::Registered| node.node.name.clone();
            (name(one), other.seen_ms).cmp(&(name(other), one.seen_ms))
        });
        let mut work = snapshot.work_by_node();
        let shown = nodes.iter().map(|node| {
            let silent_ms = now_ms.saturating_sub(node.seen_ms);
            let roles: Vec<_> = node.node.roles.split(',').collect();
            let uptime_ms = node.seen_ms.saturating_sub(node.node.started_ms);
            let mut shown = json!({
                "node": node.node.name,
                "roles": roles,
                "version": node.node.version,
                "started": iso(node.node.started_ms.div_euclid(1000)),
                "uptime_seconds": uptime_ms.div_euclid(1000),
                "last_seen": iso(node.seen_ms.div_euclid(1000)),
                "alive": silent_ms < SILENCE_MAX_MS,
            });
            // Of two processes of one name, the jobs are those of the later one.
            let work: Work = work.remove(&*node.node.name).unwrap_or_default();
            work.show(&mut shown);
            shown
        });
        let shown: Vec<_> = shown.collect();
        // Nodes of a version that does not register.
        let others = work.into_iter().map(|(name, work)| {
            let mut shown = json!({"node": name, "roles": ["replication"], "alive": true});
            work.show(&mut shown);
            shown
        });
        let others: Vec<_> = others.collect();
        let all = [shown, others].concat();
        Ok(json!({"nodes": all}))
    }
}
