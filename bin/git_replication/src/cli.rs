//! The command `davenport-git`.
//!
//! Exit codes: 0 is success or an orderly stop; 1 is a failure, which another try may mend; 2 means that nothing was
//! started, because the command line or the configuration cannot be used.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, Contents, Refused, Target};
use crate::event::{self, Event};
use crate::mirrors::{Mirrors, When};
use crate::project::Project;
use crate::refs::Refs;
use crate::{serve, show, start};

const USAGE: u8 = 2;
/// How long leftover background work may delay the exit.
const END_MAX: Duration = Duration::from_secs(1);

/// Push git repositories to remotes, from any number of nodes
#[derive(Debug, Parser)]
#[command(name = "davenport-git", version, arg_required_else_help = true)]
struct Cli {
    /// Level of logs, as in info or debug
    #[arg(
        long,
        global = true,
        env = "DAVENPORT_LOG_LEVEL",
        default_value = "info",
        value_name = "LEVEL"
    )]
    log_level: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a node, which pushes what is due
    Serve(Box<serve::Command>),
    /// Have refs of a project pushed, for example from its post-receive hook
    Notify(Notify),
    /// Have refs pushed as events on standard input tell, a JSON object a line: ssh HOST gerrit stream-events | davenport-git events …
    Events(Shared),
    /// Have all refs of projects pushed
    Start(start::Command),
    /// List what is running, waiting, or has failed
    Queue(Queue),
}

/// What all nodes share.
#[derive(Debug, Args)]
pub(crate) struct Shared {
    /// Store of the queue: lmdb:DIRECTORY, or `fdb:CLUSTER_FILE` for several hosts
    #[arg(long, env = "DAVENPORT_STORE_URL", value_name = "URL")]
    pub(crate) store: String,
    /// Gerrit's replication.config
    #[arg(long, env = "DAVENPORT_GIT_CONFIG", value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
struct Notify {
    #[command(flatten)]
    shared: Shared,
    /// Name of the project, with or without .git
    project: String,
    /// Refs that have changed, by their whole names; without any, all
    #[arg(value_name = "REF")]
    refs: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Queue {
    /// Store of the queue
    #[arg(long, env = "DAVENPORT_STORE_URL", value_name = "URL")]
    store: String,
    /// List idle mirrors, too
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if let Some(code) = child::guard() {
        return code;
    }
    let cli = Cli::parse();
    let level = &cli.log_level;
    let Ok(filter) = EnvFilter::try_new(level) else {
        eprintln!("davenport-git: --log-level is {level:?}; give a level like info or debug");
        return ExitCode::from(USAGE);
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ended = runtime.context("cannot start").and_then(|runtime| {
        let ended = runtime.block_on(run(cli.command));
        runtime.shutdown_timeout(END_MAX);
        ended
    });
    store::shutdown();
    ended.unwrap_or_else(|error| {
        eprintln!("davenport-git: {error:#}");
        ExitCode::from(if error.is::<Refused>() { USAGE } else { 1 })
    })
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(command) => Box::pin(command.run()).await?,
        Command::Notify(Notify {
            shared,
            project,
            refs,
        }) => {
            let project = usable(Project::new(&project))?;
            // Git's names are bytes. One that is no text cannot be stored, but goes with all.
            let refs = refs.into_iter().map(|name| name.into_string().ok());
            let refs = match refs.collect::<Option<Vec<_>>>() {
                Some(refs) if !refs.is_empty() => usable(event::named(refs))?,
                _ => Refs::all(),
            };
            let (mirrors, config) = shared.open().await?;
            let targets = targets(&config, &project);
            let notified = mirrors.notify(&targets, &refs, When::Delayed).await;
            notified.context("cannot write to the store")?;
        }
        Command::Events(shared) => events(&shared).await?,
        Command::Start(command) => return command.run().await,
        Command::Queue(queue) => queue.run().await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn usable<T>(checked: Result<T, String>) -> Result<T, Refused> {
    checked.map_err(Refused::argument)
}

impl Shared {
    /// The configuration, and its files as they were before: if they change meanwhile, that is noticed later.
    pub(crate) fn config(&self) -> anyhow::Result<(Contents, Config)> {
        // Not a refusal: another try may find it mounted.
        let there = std::fs::metadata(&self.config);
        there.with_context(|| format!("cannot read {}; check --config", self.config.display()))?;
        let read = crate::config::contents(&self.config);
        Ok((read, Config::read(&self.config)?))
    }

    pub(crate) async fn open(&self) -> anyhow::Result<(Mirrors, Config)> {
        let (_, config) = self.config()?;
        Ok((self.mirrors().await?, config))
    }

    async fn mirrors(&self) -> anyhow::Result<Mirrors> {
        let mirrors = Mirrors::open_existing(&self.store).await?;
        mirrors.register(None).await?;
        Ok(mirrors)
    }
}

fn targets<'a>(config: &'a Config, project: &'a Project) -> Vec<Target<'a>> {
    let targets: Vec<Target> = config.targets(project).collect();
    if targets.is_empty() {
        let project = project.as_str();
        tracing::info!(project, "no remote has this project");
    }
    targets
}

/// Reads events until the end. What is not an event about refs is skipped.
async fn events(shared: &Shared) -> anyhow::Result<()> {
    let (mut read, mut config) = shared.config()?;
    let mirrors = shared.mirrors().await?;
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    loop {
        let line = lines.next_segment().await;
        let Some(line) = line.context("cannot read standard input")? else {
            return Ok(());
        };
        // Whatever `autoReload` says: otherwise a new remote would get no events until this command is restarted.
        reload(&shared.config, &mut read, &mut config);
        match event::parse(&line) {
            // The event comes only once.
            Ok(Some(Event { project, refs })) => {
                let targets = targets(&config, &project);
                mirrors.notify_in_the_end(&targets, &refs).await;
            }
            Ok(None) => {}
            Err(reason) => tracing::warn!(reason, "skipped an event"),
        }
    }
}

/// Reads a configuration again that has changed, and keeps the old one if the new one cannot be used. False if nothing
/// has changed.
pub(crate) fn reload(path: &Path, read: &mut Contents, config: &mut Config) -> bool {
    let contents = crate::config::contents(path);
    if contents == *read {
        return false;
    }
    *read = contents;
    match Config::read(path) {
        Ok(new) => {
            *config = new;
            tracing::info!("the configuration was read again");
            true
        }
        Err(error) => {
            tracing::error!(%error, "invalid configuration; keeping the current one");
            false
        }
    }
}

impl Queue {
    async fn run(self) -> anyhow::Result<()> {
        let mirrors = Mirrors::open_existing(&self.store).await?;
        let rows = show::rows(&mirrors, self.all).await;
        let rows = rows.context("cannot read the store")?;
        let text = if self.json {
            serde_json::to_string_pretty(&serde_json::json!({"queue": rows}))?
        } else {
            show::table(&rows, mirrors.jobs.clock().now_ms())
        };
        text.lines().for_each(println);
        Ok(())
    }
}

pub(crate) fn println(text: &str) {
    // The reader may have closed its end.
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::CommandFactory as _;

    use super::*;

    /// The systemd unit passes no options, so a node can be set up by variables only.
    #[test]
    fn options_of_serve_have_variables() {
        let cli = Cli::command();
        let page = include_str!("../../../docs/git.md");
        for option in cli.find_subcommand("serve").unwrap().get_arguments() {
            let name = option.get_id().as_str().to_uppercase();
            let variable = option.get_env().and_then(OsStr::to_str);
            let expected = match &*name {
                "STORE" => "DAVENPORT_STORE_URL".to_owned(),
                name => format!("DAVENPORT_GIT_{name}"),
            };
            assert_eq!(variable, Some(&*expected));
            assert!(page.contains(&expected), "docs/git.md lacks {expected}");
        }
    }
}
