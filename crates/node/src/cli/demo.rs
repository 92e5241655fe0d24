//! `davenport demo`: the whole service on a store in memory, two CouchDB-compatible servers in memory,
//! a live replication between them that the service runs, and jobs for a worker in Python.

mod worker;

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, bail};
use api::auth::password::{ITERATIONS, PasswordHash};
use clap::Args;
use peer::{Options, Peer};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use self::worker::Worker;
use super::{output, random_hex};
use crate::config::{Admins, Config};
use crate::keys::KeyRing;
use crate::metrics::Collected;
use crate::random;
use crate::running::{Node, open_store};

const DATABASE: &str = "orders";
const CUSTOMERS: [&str; 4] = ["Ada", "Grace", "Barbara", "Radia"];

#[derive(Debug, Args)]
pub(crate) struct Command {
    /// Number of documents at the start
    #[arg(long, default_value_t = 1_000)]
    documents: u32,
    /// Exit when everything is copied, instead of running until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Listen address of the service; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let password = random_hex();
    let options = || Options {
        admin: Some(("admin".to_owned(), password.clone())),
        ..Options::default()
    };
    let source = Peer::start(options())
        .await
        .context("cannot start the source")?;
    let target = Peer::start(options())
        .await
        .context("cannot start the target")?;
    source.create_database(DATABASE)?;
    source.put_all(DATABASE, (0..command.documents).map(order))?;
    let config = config(&command, &password);
    let keys = KeyRing::drawn(random());
    let store = open_store(&config).await?;
    let node = Box::pin(Node::start(&config, store, &keys, &Collected::begin()?)).await?;
    let address = node
        .address()
        .context("cannot find the service's address")?;
    let service = Service {
        client: Client::new(),
        url: format!("http://{address}"),
        password,
    };
    service.introduce(&source, &target);
    service.replicate(&source, &target, !command.once).await?;
    let worker = service.start_worker().await?;
    let orders = (!command.once).then_some(command.documents);
    let watched = service.watch(&source, orders, worker.is_some()).await;
    drop(worker);
    node.stop().await;
    watched?;
    if command.once {
        let copied = target.contents(DATABASE)?.without_locals();
        let given = source.contents(DATABASE)?.without_locals();
        let differences = peer::compare(&given, &copied).len();
        output::line(&format!(
            "done: {differences} differences between source and target"
        ));
    }
    Ok(())
}

fn config(command: &Command, password: &str) -> Config {
    let mut config = Config::default();
    "memory:".clone_into(&mut config.store.url);
    config.http.listen = command.listen.to_string();
    let hash = PasswordHash::make(password, random(), ITERATIONS).to_config();
    config.admins = Admins([("admin".to_owned(), hash)].into());
    config.replicator.stats_update_interval_sec = 1;
    config
}

/// A client of the service.
struct Service {
    client: Client,
    url: String,
    password: String,
}

impl Service {
    fn introduce(&self, source: &Peer, target: &Peer) {
        let password = &self.password;
        let document = format!("{}/_replicator/demo", self.url);
        output::line(&format!("service  {}", self.url));
        output::line(&format!("look     {}/_dashboard", self.url));
        output::line(&format!("source   {}", source.database_url(DATABASE)));
        output::line(&format!("target   {}", target.database_url(DATABASE)));
        output::line(&format!("log in   admin:{password}"));
        output::line(&format!("try      curl -u admin:{password} {document}"));
    }

    /// Writes the replication document.
    async fn replicate(
        &self,
        source: &Peer,
        target: &Peer,
        continuous: bool,
    ) -> anyhow::Result<()> {
        let endpoint = |peer: &Peer| {
            json!({
                "url": peer.database_url(DATABASE),
                "auth": {"basic": {"username": "admin", "password": self.password}},
            })
        };
        let document = json!({
            "source": endpoint(source), "target": endpoint(target),
            "create_target": true, "continuous": continuous,
        });
        let request = self
            .client
            .put(format!("{}/_replicator/demo", self.url))
            .basic_auth("admin", Some(&self.password))
            .json(&document);
        let response = request.send().await?;
        if !response.status().is_success() {
            let answer = response.text().await?;
            bail!("the service rejected the document: {answer}");
        }
        Ok(())
    }

    /// Makes the type of the receipts, and starts their worker if there is a Python for it.
    async fn start_worker(&self) -> anyhow::Result<Option<Worker>> {
        let (client, password) = (&self.client, Some(&self.password));
        let url = format!("{}/_jobs/receipts", self.url);
        let request = client.put(&url).basic_auth("admin", password);
        let made = request.json(&json!({})).send().await?;
        made.error_for_status()?;
        let login = format!("http://admin:{}@", self.password);
        let worker = Worker::start(&self.url.replacen("http://", &login, 1)).await?;
        output::line(&match &worker {
            Some(_) => format!("jobs     curl -u admin:{} '{url}?data=true'", self.password),
            None => "jobs     none: their worker needs Python 3.11".to_owned(),
        });
        Ok(worker)
    }

    /// Adds the job that writes the receipt of an order, and waits for it if asked to.
    async fn receipt(&self, n: u32, wait: bool) -> anyhow::Result<()> {
        let (client, password) = (&self.client, Some(&self.password));
        let order: Value = serde_json::from_str(&order(n))?;
        let job = json!({"id": &order["_id"], "data": &order});
        let url = format!("{}/_jobs/receipts", self.url);
        let request = client.post(&url).basic_auth("admin", password);
        request.json(&job).send().await?.error_for_status()?;
        if wait {
            let id = order["_id"].as_str().unwrap_or_default();
            let request = client.get(format!("{url}/{id}/_wait?timeout_sec=60"));
            let response = request.basic_auth("admin", password).send().await?;
            let job: Value = response.error_for_status()?.json().await?;
            let result = job["result"].as_str().unwrap_or("the worker is slow");
            output::line(&format!("receipt  {result}"));
        }
        Ok(())
    }

    async fn row(&self) -> anyhow::Result<Value> {
        let url = format!("{}/_scheduler/docs/_replicator/demo", self.url);
        let request = self.client.get(url);
        let response = request.basic_auth("admin", Some(&self.password)).send();
        Ok(response.await?.error_for_status()?.json().await?)
    }

    /// Prints progress until the replication ends or Ctrl-C; writes one order per second, numbered from this number,
    /// each with a receipt if there is a worker for it.
    async fn watch(
        &self,
        source: &Peer,
        mut orders: Option<u32>,
        receipts: bool,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // One for all turns: another would not hear what came before it.
        let mut interrupted = pin!(tokio::signal::ctrl_c());
        loop {
            tokio::select! {
                _ = &mut interrupted => return Ok(()),
                _ = ticks.tick() => {}
            }
            let row = self.row().await?;
            let (state, info) = (row["state"].as_str().unwrap_or_default(), &row["info"]);
            let written = info["docs_written"].as_u64().unwrap_or(0);
            match state {
                "completed" => {
                    output::line(&format!("copied   {written} documents"));
                    if receipts {
                        self.receipt(0, true).await?;
                    }
                    return Ok(());
                }
                "failed" | "crashing" => bail!("the replication is {state}: {info}"),
                _ => {}
            }
            let lag = info["lag_seconds"].as_u64().unwrap_or(0);
            output::line(&format!(
                "{state:<8} {written} documents copied, lag {lag} s"
            ));
            if let Some(next) = &mut orders {
                source.put(DATABASE, &order(*next))?;
                if receipts {
                    self.receipt(*next, false).await?;
                }
                *next += 1;
            }
        }
    }
}

fn order(n: u32) -> String {
    let customer = CUSTOMERS[n as usize % CUSTOMERS.len()];
    json!({"_id": format!("order-{n:06}"), "customer": customer, "total_cents": 100 + n * 37 % 9_900})
        .to_string()
}
