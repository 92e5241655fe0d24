//! `davenport bench replicate`: a replication by Davenport, and the same one by the server's own replicator, on the
//! same server.
//!
//! Ours runs in its own process, so that its CPU time and memory can be measured. The server's own cost is measured if
//! it runs on this machine. A server with a replicator repeats the work into another database.

mod child;
mod data;
mod databases;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::client::Client;
use super::process::{Processes, first_line, myself, start_peer};
use super::{print, random_hex};
pub(crate) use child::{idle, one, serve_peer};
use data::Case;
use databases::{Databases, Interrupted};

#[derive(Debug, Args)]
pub struct Command {
    /// URL of an empty CouchDB with its administrator, such as `http://admin:password@127.0.0.1:5984`; default: an in-memory server
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Run only these cases, separated by commas
    #[arg(long, value_name = "CASE,CASE…", value_delimiter = ',')]
    cases: Vec<Case>,
    /// Fraction of the documents, for a quick test; figures are comparable only at 1
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Instead of the cases, measure the memory of this many idle continuous replications
    #[arg(long, value_name = "JOBS")]
    idle: Option<u32>,
    /// Time limit for each case, including its data
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,
    #[arg(
        long = "option",
        value_name = "FIELD=JSON",
        help = "Set a field of the replication document, for both replicators, such as worker_batch_size=500"
    )]
    options: Vec<String>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    ensure!(
        command.scale > 0.0 && command.scale <= 1.0,
        "--scale must be more than 0 and at most 1"
    );
    let mut own = None;
    let url = if let Some(url) = command.server {
        url
    } else {
        let (child, url) = start_peer().await?;
        own = Some(child);
        url
    };
    let client = Client::new(&url)?;
    let bench = Bench {
        server: match &own {
            Some(child) => child.id().map(Processes::of),
            None => client.local_port().and_then(Processes::listening),
        },
        has_replicator: client.has_replicator().await?,
        client,
        scale: command.scale,
        limit: Duration::from_secs(command.limit),
        options: options(&command.options)?,
        json: command.json,
    };
    let cases = if command.cases.is_empty() {
        Case::value_variants()
    } else {
        &command.cases[..]
    };
    let measured = match command.idle {
        Some(jobs) => bench.idle(jobs).await,
        None => bench.cases(cases).await,
    };
    if let Some(mut child) = own {
        // It exits at the end of its input.
        drop(child.stdin.take());
        child.wait().await.context("cannot wait for the server")?;
    }
    measured
}

/// A server and the report.
struct Bench {
    client: Client,
    /// Its processes, if they are on this machine.
    server: Option<Processes>,
    has_replicator: bool,
    scale: f64,
    /// Time limit of a case.
    limit: Duration,
    /// Fields of replication documents.
    options: Map<String, Value>,
    json: bool,
}

/// The cost of one replication.
#[derive(Default)]
struct Measured {
    wall_s: f64,
    cpu_s: f64,
    server_cpu_s: Option<f64>,
    peak_rss_mb: Option<f64>,
}

impl Bench {
    /// Measures cases. A failure does not stop the others.
    async fn cases(&self, cases: &[Case]) -> anyhow::Result<()> {
        let mut failed = Vec::new();
        for case in cases {
            match self.case(*case).await {
                Ok(()) => {}
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => {
                    let _ = writeln!(std::io::stderr(), "case {}: {error:#}", case.name());
                    failed.push(case.name());
                }
            }
        }
        ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
        Ok(())
    }

    async fn case(&self, case: Case) -> anyhow::Result<()> {
        let run = random_hex();
        let name = |what: &str| {
            format!(
                "bench-{}-{}-{what}",
                case.name().replace('_', "-"),
                &run[..8]
            )
        };
        let (source, ours, theirs) = (name("source"), name("ours"), name("theirs"));
        let mut names = vec![&*source, &*ours];
        if self.has_replicator && !case.target_is_full() {
            names.push(&theirs);
        }
        let measure = async {
            self.fill(case, &source).await?;
            if case.target_is_full() {
                self.fill(case, &ours).await?;
            }
            let measured = self.ours(&source, &ours).await?;
            self.check(case, &source, &ours).await?;
            self.report(case, "davenport", &measured);
            if self.has_replicator {
                let target = if case.target_is_full() {
                    &ours
                } else {
                    &theirs
                };
                let measured = self.theirs(&source, target).await?;
                self.check(case, &source, target).await?;
                self.report(case, "server", &measured);
            }
            anyhow::Ok(())
        };
        let databases = Databases::new(&self.client, &names);
        databases.during(self.limit, measure).await
    }

    /// Many replications of one database with one document, each to the same target under another name of the source.
    async fn idle(&self, jobs: u32) -> anyhow::Result<()> {
        let run = random_hex();
        let name = |what: &str| format!("bench-idle-{}-{what}", &run[..8]);
        let (source, target) = (name("source"), name("target"));
        let names = [&*source, &*target];
        let databases = Databases::new(&self.client, &names);
        let measure = self.idle_between(jobs, &source, &target);
        databases.during(self.limit, measure).await
    }

    async fn idle_between(&self, jobs: u32, source: &str, target: &str) -> anyhow::Result<()> {
        let mut child = myself(&["bench", "replicate-idle"])?;
        let mut stdin = child
            .stdin
            .take()
            .context("cannot write to a new process")?;
        for job in 0..jobs {
            // Different headers make a different replication.
            let document = json!({
                "source": {"url": self.client.url(source), "headers": {"X-Job": job.to_string()}},
                "target": self.client.url(target),
                "continuous": true,
            });
            stdin.write_all(format!("{document}\n").as_bytes()).await?;
        }
        drop(stdin);
        let line = first_line(&mut child).await?;
        child.wait().await?;
        let said: Value =
            serde_json::from_str(&line).context("cannot read the result of a process")?;
        for (metric, unit) in [
            ("rss_kb_per_job", "kB"),
            ("cpu_s", "s"),
            ("peak_rss_mb", "MB"),
        ] {
            if let Some(value) = said[metric].as_f64() {
                self.print("idle", "davenport", metric, value, unit);
            }
        }
        Ok(())
    }

    async fn fill(&self, case: Case, database: &str) -> anyhow::Result<()> {
        let count = case.documents(self.scale);
        for batch in data::batches(case, count) {
            self.client.bulk_docs(database, &batch).await?;
        }
        // Leftover work of the server must not count for the replication.
        if let Some(server) = &self.server {
            server.settle().await;
        }
        Ok(())
    }

    /// Checks that both databases have the same documents.
    async fn check(&self, case: Case, source: &str, target: &str) -> anyhow::Result<()> {
        let (source, target) = (
            self.client.counts(source).await?,
            self.client.counts(target).await?,
        );
        ensure!(
            source == target && source.0 == case.documents(self.scale),
            "{source:?} documents at the source and {target:?} at the target"
        );
        Ok(())
    }

    async fn ours(&self, source: &str, target: &str) -> anyhow::Result<Measured> {
        let mut child = myself(&["bench", "replicate-one"])?;
        let document = self.document(source, target);
        let (before, begun) = (self.server_cpu(), Instant::now());
        let mut stdin = child
            .stdin
            .take()
            .context("cannot write to a new process")?;
        stdin.write_all(document.to_string().as_bytes()).await?;
        drop(stdin);
        let line = first_line(&mut child).await?;
        let status = child.wait().await?;
        let wall_s = begun.elapsed().as_secs_f64();
        ensure!(status.success(), "the replication failed");
        let said: Value =
            serde_json::from_str(&line).context("cannot read the result of a process")?;
        Ok(Measured {
            wall_s,
            cpu_s: said["cpu_s"].as_f64().unwrap_or_default(),
            server_cpu_s: self.cpu_since(before),
            peak_rss_mb: said["peak_rss_mb"].as_f64(),
        })
    }

    async fn theirs(&self, source: &str, target: &str) -> anyhow::Result<Measured> {
        if let Some(server) = &self.server {
            server.settle().await;
        }
        let document = self.document(source, target);
        let (before, begun) = (self.server_cpu(), Instant::now());
        self.client.replicate(&document).await?;
        Ok(Measured {
            wall_s: begun.elapsed().as_secs_f64(),
            server_cpu_s: self.cpu_since(before),
            // The replicator is part of the server; there is no other process.
            cpu_s: 0.0,
            peak_rss_mb: None,
        })
    }

    fn document(&self, source: &str, target: &str) -> Value {
        let mut document = self.options.clone();
        for (side, database) in [("source", source), ("target", target)] {
            document.insert(side.to_owned(), self.client.url(database).into());
        }
        Value::Object(document)
    }

    fn server_cpu(&self) -> Option<f64> {
        self.server.as_ref()?.cpu_s()
    }

    fn cpu_since(&self, before: Option<f64>) -> Option<f64> {
        Some(self.server_cpu()? - before?)
    }

    fn report(&self, case: Case, who: &str, measured: &Measured) {
        let figures = [
            ("wall_s", Some(measured.wall_s), "s"),
            ("cpu_s", Some(measured.cpu_s), "s"),
            ("server_cpu_s", measured.server_cpu_s, "s"),
            ("peak_rss_mb", measured.peak_rss_mb, "MB"),
        ];
        for (metric, value, unit) in figures {
            if let Some(value) = value {
                self.print(case.name(), who, metric, value, unit);
            }
        }
    }

    fn print(&self, case: &str, who: &str, metric: &str, value: f64, unit: &str) {
        print(&if self.json {
            let line = json!({
                "bench": "replicate", "case": case, "who": who, "metric": metric, "value": value, "unit": unit,
            });
            line.to_string()
        } else {
            format!("{case:<24} {who:<10} {metric:<20} {value:>14.3} {unit}")
        });
    }
}

/// Parses a field of a replication document. What is not JSON is a string.
fn options(given: &[String]) -> anyhow::Result<Map<String, Value>> {
    let field = |option: &String| {
        let (field, value) = option
            .split_once('=')
            .with_context(|| format!("--option {option}: must be FIELD=JSON"))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        Ok((field.to_owned(), value))
    };
    given.iter().map(field).collect()
}
