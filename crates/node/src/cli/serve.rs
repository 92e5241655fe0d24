//! `davenport serve`, and the programs with one role: from flags to a graceful shutdown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use host::{Hangups, Stops};
use seal::keys_in_use;
use tokio::time::{MissedTickBehavior, interval};
use zeroize::Zeroizing;

use super::nodes::setting;
use super::{NotStarted, keys, output};
use crate::config::{Admins, Config, Loaded, Role, Sources};
use crate::logs::Logs;
use crate::metrics::Collected;
use crate::running::{Node, key_file, network, node_name, open_keys, open_store};
use crate::systemd::Systemd;
use crate::tls::Certificate;
use crate::{admins, argv};

const ADMIN_VARIABLE: &str = "DAVENPORT_ADMIN";
/// Sections and options that take effect without a restart.
const LIVE: [&str; 3] = ["replicator.", "admins.", "log.level"];
const CERTIFICATE: [&str; 2] = ["http.cert_file", "http.key_file"];

/// `davenport serve`
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    flags: Flags,
    /// Roles of the node; both by default
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROLE,ROLE")]
    roles: Option<Vec<Role>>,
}

/// The flags of every node.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Configuration file (TOML); `davenport config` prints one with every option
    #[arg(
        long,
        value_name = "FILE",
        env = "DAVENPORT_CONFIG",
        overrides_with = "config"
    )]
    config: Option<PathBuf>,
    #[arg(
        long,
        value_name = "URL",
        overrides_with = "store",
        help = "Store: lmdb:DIRECTORY, fdb:CLUSTER_FILE or memory: [default: lmdb:./data]"
    )]
    store: Option<String>,
    /// Listen address or host name; port 0 picks a free port [default: 127.0.0.1:5985 if the node is a frontend]
    #[arg(long, value_name = "ADDRESS:PORT", overrides_with = "listen")]
    listen: Option<String>,
    /// Add an administrator, with a password or the output of `davenport hash-password`
    #[arg(
        long,
        value_name = "NAME:PASSWORD",
        env = "DAVENPORT_ADMIN",
        hide_env_values = true
    )]
    admin: Vec<String>,
    /// Read administrators from a file, one NAME:PASSWORD per line; only its owner may have access to it
    #[arg(long, value_name = "FILE")]
    admin_file: Option<PathBuf>,
    /// Set any configuration option
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Check the configuration, including the keys of its store, and exit
    #[arg(long)]
    check_config: bool,
}

/// The node has no administrators.
#[derive(Debug, thiserror::Error)]
#[error(
    "no administrator is configured. Start the node with --admin-file FILE, \
     which has lines NAME:PASSWORD, with --admin NAME:PASSWORD, or put a line into the section [admins] of the configuration file: NAME = \"what davenport hash-password prints\""
)]
pub(crate) struct NoAdministrator;

impl Flags {
    /// The sources of the configuration. Administrators are removed from the flags.
    fn sources(&mut self, roles: Option<Vec<Role>>) -> anyhow::Result<Sources> {
        let mut flags = Vec::new();
        if let Some(url) = &self.store {
            flags.push(("--store", "store.url".to_owned(), url.clone()));
        }
        if let Some(address) = &self.listen {
            flags.push(("--listen", "http.listen".to_owned(), address.clone()));
        }
        let mut admins = Admins::default();
        for admin in self.admin.drain(..).map(Zeroizing::new) {
            let Some((name, password)) = admin.split_once(':') else {
                bail!(anyhow!("--admin: write NAME:PASSWORD").context(NotStarted));
            };
            admins.0.insert(name.to_owned(), password.to_owned());
        }
        for set in &self.set {
            flags.push(setting(set).context(NotStarted)?);
        }
        let mut environment = environment();
        // Already in the flags.
        drop(environment.remove(ADMIN_VARIABLE).map(Zeroizing::new));
        Ok(Sources {
            file: self.config.clone(),
            environment,
            flags,
            roles,
            admin_file: self.admin_file.clone(),
            admins,
        })
    }
}

/// Hides passwords from `ps` after they were read.
fn hide() -> std::io::Result<()> {
    argv::hide_arguments()?;
    argv::hide_variables(|name| {
        name == ADMIN_VARIABLE.as_bytes() || name.starts_with(b"DAVENPORT_ADMINS_")
    })
}

/// Only this function reads the environment.
pub(super) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    run_as(command.flags, command.roles).await
}

pub(crate) async fn run_as(mut flags: Flags, roles: Option<Vec<Role>>) -> anyhow::Result<ExitCode> {
    let mut sources = flags.sources(roles)?;
    let hidden = hide();
    let mut loaded = sources.load()?;
    check(&loaded.config).context(NotStarted)?;
    if flags.check_config {
        let looked = keys::look(&loaded.config, sources.file.as_deref());
        looked.await.context(NotStarted)?;
        return Ok(say_usable(&loaded.config));
    }
    let logs = Logs::init(&loaded.config.log, &node_name(&loaded.config));
    let logs = logs.map_err(|what| anyhow!(what))?;
    if let Err(error) = hidden.as_ref()
        && !sources.admins.0.is_empty()
    {
        tracing::warn!(%error, "the command line still shows a password; use --admin-file");
    }
    warn_of_exposed(&sources, &loaded);
    let node = start(&mut sources, &mut loaded);
    let node = Box::pin(node).await.context(NotStarted)?;
    Running {
        systemd: Systemd::new(|name| std::env::var(name).ok(), std::process::id()),
        sources,
        loaded,
        logs,
    }
    .until_stopped(node)
    .await
}

fn warn_of_exposed(sources: &Sources, loaded: &Loaded) {
    if let Some(file) = &sources.file
        && !loaded.exposed.is_empty()
    {
        let (file, options) = (file.display(), loaded.exposed.join(" "));
        tracing::warn!(%file, options, "other users can read secrets in the configuration file; run: chmod o= FILE");
    }
}

async fn start(sources: &mut Sources, loaded: &mut Loaded) -> anyhow::Result<Node> {
    // The store first: a node that cannot open it must not create a key file for it.
    let (config, file) = (&loaded.config, sources.file.as_deref());
    let store = open_store(config).await?;
    if let Some(path) = key_file(config, file).filter(|path| !path.exists()) {
        let needed = keys_in_use(&store).await?.used;
        if !needed.is_empty() {
            bail!(keys::lost(&needed.join(", "), &path));
        }
    }
    let keys = open_keys(config, file)?;
    seal(sources, loaded, admins::secret(&keys)?).await?;
    Box::pin(Node::start(
        &loaded.config,
        store,
        &keys,
        &Collected::begin()?,
    ))
    .await
}

/// Replaces administrators' passwords by hashes. The passwords are not needed after this.
async fn seal(sources: &mut Sources, loaded: &mut Loaded, secret: [u8; 32]) -> anyhow::Result<()> {
    let hashes = admins::hash_all(&loaded.config.admins, secret).await?;
    let hashes = hashes
        .into_iter()
        .map(|(name, hash)| (name, hash.to_config()))
        .collect();
    loaded.seal_admins(&hashes);
    sources.seal_admins(&hashes);
    Ok(())
}

/// Checks that need no open store.
fn check(config: &Config) -> anyhow::Result<()> {
    if config.node_types.api_frontend {
        // With a cluster, administrators are the cluster's.
        if config.admins.0.is_empty() && config.upstream.url.is_empty() {
            return Err(NoAdministrator.into());
        }
        Certificate::read(&config.http)?;
    }
    if config.node_types.replication {
        couch::Network::new(network(config)?, [0; 32])?;
    }
    if let Some(file) = &config.rules.passwords_file {
        scheduler::Passwords::load(file)?;
    }
    Ok(())
}

fn say_usable(config: &Config) -> ExitCode {
    for name in admins::plain(&config.admins) {
        output::error(&format!(
            "davenport: the password of the administrator {name} is plain text: replace it \
             with the output of `davenport hash-password`"
        ));
    }
    output::line("the configuration is valid");
    ExitCode::SUCCESS
}

/// A node with its configuration.
struct Running {
    systemd: Systemd,
    sources: Sources,
    loaded: Loaded,
    logs: Logs,
}

enum Event {
    Stop(&'static str),
    Reload,
    Failed(anyhow::Error),
    Alive,
}

impl Running {
    async fn until_stopped(mut self, mut node: Node) -> anyhow::Result<ExitCode> {
        let (mut stops, mut hangups) = (Stops::new()?, Hangups::new()?);
        self.announce(&node);
        let mut pulse = interval(self.systemd.watchdog().unwrap_or(Duration::from_hours(1)) / 2);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let failure = loop {
            let event = tokio::select! {
                biased;
                signal = stops.next() => Event::Stop(signal),
                () = hangups.next() => Event::Reload,
                error = node.failed() => Event::Failed(error),
                _ = pulse.tick() => Event::Alive,
            };
            match event {
                Event::Stop(signal) => {
                    tracing::info!(signal, "stopping");
                    break None;
                }
                Event::Failed(error) => {
                    tracing::error!(error = format!("{error:#}"), "stopping");
                    break Some(error);
                }
                Event::Reload => self.reload(&node).await,
                Event::Alive => self.systemd.tell("WATCHDOG=1"),
            }
        };
        self.systemd.tell("STOPPING=1");
        let stopped = tokio::select! {
            stopped = node.stop() => stopped,
            _ = stops.next() => {
                tracing::warn!("stopped immediately; jobs run elsewhere after their heartbeats time out");
                false
            }
        };
        self.logs.finish().await;
        match failure {
            Some(error) => Err(error),
            None if stopped => Ok(ExitCode::SUCCESS),
            None => Ok(ExitCode::FAILURE),
        }
    }

    /// Prints the node's addresses, in lines that programs parse.
    fn announce(&self, node: &Node) {
        let config = &self.loaded.config;
        if let Some(address) = node.address() {
            let is_tls = config.node_types.api_frontend && config.http.cert_file.is_some();
            let scheme = if is_tls { "https" } else { "http" };
            output::line(&format!("davenport listens on {scheme}://{address}"));
        }
        output::line("davenport is ready");
        let types = config.node_types;
        tracing::info!(
            node = node_name(config),
            store = config.store.url,
            api_frontend = types.api_frontend,
            replication = types.replication,
            "ready"
        );
        self.systemd.tell("READY=1");
    }

    /// Reads the configuration again. An invalid one changes nothing.
    async fn reload(&mut self, node: &Node) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_us = now.tv_sec.saturating_mul(1_000_000) + now.tv_nsec / 1000;
        self.systemd
            .tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
        match self.take_over(node).await {
            Ok(changed) => tracing::info!(changed = changed.join(" "), "configuration reloaded"),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "configuration not reloaded");
            }
        }
        self.systemd.tell("READY=1");
    }

    async fn take_over(&mut self, node: &Node) -> anyhow::Result<Vec<String>> {
        let mut loaded = self.sources.load()?;
        check(&loaded.config)?;
        warn_of_exposed(&self.sources, &loaded);
        seal(&mut self.sources, &mut loaded, node.admin_secret()).await?;
        node.apply(&loaded.config).await?;
        self.logs
            .set(&loaded.config.log)
            .map_err(|what| anyhow!(what))?;
        let changed = self.loaded.changed(&loaded);
        let is_tls = [&self.loaded, &loaded].map(|loaded| loaded.config.http.cert_file.is_some());
        let live = |key: &&String| {
            // To turn TLS on or off takes a restart.
            LIVE.iter().any(|live| key.starts_with(live))
                || is_tls == [true; 2] && CERTIFICATE.contains(&key.as_str())
        };
        for key in changed.iter().filter(|key| !live(key)) {
            tracing::warn!(key, "a changed option takes effect after a restart");
        }
        self.loaded = loaded;
        Ok(changed)
    }
}
