//! Finds the configuration and store of the nodes, for tools.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use scheduler::Replications;

use super::{Unusable, serve};
use crate::config::{Config, Sources};
use crate::running::{network, open_keys, open_store, replications};

/// Flags of tools that work on the nodes' store.
#[derive(Debug, Args)]
pub(super) struct NodesFlags {
    /// Configuration file of the nodes
    #[arg(long, value_name = "FILE", env = "DAVENPORT_CONFIG")]
    config: Option<PathBuf>,
    #[arg(
        long,
        value_name = "URL",
        help = "Store of the nodes: lmdb:DIRECTORY or fdb:CLUSTER_FILE"
    )]
    store: Option<String>,
    /// Set any configuration option
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl NodesFlags {
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    pub(super) fn sources(&self) -> anyhow::Result<Sources> {
        let mut flags = Vec::new();
        if let Some(url) = &self.store {
            flags.push(("--store", "store.url".to_owned(), url.clone()));
        }
        for set in &self.set {
            flags.push(setting(set).context(Unusable)?);
        }
        Ok(Sources {
            file: self.config.clone(),
            environment: serve::environment(),
            flags,
            ..Sources::default()
        })
    }
}

/// Parses `--set`.
pub(super) fn setting(set: &str) -> anyhow::Result<(&'static str, String, String)> {
    let (key, value) =
        (set.split_once('=')).ok_or_else(|| anyhow!("--set {set}: write SECTION.KEY=VALUE"))?;
    Ok(("--set", key.trim().to_owned(), value.trim().to_owned()))
}

/// The replications of the nodes' store, with their keys; `file` is the configuration file.
pub(super) async fn open(config: &Config, file: Option<&Path>) -> anyhow::Result<Replications> {
    let store = open_store(config).await?;
    let keys = open_keys(config, file)?;
    replications(config, &keys, store, &network(config)?).await
}
