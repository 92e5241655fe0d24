//! `davenport bench changes`: a node that follows a server with very many databases of which few change.
//!
//! The servers are in this process, so that databases are cheap and each request is known. The node is a separate one.

mod databases;
mod remotes;
mod sleeping;
mod storm;
mod use_of_node;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use http::Method;
use peer::Peer;
use serde_json::Value;

use crate::Open;
use crate::client::Client;
use crate::service::{Node, Place};
use crate::store::Figure;

#[derive(Debug, Args)]
pub struct ChangesBench {
    /// Empty store, lmdb: or fdb:; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of sleeping replications in the case `sleeping`
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    sleepers: usize,
    /// Number of databases in the case `databases`, each with a replication of one rule
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    databases: usize,
    /// Number of databases per second that change in these cases, and of copies in the case `remotes`
    #[arg(long, value_name = "C", default_value_t = 100)]
    changes: u32,
    /// Number of updates in the case `storm`
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    updates: usize,
    /// Number of databases that they are spread over, and of those that remotes copy
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    storm_databases: usize,
    /// Number of remotes in the case `remotes`
    #[arg(long, value_name = "N", default_value_t = 10)]
    remotes: usize,
    /// Seconds to measure in each case
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    /// Run only this case; can be repeated
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<Case>,
    /// Set any configuration option of the node
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Replications that sleep in the store
    Sleeping,
    /// One rule about all databases
    Databases,
    /// Very many updates of few databases
    Storm,
    /// Remotes on two nodes, one of which is down for a while
    Remotes,
}

/// One case and its report.
struct Run<'a> {
    bench: &'a ChangesBench,
    open: Open,
    case: &'static str,
    store: String,
    keys: PathBuf,
}

pub(crate) async fn run(bench: ChangesBench, open: Open) -> anyhow::Result<()> {
    let counts = [bench.sleepers, bench.databases, bench.storm_databases];
    ensure!(
        counts.iter().all(|count| *count > 0) && bench.changes > 0 && bench.seconds > 0,
        "numbers of databases, changes and seconds must be at least 1"
    );
    ensure!(
        bench.remotes > 1,
        "there must be at least 2 remotes: one is down"
    );
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let all = [Case::Sleeping, Case::Databases, Case::Storm, Case::Remotes];
    for case in all {
        if !bench.cases.is_empty() && !bench.cases.contains(&case) {
            continue;
        }
        let new = tempfile::tempdir().context("cannot create a temporary directory")?;
        let run = |name| Run {
            bench: &bench,
            open,
            case: name,
            store: crate::url_or_new(bench.store.clone(), &new),
            keys: directory.path().join("keys"),
        };
        match case {
            Case::Sleeping => Box::pin(sleeping::run(&run("sleeping"))).await,
            Case::Databases => Box::pin(databases::run(&run("databases"))).await,
            Case::Storm => Box::pin(storm::run(&run("storm"))).await,
            Case::Remotes => Box::pin(remotes::run(&run("remotes"))).await,
        }
        .with_context(|| format!("case {case:?}"))?;
    }
    Ok(())
}

impl Run<'_> {
    fn report(&self, metric: &'static str, value: f64, unit: &'static str) {
        self.report_of(self.case, metric, value, unit);
    }

    /// A figure of a part of the case.
    fn report_of(&self, case: &'static str, metric: &'static str, value: f64, unit: &'static str) {
        let case = case.into();
        let figure = Figure {
            case,
            metric,
            value,
            unit,
        };
        crate::report("changes", &figure, self.bench.json);
    }

    /// Starts a node that follows a server.
    async fn node(&self, source: &Peer, name: &str) -> anyhow::Result<Node> {
        let config = self.keys.with_extension("toml");
        let section = format!("[sources.bench]\nurl = \"{}\"\n", source.url());
        std::fs::write(&config, section).context("cannot write the configuration of a node")?;
        let place = Place {
            store: self.store.clone(),
            keys: self.keys.clone(),
            config: Some(config),
            set: self.bench.set.clone(),
        };
        Node::start(&place, name, "api_frontend,replication").await
    }
}

/// The name of a database on both servers.
fn database(number: usize) -> String {
    format!("db{number:07}")
}

/// Spreads consecutive numbers over a range.
fn scattered(number: usize, range: usize) -> usize {
    number.wrapping_mul(982_451_653) % range
}

/// Writes a rule that replicates each database to the one of the same name.
async fn put_rule(
    node: &Client,
    (source, target): (&Peer, &Peer),
    trigger: &Value,
) -> anyhow::Result<()> {
    let rules = format!("bench-{}%2F_rules", &crate::random_hex()[..8]);
    node.create(&rules).await?;
    let rule = serde_json::json!({
        "type": "replicator", "match": {"database": "^db[0-9]+$"}, "trigger": trigger,
        "source": format!("{}/${{db_name}}", source.url()),
        "target": format!("{}/${{db_name}}", target.url()),
    });
    let path = format!("{rules}/all");
    node.expect(Method::PUT, &path, &rule.to_string())
        .await
        .map(drop)
}
