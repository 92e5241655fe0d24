//! The `davenport` command: the operator's tools.

mod bench;
mod demo;
mod one;
mod output;
mod replicate;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line could not be understood, or what it names cannot be used.
const USAGE: u8 = 2;

/// Davenport runs CouchDB replications as a fleet.
#[derive(Debug, Parser)]
#[command(name = "davenport", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how fast it is here
    #[command(subcommand)]
    Bench(bench::Command),
    /// Two servers in memory and a live replication between them, to look at
    Demo(demo::Command),
    /// Run one replication here and now
    Replicate(Box<replicate::Command>),
    /// Look into, export or fill a store, without any node
    #[command(subcommand)]
    Store(store::Command),
}

/// Runs the command line and returns its exit code: 0 done, 1 failed, 2 nothing tried.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are a success.
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    init_logs();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    match runtime.block_on(run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Bench(command) => Box::pin(bench::run(command)).await,
        Command::Demo(command) => Box::pin(demo::run(command)).await,
        Command::Replicate(command) => replicate::run(*command).await,
        Command::Store(command) => store::run(command).await,
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    output::error(&format!("davenport: {error:#}"));
    match error.downcast_ref::<::store::Error>() {
        Some(::store::Error::Open { .. }) => ExitCode::from(USAGE),
        _ => ExitCode::FAILURE,
    }
}

/// Logs go to standard error, so that standard output can be piped.
fn init_logs() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("DAVENPORT_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}

/// Random bytes of the operating system.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::Rng::fill_bytes(&mut rand::rng(), &mut bytes);
    bytes
}

/// A random name of 32 hexadecimal digits.
fn random_hex() -> String {
    format!("{:032x}", u128::from_be_bytes(random()))
}
