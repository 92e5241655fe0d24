//! `davenport store`: works on a store directly, also while no node runs.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use ::store::nodes::Registered;
use ::store::{Space, Store, Totals};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use jobs::{Check, Clock, Entropy, JobType, Jobs};
use scheduler::{Sealed, count_seals};
use seal::keys_in_use;
use serde_json::json;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, BufWriter};

use super::verify::counted;
use super::{output, serve};
use crate::config::Sources;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read every row, and check formats and invariants
    Check(Flags),
    /// Count stored rows and bytes
    Stats(Flags),
    /// Write the whole store to a file or standard output; stop the nodes first
    Export {
        #[command(flatten)]
        flags: Flags,
        /// Output file, created with mode 0600; default: standard output
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Import an export, from any backend, into an empty store
    Import {
        #[command(flatten)]
        flags: Flags,
        /// Input file; default: standard input
        #[arg(long)]
        input: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Flags {
    #[arg(
        long,
        help = "lmdb:DIRECTORY or fdb:CLUSTER_FILE [default: url in [store] of the configuration, lmdb:./data]",
        value_name = "URL",
        env = "DAVENPORT_STORE"
    )]
    store: Option<String>,
    /// Configuration file of the nodes
    #[arg(long, value_name = "FILE", env = "DAVENPORT_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The store to work on.
struct Target {
    store: String,
    json: bool,
}

impl Flags {
    fn target(self) -> anyhow::Result<Target> {
        let store = if let Some(store) = self.store {
            store
        } else {
            let sources = Sources {
                file: self.config,
                environment: serve::environment(),
                ..Sources::default()
            };
            sources.load()?.config.store.url
        };
        let json = self.json;
        Ok(Target { store, json })
    }
}

impl Target {
    /// Opens an existing store; does not create one.
    async fn open_existing(&self) -> anyhow::Result<Store> {
        if !Store::is_there(&self.store) {
            let message = format!("no store at {}; check --store", self.store);
            return Err(::store::Error::Open {
                message,
                source: None,
            }
            .into());
        }
        self.open().await
    }

    async fn open(&self) -> anyhow::Result<Store> {
        Ok(Store::open(&self.store).await?)
    }
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Check(flags) => check(&flags.target()?).await,
        Command::Stats(flags) => stats(&flags.target()?).await,
        Command::Export { flags, output } => export(&flags.target()?, output).await,
        Command::Import { flags, input } => import(&flags.target()?, input).await,
    }
}

async fn check(target: &Target) -> anyhow::Result<()> {
    let store = target.open_existing().await?;
    let totals = store.check().await?;
    report(target, "checked", &totals, store.incarnation());
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let mut problems = 0;
    for (ty, check) in jobs.check_all().await? {
        report_jobs(target, &ty, &check);
        problems += check.problems.len();
    }
    problems += check_seals(target, jobs.store()).await?;
    if problems > 0 {
        let problems = counted(problems as u64, "problem");
        bail!("{problems} found; if no node was running meanwhile, this is a bug");
    }
    Ok(())
}

/// Counts sealed values by key, and reports keys not marked as in use, which nodes may lack.
async fn check_seals(target: &Target, store: &Store) -> anyhow::Result<usize> {
    let known = keys_in_use(store).await?;
    let mut problems = 0;
    for (key, count) in count_seals(store).await? {
        let needed = known.used.contains(&key);
        problems += usize::from(!needed);
        let Sealed { documents, jobs } = count;
        output::line(&if target.json {
            let line = json!({
                "store": target.store, "key": key, "documents": documents, "jobs": jobs, "needed": needed,
            });
            line.to_string()
        } else {
            let problem = if needed {
                ""
            } else {
                ": it is not marked as in use"
            };
            format!(
                "{}: sealed with the key {key}: {} and {}{problem}",
                target.store,
                counted(documents, "document"),
                counted(jobs, "job")
            )
        });
    }
    Ok(problems)
}

fn report_jobs(target: &Target, ty: &JobType, check: &Check) {
    let Check { jobs, problems } = check;
    if target.json {
        let line = json!({
            "store": target.store,
            "job_type": ty.as_str(),
            "jobs": jobs,
            "problems": problems,
        });
        output::line(&line.to_string());
        return;
    }
    output::line(&format!(
        "{}: checked {} of type {ty}",
        target.store,
        counted(*jobs, "job")
    ));
    for problem in problems {
        output::line(&format!("  {problem}"));
    }
}

async fn stats(target: &Target) -> anyhow::Result<()> {
    let store = target.open_existing().await?;
    let totals = store.check().await?;
    report(target, "holds", &totals, store.incarnation());
    if let Some(space) = store.space().await? {
        report_space(target, &space);
    }
    for node in store.nodes().await? {
        report_node(target, &node);
    }
    Ok(())
}

fn report_space(target: &Target, space: &Space) {
    let Space {
        map_bytes,
        file_bytes,
        used_bytes,
        readers,
    } = space;
    output::line(&if target.json {
        let line = json!({
            "store": target.store,
            "map_bytes": map_bytes,
            "file_bytes": file_bytes,
            "used_bytes": used_bytes,
            "readers": readers,
        });
        line.to_string()
    } else {
        format!(
            "{}: {used_bytes} bytes in use of a file of {file_bytes} and a map of {map_bytes}; the rest of the file is \
             free, or kept for a process that reads or is stopped ({readers} reader slots)",
            target.store
        )
    });
}

fn report_node(target: &Target, registered: &Registered) {
    let Registered {
        node,
        formats,
        seen_ms,
        ..
    } = registered;
    output::line(&if target.json {
        let line = json!({
            "store": target.store,
            "node": node.name,
            "roles": node.roles,
            "version": node.version,
            "formats": [formats.oldest, formats.newest],
            "started_ms": node.started_ms,
            "seen_ms": seen_ms,
        });
        line.to_string()
    } else {
        let seen = Timestamp::from_millisecond(*seen_ms).unwrap_or_default();
        format!(
            "{}: node {} ({}), version {}, reads formats {} to {}, last seen at {seen:.0}",
            target.store, node.name, node.roles, node.version, formats.oldest, formats.newest
        )
    });
}

async fn export(target: &Target, path: Option<PathBuf>) -> anyhow::Result<()> {
    if path.is_none() && std::io::stdout().is_terminal() {
        bail!("refusing to write binary data to a terminal; use --output FILE or a pipe");
    }
    let store = target.open_existing().await?;
    let mut sink: Box<dyn AsyncWrite + Unpin> = match &path {
        Some(path) => {
            // An export contains password hashes, and everything else that the store does not seal.
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(path);
            let file = file.await;
            Box::new(file.with_context(|| format!("cannot create {}", path.display()))?)
        }
        None => Box::new(tokio::io::stdout()),
    };
    let exported = store.export(&mut BufWriter::new(&mut sink)).await;
    if let (Err(_), Some(path)) = (&exported, &path) {
        // A partial file would be in the way of the next export.
        drop(std::fs::remove_file(path));
    }
    let totals = exported?;
    // Standard output is the export.
    output::error(&sentence(
        &target.store,
        "exported",
        &totals,
        store.incarnation(),
    ));
    Ok(())
}

async fn import(target: &Target, path: Option<PathBuf>) -> anyhow::Result<()> {
    let source: Box<dyn AsyncRead + Unpin> = match &path {
        Some(path) => {
            let file = File::open(path).await;
            Box::new(file.with_context(|| format!("cannot open {}", path.display()))?)
        }
        None => Box::new(tokio::io::stdin()),
    };
    let totals = Store::import(&target.store, &mut BufReader::new(source)).await?;
    let store = target.open().await?;
    report(target, "imported", &totals, store.incarnation());
    Ok(())
}

fn report(target: &Target, done: &str, totals: &Totals, incarnation: u32) {
    if target.json {
        let line = json!({
            "store": target.store,
            "rows": totals.rows,
            "key_bytes": totals.key_bytes,
            "value_bytes": totals.value_bytes,
            "incarnation": incarnation,
        });
        output::line(&line.to_string());
    } else {
        output::line(&sentence(&target.store, done, totals, incarnation));
    }
}

fn sentence(url: &str, done: &str, totals: &Totals, incarnation: u32) -> String {
    format!(
        "{url}: {done} {} rows, {} bytes of keys, {} bytes of values; incarnation {incarnation}",
        totals.rows, totals.key_bytes, totals.value_bytes
    )
}
