//! What follows changes: sources, rules about them, and calls of webhooks.

use std::path::Path;
use std::sync::Arc;

use couch::Network;
use jobs::{Acceptor, Holder};
use rules::deliver::{Deliveries, RuleTargets, Server, ServerSetup};
use rules::rule::{Listeners, Listening, RuleWatcher, Rules};
use rules::source::{Followers, RuleBook};
use scheduler::{PasswordCell, Passwords, Replications};
use tokio::sync::watch;

use super::Tasks;
use crate::config::Config;

/// Concurrent jobs that listen to databases, in addition to one for each call in progress; and their maximum.
const LISTENING: usize = 32;
const LISTENING_MAX: usize = 1_000;

/// What a node that replicates needs besides.
pub(super) struct Following<'a> {
    pub(super) config: &'a Config,
    pub(super) replications: &'a Replications,
    pub(super) deliveries: &'a Deliveries,
    pub(super) listeners: &'a Listeners,
    pub(super) network: &'a Network,
    pub(super) holder: &'a Holder,
    pub(super) passwords: &'a PasswordCell,
}

impl Following<'_> {
    /// Starts tasks: jobs depend on the outer ones directly, those on the inner ones.
    pub(super) fn start(self, outer: &mut Tasks, inner: &mut Tasks) -> anyhow::Result<()> {
        let (replications, network) = (self.replications.clone(), self.network.clone());
        let sources = self.config.sources().map_err(anyhow::Error::msg)?;
        let rules = Rules::new(replications.clone());
        let (watcher, compiled) = RuleWatcher::new(rules);
        inner.start("watcher of rules", |stop| watcher.run(stop));

        let jobs = replications.jobs().clone();
        let ty = self.deliveries.job_type().clone();
        let (acceptor, handle) = Acceptor::new(jobs, ty, self.holder.clone());
        let setup = ServerSetup {
            network: network.clone(),
            options: self.config.webhooks.clone(),
            targets: Arc::new(RuleTargets {
                rules: Rules::new(replications.clone()),
                compiled: compiled.clone(),
                events: self.config.webhooks.events.clone(),
            }),
            passwords: self.passwords.clone(),
            secrets: self.config.secrets.named().map_err(anyhow::Error::msg)?,
        };
        let server = Server::new(self.deliveries.clone(), handle, setup)?;
        let listening = Listening {
            listeners: self.listeners.clone(),
            rules: compiled.clone(),
            sources: watch::channel(Arc::from(sources.clone())).1,
            network: network.clone(),
            sender: server.calls(),
        };
        outer.start("caller of webhooks", |stop| server.run(stop));
        inner.start("acceptor of webhooks", |stop| acceptor.run(stop));
        let holder = self.holder.clone();
        let calling = self.config.webhooks.max_in_flight;
        let listeners = LISTENING.saturating_add(calling).min(LISTENING_MAX);
        outer.start("listeners to databases", |stop| {
            listening.run(holder, listeners, stop)
        });

        let book = RuleBook::new(replications, compiled, self.listeners.clone());
        let followers = Followers::new(book, network, self.holder.clone(), sources);
        outer.start("followers of sources", |stop| followers.run(stop));
        Ok(())
    }
}

/// The passwords of the file, if there is one.
pub(super) fn passwords(file: Option<&Path>) -> anyhow::Result<Passwords> {
    Ok(file.map(Passwords::load).transpose()?.unwrap_or_default())
}
