//! Hosts that imported replications could not reach, and the configuration that allows them.

use std::collections::BTreeMap;

use couch::{Blocked as Cause, Endpoint, Error, Network};
use replication::params::Replication;
use serde_json::json;

use super::output;
use crate::config::Config;
use crate::random;
use crate::running::network;

/// What the egress policy of this configuration forbids.
pub(super) struct Blocked {
    network: Network,
    /// What the configuration allows already.
    allow: Vec<String>,
    /// By host and port: the message, whether a rule can allow it, and the number of documents.
    hosts: BTreeMap<String, (String, bool, u64)>,
}

impl Blocked {
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            network: Network::new(network(config)?, random())?,
            allow: config.network.egress.allow.clone(),
            hosts: BTreeMap::new(),
        })
    }

    pub(super) async fn add(&mut self, wanted: &Replication) {
        for endpoint in [&wanted.source, &wanted.target] {
            if let Err(error @ Error::Egress { .. }) = self.network.check(endpoint).await {
                let can_allow = !matches!(
                    &error,
                    Error::Egress {
                        cause: Cause::Denied(_),
                        ..
                    }
                );
                let host = (self.hosts.entry(host(endpoint)))
                    .or_insert_with(|| (error.to_string(), can_allow, 0));
                host.2 += 1;
            }
        }
    }

    pub(super) fn report(&self, as_json: bool) {
        let allowed = self
            .hosts
            .iter()
            .filter(|(_, (_, can_allow, _))| *can_allow);
        let allow: Vec<_> = self
            .allow
            .iter()
            .chain(allowed.map(|(host, _)| host))
            .collect();
        let line = format!("network.egress.allow = {}", json!(allow));
        if as_json {
            for (host, (reason, _, documents)) in &self.hosts {
                let blocked = json!({"blocked": host, "endpoints": documents, "reason": reason});
                output::line(&blocked.to_string());
            }
            return;
        }
        for (reason, _, documents) in self.hosts.values() {
            output::line(&format!("blocked: {documents} endpoints: {reason}"));
        }
        if allow.len() > self.allow.len() {
            output::line(
                "to allow these hosts, put this line at the top of the configuration file of every node:",
            );
            output::line(&line);
        }
    }
}

fn host(endpoint: &Endpoint) -> String {
    let host = endpoint.host();
    let default = if endpoint.scheme() == "https" {
        443
    } else {
        80
    };
    let port = endpoint.port().unwrap_or(default);
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}
