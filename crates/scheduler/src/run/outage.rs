//! Whether the servers of a run respond.

use std::time::Duration;

use couch::{Endpoint, Network, Reachability};

use super::Work;
use crate::data::{JobData, Outage};
use replication::params::Replication;

/// The servers of a replication.
pub(super) struct Servers([Reachability; 2]);

impl Servers {
    pub(super) fn of(network: &Network, replication: &Replication) -> Self {
        let endpoints = [&replication.source, &replication.target];
        Self(endpoints.map(|endpoint| network.reachability(endpoint)))
    }

    /// The first of them that is unreachable.
    pub(super) fn outage(&self) -> Option<Outage> {
        self.0.iter().find_map(outage)
    }

    /// Waits until one of them becomes unreachable or reachable.
    pub(super) async fn changed(&mut self) {
        let [source, target] = &mut self.0;
        tokio::select! {
            () = source.changed() => {}
            () = target.changed() => {}
        }
    }
}

impl Work<'_> {
    /// The outage of one of this job's servers, even if the run has not started.
    pub(super) fn outage(&self, data: &JobData) -> Option<Outage> {
        let network = &self.runner.network;
        endpoints(data).find_map(|endpoint| outage(&network.reachability(&endpoint)))
    }

    /// The job uses its servers again after a pause.
    pub(super) fn need_servers(&self, data: &JobData, pause_ms: i64) {
        let pause = Duration::from_millis(u64::try_from(pause_ms).unwrap_or(0));
        endpoints(data).for_each(|endpoint| self.runner.network.need_server(&endpoint, pause));
    }
}

fn endpoints(data: &JobData) -> impl Iterator<Item = Endpoint> {
    let urls = [&data.shown.source, &data.shown.target];
    (urls.into_iter().flatten()).filter_map(|url| Endpoint::from_url(url).ok())
}

fn outage(server: &Reachability) -> Option<Outage> {
    Some(Outage {
        reason: server.outage()?.to_string(),
        server: server.server().to_owned(),
    })
}
