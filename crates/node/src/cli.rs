//! The `davenport` command, and the programs with one role.
//!
//! Exit codes: 0 is success or a graceful shutdown; 1 is a failure; 2 means that nothing was started, because the command
//! line, the configuration, or something they name cannot be used.

mod deliveries;
mod demo;
mod import;
mod jobs;
mod keys;
mod nodes;
mod one;
mod output;
mod password;
mod remotes;
mod replicate;
mod rules;
mod schedules;
mod serve;
mod service;
mod sources;
mod store;
mod verify;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use futures::future::BoxFuture;
use scheduler::Replications;

use crate::config::{Config, DurabilityOption, LogOptions, Refused, Role, reference};
use crate::keys::Exposed;
use crate::logs::Logs;
use crate::running::{network, open_keys, open_store, replications};
use crate::{argv, random};

/// The exit code for an unusable command line or configuration.
const USAGE: u8 = 2;
/// How long leftover background work may delay the exit.
const END_MAX: Duration = Duration::from_secs(1);

/// A job queue service and CouchDB's replicator, on one host or a fleet
#[derive(Debug, Parser)]
#[command(name = "davenport", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a node: a frontend, a replication node, or both
    Serve(Box<serve::Command>),
    /// Run a single replication without a service
    Replicate(Box<replicate::Command>),
    /// Compare two databases: leaves, attachments and _security
    Verify(Box<verify::Command>),
    /// Start a demo service with two in-memory servers, a live replication, and jobs for a worker in Python
    Demo(demo::Command),
    /// List, show, restart or cancel jobs of a service
    Jobs(jobs::Command),
    /// List, make, run or remove schedules of a service
    Schedules(schedules::Command),
    /// List remotes of a service, or start their replications
    Remotes(remotes::Command),
    /// List, show, try, pause or resume rules of a service
    Rules(rules::Command),
    /// List, show, replay or remove calls of webhooks of a service
    Deliveries(deliveries::Command),
    /// List the servers that a service follows
    Sources(sources::Command),
    /// Import replications or options from CouchDB, or rules from Spiegel
    #[command(subcommand)]
    Import(import::Command),
    /// List the keys that seal credentials, or reseal with a new key
    #[command(subcommand)]
    Keys(keys::Command),
    /// Check, inspect, export or import a store, without a node
    #[command(subcommand)]
    Store(store::Command),
    /// Run benchmarks on this machine
    #[command(subcommand)]
    Bench(bench::Command),
    /// Print a configuration file with every option and its default
    Config,
    /// Hash a password, read from standard input, for the [admins] section
    HashPassword,
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// A node with one role, as its own program.
#[derive(Debug, Parser)]
#[command(version)]
struct OneRole {
    #[command(flatten)]
    flags: serve::Flags,
}

/// An error before anything was started.
#[derive(Debug)]
struct NotStarted;

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the node was not started")
    }
}

/// A command line or configuration that cannot be used.
#[derive(Debug)]
struct Unusable;

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was done")
    }
}

fn unusable(why: &str) -> anyhow::Error {
    anyhow::anyhow!("{why}").context(Unusable)
}

/// Runs the command line and returns its exit code.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => block_on(run(cli.command)),
        Err(error) => explain(&error),
    }
}

/// Runs a node with one role, and returns its exit code.
pub fn main_of(role: Role) -> ExitCode {
    let (name, about) = match role {
        Role::ApiFrontend => (
            "davenport-api-frontend",
            "Serve HTTP requests and create jobs from replication documents",
        ),
        Role::Replication => ("davenport-replication", "Run replications"),
    };
    let command = OneRole::command().name(name).about(about);
    let parsed = command
        .try_get_matches()
        .and_then(|matches| OneRole::from_arg_matches(&matches));
    match parsed {
        Ok(node) => block_on(serve::run_as(node.flags, Some(vec![role]))),
        Err(error) => explain(&error),
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    // If this fails, `serve` logs it; the other commands are short-lived.
    let _ = argv::hide_arguments();
    match command {
        Command::Serve(command) => return serve::run(*command).await,
        Command::Config => output::text(&reference::file()),
        Command::HashPassword => password::run()?,
        Command::Completions { shell } => {
            let mut command = Cli::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "davenport", &mut script);
            output::text(&String::from_utf8_lossy(&script));
        }
        Command::Bench(command) => {
            log_warnings()?;
            Box::pin(bench::run(command, open_for_bench)).await?;
        }
        Command::Demo(command) => {
            log_warnings()?;
            Box::pin(demo::run(command)).await?;
        }
        Command::Import(command) => {
            log_warnings()?;
            Box::pin(import::run(command)).await?;
        }
        Command::Jobs(command) => jobs::run(command).await?,
        Command::Schedules(command) => schedules::run(command).await?,
        Command::Remotes(command) => remotes::run(command).await?,
        Command::Rules(command) => rules::run(command).await?,
        Command::Deliveries(command) => deliveries::run(command).await?,
        Command::Sources(command) => sources::run(command).await?,
        Command::Keys(command) => {
            log_warnings()?;
            keys::run(command).await?;
        }
        Command::Replicate(command) => {
            log_warnings()?;
            replicate::run(*command).await?;
        }
        Command::Verify(command) => {
            log_warnings()?;
            return Box::pin(verify::run(*command)).await;
        }
        Command::Store(command) => {
            log_warnings()?;
            store::run(command).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let done = runtime.block_on(Box::pin(work));
    runtime.shutdown_timeout(END_MAX);
    // All stores are closed by now.
    ::store::shutdown();
    done.unwrap_or_else(|error| fail(&error))
}

/// Help and version go to standard output, with exit code 0.
fn explain(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { USAGE } else { 0 };
    let _ = error.print();
    ExitCode::from(code)
}

fn fail(error: &anyhow::Error) -> ExitCode {
    output::error(&format!("davenport: {error:#}"));
    let store = error.downcast_ref::<::store::Error>();
    let nothing_begun = error.is::<Refused>()
        || error.is::<NotStarted>()
        || error.is::<Unusable>()
        || error.is::<Exposed>()
        || matches!(store, Some(::store::Error::Open { .. }));
    if nothing_begun {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// Tools log little unless `DAVENPORT_LOG` says otherwise.
fn log_warnings() -> anyhow::Result<()> {
    let level = std::env::var("DAVENPORT_LOG").unwrap_or_else(|_| "warn".to_owned());
    let options = LogOptions {
        level,
        ..LogOptions::default()
    };
    Logs::init(&options, "").map_err(|what| anyhow::anyhow!("DAVENPORT_LOG: {what}"))?;
    Ok(())
}

/// Opens the service on a store with the default settings of a node, to fill the store for a benchmark.
fn open_for_bench(
    url: String,
    keys: Option<PathBuf>,
) -> BoxFuture<'static, anyhow::Result<Replications>> {
    Box::pin(async move {
        let mut config = Config::default();
        config.store.url = url;
        // The data of a benchmark need not survive a power failure.
        config.store.durability = DurabilityOption::Relaxed;
        let store = open_store(&config).await?;
        config.keys.file = keys;
        let keys = open_keys(&config, None)?;
        replications(&config, &keys, store, &network(&config)?).await
    })
}

fn random_hex() -> String {
    format!("{:032x}", u128::from_be_bytes(random()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        OneRole::command().debug_assert();
    }
}
