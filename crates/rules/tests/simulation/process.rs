//! The tasks of a running node.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions};
use docstore::DocStore;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs, Maintenance};
use rand::RngExt;
use replication::engine::Budget;
use rules::deliver::{self, Deliveries, RuleTargets};
use rules::rule::{Listeners, Listening, RuleWatcher, Rules};
use rules::source::{Followers, RuleBook};
use scheduler::{Options, PasswordCell, Replications, Server, ServerSetup, ServiceError, Setup};
use store::FaultControl;
use testkit::actor_rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::fleet::{Phase, World};

/// How long a node may be silent before its replications are given to others.
const SILENCE: Duration = Duration::from_secs(20);

/// How long a node may take to stop, while the store is there.
const STOP_MAX: Duration = Duration::from_mins(2);

/// A running node.
pub(crate) struct Running {
    pub(crate) control: FaultControl,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    names: Names,
}

/// Of the tasks that have not ended.
type Names = Arc<Mutex<BTreeSet<&'static str>>>;

pub(crate) async fn service(jobs: Jobs) -> Result<Replications, ServiceError> {
    let kinds = ["_replicator", "_rules"].map(str::to_owned).to_vec();
    let options = docstore::Options {
        kinds,
        ..docstore::Options::default()
    };
    let docs = DocStore::new(jobs.store().clone(), options);
    let options = Options {
        park_after_sec: 1,
        interval_sec: 5,
        // Nodes are stopped at random, often enough to make any job a suspect.
        set_aside_after: 0,
        health_threshold_sec: 30,
        min_backoff_penalty_sec: 2,
        max_backoff_penalty_sec: 30,
        stats_update_interval_sec: 10,
        checkpoint_interval: 5_000,
        connection_timeout: 10_000,
        retries_per_request: 2,
        no_progress_timeout_sec: 60,
        ..Options::default()
    };
    let setup = Setup {
        options,
        job_timeout: Some(SILENCE),
        ..Setup::default()
    };
    Replications::open(jobs, docs, setup).await
}

impl Running {
    /// Starts a node for the nth time.
    pub(crate) fn start(world: &Arc<World>, node: usize, nth: u64, clock: Clock) -> Self {
        let mut rng = actor_rng(world.plan.seed, &[node as u64, nth]);
        let (faults, (delay, _)) = (world.plan.faults.clone(), world.plan.slowness());
        let faults = match world.phase() {
            Phase::Trouble => faults,
            // Slow, but reliable.
            Phase::Calm => store::Faults {
                delay,
                delay_max: faults.delay_max,
                ..store::Faults::default()
            },
        };
        let seed = rng.random();
        let (store, control) = world.store.with_faults(store::Faults { seed, ..faults });
        let jobs = Jobs::planted_with(store, clock, Entropy::seeded(rng.random()), world.planted);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let names = Names::default();
        let node = Node {
            world: Arc::clone(world),
            names: Arc::clone(&names),
            jobs,
            holder: Holder::new(&format!("node-{node}.{nth}")).unwrap(),
            network_seed: rng.random(),
        };
        tasks.spawn(node.live(stop.clone()));
        Self {
            control,
            tasks,
            stop,
            names,
        }
    }

    /// Ends it at once. Requests already sent are still delivered.
    pub(crate) async fn crash(mut self) {
        self.tasks.shutdown().await;
    }

    /// Stops it in order. If it still waits for the store, ends the outage: no act does while a node stops.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        self.stop.cancel();
        if let Ok(ended) = tokio::time::timeout(STOP_MAX, self.ended()).await {
            return ended;
        }
        self.control.set_outage(false);
        let ended = tokio::time::timeout(STOP_MAX, self.ended()).await;
        ended.unwrap_or_else(|_| {
            let names = self.names.lock().unwrap();
            Err(format!(
                "a node did not stop in time; still running: {names:?}"
            ))
        })
    }

    async fn ended(&mut self) -> Result<(), String> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(|error| format!("a node broke down: {error}"))?;
        }
        Ok(())
    }
}

/// The parts of a node before it starts.
struct Node {
    world: Arc<World>,
    names: Names,
    jobs: Jobs,
    holder: Holder,
    network_seed: [u8; 32],
}

/// Tasks that stop together.
struct Tasks {
    stop: CancellationToken,
    set: JoinSet<()>,
    names: Names,
}

impl Tasks {
    fn new(stop: CancellationToken, names: &Names) -> Self {
        Self {
            stop,
            set: JoinSet::new(),
            names: Arc::clone(names),
        }
    }

    fn start<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &'static str,
        task: impl FnOnce(CancellationToken) -> F,
    ) {
        let (task, names) = (task(self.stop.clone()), Arc::clone(&self.names));
        names.lock().unwrap().insert(name);
        self.set.spawn(async move {
            task.await;
            names.lock().unwrap().remove(name);
        });
    }

    async fn ended(&mut self) {
        while let Some(ended) = self.set.join_next().await {
            ended.unwrap();
        }
    }
}

/// What it has opened.
struct Opened {
    replications: Replications,
    listeners: Listeners,
    deliveries: Deliveries,
}

impl Node {
    async fn live(self, stop: CancellationToken) {
        let Some(opened) = stop.run_until_cancelled(self.open()).await else {
            return;
        };
        let mut outer = Tasks::new(stop.clone(), &self.names);
        let mut inner = Tasks::new(CancellationToken::new(), &self.names);
        self.start(opened, &mut outer, &mut inner);
        stop.cancelled().await;
        outer.ended().await;
        inner.stop.cancel();
        inner.ended().await;
    }

    fn start(self, opened: Opened, outer: &mut Tasks, inner: &mut Tasks) {
        let Opened {
            replications,
            listeners,
            deliveries,
        } = opened;
        let jobs = replications.jobs().clone();
        let network = NetworkOptions {
            egress: EgressOptions::open(),
            transport: self.world.servers.transport(),
            ..NetworkOptions::default()
        };
        let network = Network::new(network, self.network_seed).unwrap();
        let source = self
            .world
            .plan
            .source_options(&self.world.servers.source.url());
        let source = source.source("peer", |_| None).unwrap();
        let holder = self.holder;

        let feeds = jobs::JobType::new(rules::source::FEEDS).unwrap();
        let maintenance = Maintenance::new(jobs.clone(), jobs::Options::default())
            .serve(replications.job_type().clone())
            .serve(feeds)
            .serve(listeners.job_type().clone())
            .serve(deliveries.job_type().clone());
        inner.start("maintenance", |stop| maintenance.run(stop));

        let ty = replications.job_type().clone();
        let (acceptor, handle) = Acceptor::new(jobs.clone(), ty, holder.clone());
        let setup = ServerSetup {
            node: holder.clone(),
            network: network.clone(),
            budget: Budget::default(),
        };
        let (server, _) = Server::new(replications.clone(), handle, setup);
        outer.start("server", |stop| server.run(stop));
        inner.start("acceptor", |stop| acceptor.run(stop));

        let (watcher, compiled) = RuleWatcher::new(Rules::new(replications.clone()));
        inner.start("watcher", |stop| watcher.run(stop));

        let ty = deliveries.job_type().clone();
        let (acceptor, handle) = Acceptor::new(jobs, ty, holder.clone());
        let setup = deliver::ServerSetup {
            network: network.clone(),
            options: deliver::Options::default(),
            targets: Arc::new(RuleTargets {
                rules: Rules::new(replications.clone()),
                compiled: compiled.clone(),
                events: deliver::Options::default().events,
            }),
            passwords: PasswordCell::default(),
            secrets: scheduler::Secrets::new(),
        };
        let caller = deliver::Server::new(deliveries, handle, setup).unwrap();
        let sender = caller.calls();
        outer.start("caller", |stop| caller.run(stop));
        inner.start("caller acceptor", |stop| acceptor.run(stop));

        let listening = Listening {
            listeners: listeners.clone(),
            rules: compiled.clone(),
            sources: watch::channel(Arc::from([source.clone()])).1,
            network: network.clone(),
            sender,
        };
        outer.start("listening", |stop| listening.run(holder.clone(), 4, stop));
        let book = RuleBook::new(replications, compiled, listeners);
        let followers = Followers::new(book, network, holder, vec![source]);
        outer.start("followers", |stop| followers.run(stop));
    }

    /// Retries until the store responds.
    async fn open(&self) -> Opened {
        loop {
            match self.try_open().await {
                Ok(opened) => return opened,
                Err(_) => sleep(Duration::from_secs(1)).await,
            }
        }
    }

    async fn try_open(&self) -> Result<Opened, ServiceError> {
        let replications = service(self.jobs.clone()).await?;
        Followers::register(&self.jobs).await?;
        let deliveries = Deliveries::new(self.jobs.clone());
        deliveries.register(&deliver::Options::default()).await?;
        Ok(Opened {
            listeners: Listeners::open(Rules::new(replications.clone())).await?,
            replications,
            deliveries,
        })
    }
}
