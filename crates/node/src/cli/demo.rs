//! `davenport demo`: two CouchDB-compatible servers in memory, and a live replication between them.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use couch::{EgressOptions, Network, NetworkOptions};
use document::json::Json;
use jiff::Timestamp;
use peer::{Options, Peer};
use replicator::Stats;
use replicator::engine::{self, Control, Gate, Handles, Run, Settings};
use replicator::id::Service;
use replicator::params::{Defaults, Replication};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use super::output;

const DATABASE: &str = "orders";
const CUSTOMERS: [&str; 4] = ["Ada", "Grace", "Barbara", "Radia"];

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// How many documents there are at the start
    #[arg(long, default_value_t = 1_000)]
    documents: u32,
    /// End when everything is copied, instead of going on until Ctrl-C
    #[arg(long)]
    once: bool,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let password = super::random_hex();
    let options = || Options {
        admin: Some(("admin".to_owned(), password.clone())),
        ..Options::default()
    };
    let source = Peer::start(options()).await.context("start the source")?;
    let target = Peer::start(options()).await.context("start the target")?;
    source.create_database(DATABASE)?;
    source.put_all(DATABASE, (0..command.documents).map(order))?;
    output::line(&format!("source   {}", source.database_url(DATABASE)));
    output::line(&format!("target   {}", target.database_url(DATABASE)));
    output::line(&format!("log in   admin:{password}"));
    let replication = replication(&source, &target, &password, !command.once)?;
    let network = Network::new(
        NetworkOptions {
            egress: EgressOptions::open(),
            ..NetworkOptions::default()
        },
        super::random(),
    )?;
    let settings = Settings::default();
    let service = Service {
        uuid: super::random_hex(),
        legacy_host: None,
    };
    let (identity, filter_code) = Box::pin(engine::identify(
        &replication,
        &service,
        &network,
        &settings,
    ))
    .await?;
    let (control, handles) = Handles::new(Gate::open());
    let run = Run {
        replication,
        identity,
        filter_code,
        stats: Stats::default(),
        session_id: super::random_hex(),
        network,
        settings,
    };
    let running = Box::pin(engine::run(run, handles));
    attend(running, &control, &source, command.documents).await?;
    let copied = target.contents(DATABASE)?.without_locals();
    let differences = peer::compare(&source.contents(DATABASE)?.without_locals(), &copied);
    output::line(&format!(
        "done: {} differences between source and target",
        differences.len()
    ));
    Ok(())
}

/// Shows how far the replication is, and writes an order a second, until it ends or Ctrl-C.
async fn attend(
    run: impl Future<Output = Result<engine::Outcome, replicator::Error>>,
    control: &Control,
    source: &Peer,
    documents: u32,
) -> anyhow::Result<()> {
    let mut run = std::pin::pin!(run);
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (progress, mut next) = (control.progress(), documents);
    loop {
        tokio::select! {
            ended = &mut run => {
                let stats = ended?.progress.stats;
                output::line(&format!("copied   {} documents", stats.docs_written));
                return Ok(());
            }
            _ = tokio::signal::ctrl_c() => control.stop(),
            _ = ticks.tick() => {
                let (stats, lag) = {
                    let progress = progress.borrow();
                    (progress.stats, progress.lag_seconds(Timestamp::now()))
                };
                output::line(&format!("copied   {} documents, lag {lag} s", stats.docs_written));
                source.put(DATABASE, &order(next))?;
                next += 1;
            }
        }
    }
}

fn replication(
    source: &Peer,
    target: &Peer,
    password: &str,
    continuous: bool,
) -> anyhow::Result<Replication> {
    let endpoint = |peer: &Peer| {
        json!({
            "url": peer.database_url(DATABASE),
            "auth": {"basic": {"username": "admin", "password": password}},
        })
    };
    let document = json!({
        "source": endpoint(source),
        "target": endpoint(target),
        "create_target": true,
        "continuous": continuous,
    });
    Ok(Replication::from_document(
        &Json::parse(&document.to_string())?,
        &Defaults::default(),
    )?)
}

fn order(n: u32) -> String {
    let customer = CUSTOMERS[n as usize % CUSTOMERS.len()];
    json!({"_id": format!("order-{n:06}"), "customer": customer, "total_cents": 100 + n * 37 % 9_900})
        .to_string()
}
