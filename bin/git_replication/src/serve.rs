//! A node: pushes what is due, and takes events over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use host::{Hangups, Stops};
use jobs::{Holder, Maintenance, Options, Retry, Worker, WorkerOptions};
use listen::Secret;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::{Shared, println, reload};
use crate::config::{Config, Contents, Refused, Target};
use crate::http::{self, Http};
use crate::mirrors::{LOCK_TIMEOUT_SEC, Mirrors};
use crate::project;
use crate::refs::Refs;
use crate::runner::Runner;

/// How often the configuration is looked at for changes.
const RELOAD: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    shared: Shared,
    /// Directory of the repositories, which all nodes see
    #[arg(long, env = "DAVENPORT_GIT_REPOSITORIES", value_name = "DIR")]
    repositories: PathBuf,
    /// Address for events and the queue; others than loopback need --secret-file
    #[arg(
        long,
        env = "DAVENPORT_GIT_LISTEN",
        default_value = "127.0.0.1:5987",
        value_name = "ADDRESS:PORT"
    )]
    listen: SocketAddr,
    /// File with the secret that signs events
    #[arg(long, env = "DAVENPORT_GIT_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Name of this node; by default its host and process
    #[arg(long, env = "DAVENPORT_GIT_NODE", value_name = "NAME")]
    node: Option<String>,
    /// Maximum pushes of this node at a time
    #[arg(long, env = "DAVENPORT_GIT_PUSHES", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pushes: u16,
    /// Seconds that pushes may take to end when the node stops
    #[arg(
        long,
        env = "DAVENPORT_GIT_DRAIN_SEC",
        default_value_t = 30,
        value_name = "SECONDS"
    )]
    drain_sec: u64,
    /// Seconds without a heartbeat after which another node pushes; the same on all nodes
    #[arg(
        long,
        env = "DAVENPORT_GIT_LOCK_TIMEOUT_SEC",
        default_value_t = LOCK_TIMEOUT_SEC,
        value_parser = clap::value_parser!(u64).range(3..=3600),
        value_name = "SECONDS"
    )]
    lock_timeout_sec: u64,
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        // Otherwise, one that comes during the start kills the node.
        let hangups = Hangups::new().context("cannot wait for signals")?;
        let (read, config) = self.shared.config()?;
        let secret = self.secret()?;
        let own = || format!("{}:{}", host::name(), std::process::id());
        let holder = Holder::new(&self.node.clone().unwrap_or_else(own));
        let holder = holder.map_err(|error| Refused::argument(format!("--node: {error}")))?;
        let repositories = self.root()?;
        Self::warn_of_ignored(&config);
        // Before anyone can know that the node runs: a signal that comes earlier kills it.
        let mut stops = Stops::new().context("cannot wait for signals")?;
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener
            .with_context(|| format!("cannot listen on {}; check --listen", self.listen))?;
        let address = listener.local_addr().context("cannot listen")?;
        let mirrors = self.prepared(&config).await?;
        let (publish, config) = watch::channel(Arc::new(config));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (halt, drained) = (CancellationToken::new(), CancellationToken::new());
        let http = Http {
            metrics: metrics(&tasks, &stop)?,
            mirrors: mirrors.clone(),
            config: config.clone(),
            secret,
            bodies: http::bodies(),
        };
        let (limits, router, drain) = (http::limits(), http.router(), drained.clone());
        tasks.spawn(listen::serve(listener, None, limits, router, drain));
        let (jobs, ty) = (&mirrors.jobs, &mirrors.ty);
        let maintenance = Maintenance::new(jobs.clone(), Options::default());
        tasks.spawn(maintenance.serve(ty.clone()).run(stop.clone()));
        let worker = Worker::new(jobs.clone(), ty.clone(), holder, self.options());
        let follower = Follower {
            path: self.shared.config.clone(),
            read,
            mirrors: mirrors.clone(),
            publish,
            hangups,
        };
        tasks.spawn(stop.clone().run_until_cancelled_owned(follower.run()));
        if config.borrow().replicate_on_startup {
            let config = Arc::clone(&config.borrow());
            let all = Box::pin(push_all(repositories.clone(), mirrors.clone(), config));
            tasks.spawn(stop.clone().run_until_cancelled_owned(all));
        }
        let runner = Arc::new(Runner {
            mirrors,
            config,
            repositories,
            halt: halt.clone(),
        });
        let push = move |task| Arc::clone(&runner).run(task);
        let work = Box::pin(worker.run(stop.clone(), push));
        tasks.spawn(async move {
            work.await;
            drained.cancel();
        });
        // Where the port is 0, this is how to find it.
        println(&format!("davenport-git listens on http://{address}"));
        stops.next().await;
        tracing::info!("stopping; pushes may take {} s to end", self.drain_sec);
        stop.cancel();
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            _ = stops.next() => {
                halt.cancel();
                tasks.wait().await;
            }
        }
        Ok(())
    }

    async fn prepared(&self, config: &Config) -> anyhow::Result<Mirrors> {
        let mirrors = Mirrors::open(&self.shared.store).await?;
        let prepared = async {
            mirrors.register(Some(self.lock_timeout_sec)).await?;
            mirrors.limit(config).await
        };
        prepared.await.context("cannot write to the store")?;
        Ok(mirrors)
    }

    fn root(&self) -> anyhow::Result<PathBuf> {
        let repositories = self.repositories.canonicalize();
        let unreadable = || format!("cannot read {}", self.repositories.display());
        repositories.with_context(|| unreadable() + "; check --repositories")
    }

    fn warn_of_ignored(config: &Config) {
        if !config.ignored.is_empty() {
            let settings = Vec::from_iter(config.ignored.clone()).join(", ");
            tracing::warn!(settings, "these settings have no effect here");
        }
    }

    fn secret(&self) -> anyhow::Result<Option<Secret>> {
        let Some(file) = &self.secret_file else {
            let listen = self.listen;
            let reason = format!("{listen} would accept events from anyone; set --secret-file");
            ensure!(listen.ip().is_loopback(), Refused::argument(reason));
            return Ok(None);
        };
        let secret = std::fs::read_to_string(file);
        let secret = secret.with_context(|| format!("cannot read {}", file.display()))?;
        let refused = |error| format!("the secret in {} is {error}", file.display());
        let secret = Secret::new(secret).map_err(|error| Refused::argument(refused(error)))?;
        Ok(Some(secret))
    }

    fn options(&self) -> WorkerOptions {
        WorkerOptions {
            concurrency: self.pushes.into(),
            // For failures of this node; those of pushes have retries of their own.
            retry: Retry {
                retries_max: None,
                delay_max: Duration::from_mins(1),
                ..Retry::default()
            },
            drain: Duration::from_secs(self.drain_sec),
        }
    }
}

fn metrics(tasks: &TaskTracker, stop: &CancellationToken) -> anyhow::Result<PrometheusHandle> {
    let metrics = PrometheusBuilder::new().install_recorder();
    let metrics = metrics.context("cannot record metrics")?;
    let handle = metrics.clone();
    let upkeep = host::every(RELOAD, move || handle.run_upkeep());
    tasks.spawn(stop.clone().run_until_cancelled_owned(upkeep));
    Ok(metrics)
}

/// What follows the configuration: on SIGHUP, and with `autoReload` when it changes.
struct Follower {
    path: PathBuf,
    /// As it was before it was read, so that a later change is noticed.
    read: Contents,
    mirrors: Mirrors,
    publish: watch::Sender<Arc<Config>>,
    hangups: Hangups,
}

impl Follower {
    async fn run(mut self) {
        let mut is_limited = true;
        loop {
            let config = Config::clone(&self.publish.borrow());
            let looks = tokio::select! {
                () = sleep(RELOAD) => config.auto_reload,
                () = self.hangups.next() => {
                    self.read.clear();
                    true
                }
            };
            let (path, mut read, mut new) = (self.path.clone(), self.read.clone(), config.clone());
            // Its filesystem may hang.
            let reading = spawn_blocking(move || {
                let is_new = looks && reload(&path, &mut read, &mut new);
                (is_new, read, new)
            });
            let Ok((is_new, read, config)) = reading.await else {
                return;
            };
            self.read = read;
            if is_new {
                self.publish.send_replace(Arc::new(config.clone()));
                is_limited = false;
            }
            if !is_limited {
                let limited = self.mirrors.limit(&config).await;
                is_limited = limited.is_ok();
                if let Err(error) = limited {
                    tracing::error!(error = %store::chain(&error), "cannot save the thread limits of the remotes; trying again");
                }
            }
        }
    }
}

async fn push_all(repositories: PathBuf, mirrors: Mirrors, config: Arc<Config>) {
    let mut told = String::new();
    let projects = loop {
        let root = repositories.clone();
        let listed = spawn_blocking(move || project::all(&root)).await;
        let error = match listed.map_err(std::io::Error::from).flatten() {
            Ok(projects) => break projects,
            Err(error) => error.to_string(),
        };
        if told != error {
            tracing::error!(error, "cannot list the repositories; trying again");
            told = error;
        }
        sleep(RELOAD).await;
    };
    for project in &projects {
        let targets: Vec<Target> = config.targets(project).collect();
        mirrors.notify_in_the_end(&targets, &Refs::all()).await;
    }
}

#[cfg(test)]
mod tests {
    use store::FaultControl;

    use super::*;
    use crate::config::contents;
    use crate::config::tests::read;

    /// A store that can be out, the same store without that, and a configuration.
    async fn mirrors() -> (Mirrors, FaultControl, Mirrors) {
        let mirrors = Mirrors::open("memory:").await.unwrap();
        mirrors.register(None).await.unwrap();
        let (store, faults) = mirrors.jobs.store().with_faults(store::Faults::default());
        (Mirrors::new(store).unwrap(), faults, mirrors)
    }

    const TEXT: &str = "[gerrit]\nautoReload = true\n[remote \"a\"]\nurl = /m/${name}\n";

    #[tokio::test(start_paused = true)]
    async fn limits_that_cannot_be_saved_are_saved_later() {
        let (faulty, faults, mirrors) = mirrors().await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replication.config");
        std::fs::write(&path, TEXT).unwrap();
        let (publish, mut config) = watch::channel(Arc::new(read(TEXT).unwrap()));
        let follower = Follower {
            read: contents(&path),
            path: path.clone(),
            mirrors: faulty,
            publish,
            hangups: Hangups::new().unwrap(),
        };
        faults.set_outage(true);
        std::fs::write(&path, format!("{TEXT}threads = 7\n")).unwrap();
        let stop = CancellationToken::new();
        let following = tokio::spawn(stop.clone().run_until_cancelled_owned(follower.run()));
        config.changed().await.unwrap();
        sleep(RELOAD * 20).await;
        assert!(mirrors.jobs.limits(&mirrors.ty).await.unwrap().is_empty());
        faults.set_outage(false);
        let saved = async || mirrors.jobs.limits(&mirrors.ty).await.unwrap();
        while saved().await.is_empty() {
            sleep(RELOAD).await;
        }
        stop.cancel();
        following.await.unwrap();
    }

    /// A FIFO without a writer stands for a filesystem that hangs.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_configuration_that_cannot_be_read_holds_nothing_up() {
        let (mirrors, _, _) = mirrors().await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replication.config");
        std::fs::write(&path, TEXT).unwrap();
        let read = contents(&path);
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let config = crate::config::tests::read(TEXT).unwrap();
        let (publish, config) = watch::channel(Arc::new(config));
        let hangups = Hangups::new().unwrap();
        let follower = Follower {
            path: path.clone(),
            read,
            mirrors,
            publish,
            hangups,
        };
        let stop = CancellationToken::new();
        let following = tokio::spawn(stop.clone().run_until_cancelled_owned(follower.run()));
        let id = rustix::process::getpid();
        rustix::process::kill_process(id, rustix::process::Signal::HUP).unwrap();
        // Succeeds once the node has opened it for reading.
        let opened = spawn_blocking(move || {
            let writer = std::fs::File::options().write(true).open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            writer
        });
        let writer = opened.await.unwrap();
        stop.cancel();
        let ended = tokio::time::timeout(RELOAD * 6, following).await;
        drop(writer);
        ended.unwrap().unwrap();
        drop(config);
    }

    #[tokio::test(start_paused = true)]
    async fn startup_pushes_wait_for_the_store() {
        let (faulty, faults, mirrors) = mirrors().await;
        let root = tempfile::tempdir().unwrap();
        for name in ["a.git", "b.git"] {
            std::fs::create_dir_all(root.path().join(name).join("objects")).unwrap();
            std::fs::write(root.path().join(name).join("HEAD"), "").unwrap();
        }
        faults.set_outage(true);
        let config = Arc::new(read(TEXT).unwrap());
        let pushing = tokio::spawn(push_all(root.path().to_owned(), faulty, config));
        sleep(RELOAD * 20).await;
        faults.set_outage(false);
        pushing.await.unwrap();
        assert_eq!(mirrors.list(true).await.unwrap().len(), 2);
    }
}
