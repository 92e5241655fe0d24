//! The tasks of a running node.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use couch::{EgressOptions, Network, NetworkOptions};
use docstore::DocStore;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs, Maintenance, Notifier};
use rand::RngExt;
use seal::Sealer;
use store::{FaultControl, Store};
use testkit::actor_rng;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::clients;
use super::fleet::World;
use crate::server::{Server, ServerSetup};
use crate::service::{Replications, Setup};
use crate::testing::Process;
use replication::engine::Budget;

/// A running node.
pub(super) struct Running {
    pub(super) control: FaultControl,
    pub(super) store: Store,
    pub(super) process: Arc<Process>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Running {
    /// Starts a node for the nth time.
    pub(super) fn start(world: &Arc<World>, node: usize, nth: u64, clock: Clock) -> Self {
        let plan = &world.plan;
        let mut rng = actor_rng(plan.seed, &[node as u64, nth]);
        let faults = store::Faults {
            seed: rng.random(),
            ..plan.faults.clone()
        };
        let (store, control) = world.store.with_faults(faults);
        control.set_quiet(world.is_healing());
        let name = format!("node-{node}");
        let process = Process::new(format!("{name}.{nth}"), world.bug, &world.journal);
        let started = Node {
            world: Arc::clone(world),
            name,
            does: plan.nodes[node],
            jobs: Jobs::new(store.clone(), clock, Entropy::seeded(rng.random())),
            network_seed: rng.random(),
            clients_seed: rng.random(),
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&process).run(started.live(stop.clone())));
        Self {
            control,
            store,
            process,
            tasks,
            stop,
        }
    }

    /// Ends it at once. Requests already sent are still delivered.
    pub(super) async fn crash(mut self) {
        // Pauses tasks that others spawned, such as those of connections.
        self.process.pause(true);
        self.tasks.shutdown().await;
    }

    /// Stops it in order, even if the store is away, which no act ends meanwhile: its server abandons runs that cannot end
    /// in time, and each transaction has a deadline. So an outage need not be ended here, as the simulation of rules does.
    pub(super) async fn stop(mut self) -> Result<(), String> {
        self.stop.cancel();
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.map_err(|error| format!("a node broke down: {error}"))?;
            }
            Ok(())
        };
        let ended = tokio::time::timeout(Duration::from_mins(2), ended).await;
        ended.unwrap_or_else(|_| Err("a node did not stop within two minutes".to_owned()))
    }
}

/// The parts of a node before it starts.
struct Node {
    world: Arc<World>,
    name: String,
    does: super::plan::NodePlan,
    jobs: Jobs,
    network_seed: [u8; 32],
    clients_seed: u64,
}

impl Node {
    async fn live(self, stop: CancellationToken) {
        let Some(replications) = stop.run_until_cancelled(self.open()).await else {
            return;
        };
        // Tasks that others depend on end last.
        let inner = CancellationToken::new();
        let (mut outer_tasks, mut inner_tasks) = (Vec::new(), Vec::new());
        let maintenance = Maintenance::new(replications.jobs().clone(), jobs::Options::default())
            .serve(replications.job_type().clone());
        inner_tasks.push(spawn(maintenance.run(inner.clone())));
        let (jobs, ty) = (replications.jobs().clone(), replications.job_type().clone());
        if self.does.replicates {
            let holder = Holder::new(&self.name).unwrap();
            let (acceptor, handle) = Acceptor::new(jobs.clone(), ty.clone(), holder.clone());
            let network = NetworkOptions {
                egress: EgressOptions::open(),
                transport: self.world.servers.transport(),
                ..NetworkOptions::default()
            };
            let setup = ServerSetup {
                node: holder,
                network: Network::new(network, self.network_seed).unwrap(),
                budget: Budget::default(),
            };
            let (server, _load) = Server::new(replications.clone(), handle, setup);
            outer_tasks.push(spawn(server.run(stop.clone())));
            inner_tasks.push(spawn(acceptor.run(inner.clone())));
        }
        if self.does.clients > 0 {
            let (notifier, follow) = Notifier::new(jobs, ty, jobs::Options::default());
            inner_tasks.push(spawn(notifier.run(inner.clone())));
            for client in 0..self.does.clients {
                let rng = actor_rng(self.clients_seed, &[client as u64]);
                let client = Box::pin(clients::edit(
                    Arc::clone(&self.world),
                    replications.clone(),
                    follow.clone(),
                    rng,
                ));
                let stop = stop.clone();
                outer_tasks.push(spawn(async move {
                    stop.run_until_cancelled_owned(client).await;
                }));
            }
        }
        stop.cancelled().await;
        for task in outer_tasks {
            task.await.unwrap();
        }
        inner.cancel();
        for task in inner_tasks {
            task.await.unwrap();
        }
    }

    /// Retries until the store responds.
    async fn open(&self) -> Replications {
        loop {
            let docs = DocStore::new(self.jobs.store().clone(), docstore::Options::default());
            let setup = Setup {
                sealer: Sealer::new(vec![("k".to_owned(), [9; 32])]).unwrap(),
                options: self.world.plan.options.clone(),
                ..Setup::default()
            };
            match Replications::open(self.jobs.clone(), docs, setup).await {
                Ok(replications) => return replications,
                Err(_) => sleep(Duration::from_secs(1)).await,
            }
        }
    }
}

/// A task of the same process; ends when its handle is dropped.
fn spawn(
    task: impl Future<Output = ()> + Send + 'static,
) -> tokio_util::task::AbortOnDropHandle<()> {
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(crate::testing::spawned(task)))
}

/// The journal of all processes.
pub(super) type Journal = Arc<Mutex<crate::testing::Journal>>;
