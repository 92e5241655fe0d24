//! The tasks of a running node.

use std::sync::Arc;

use store::FaultControl;
use testkit::actor_rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::node::{Gate, Hook, Node};
use super::{creators, followers, workers};
use crate::{Acceptor, Jobs, Maintenance, Notifier};

/// A running node.
pub(super) struct Process {
    pub(super) services: Jobs,
    pub(super) controls: Vec<FaultControl>,
    pub(super) tasks: JoinSet<()>,
    pub(super) stop: CancellationToken,
}

impl Process {
    pub(super) fn start(&mut self, node: &Node, gate: &Arc<Gate>, incarnation: u64) {
        let (plan, services) = (&node.world.plan, self.services.clone());
        let does = &plan.nodes[node.index];
        if does.maintains {
            let options = plan.options.clone();
            let mut service = Maintenance::new(services.clone(), options);
            for ty in &node.world.types {
                service = service.serve_with(ty.clone(), Hook(node.clone()));
            }
            self.spawn(gate, followers::watch_types(node.clone(), service.types()));
            self.tasks.spawn(service.run(self.stop.child_token()));
        }
        for ty in 0..plan.types.len() {
            let rng = |role: u64, n: usize| {
                let parts = [
                    node.index as u64,
                    incarnation,
                    2 + role,
                    ty as u64,
                    n as u64,
                ];
                actor_rng(plan.seed, &parts)
            };
            let name = node.ty(ty).clone();
            if does.workers > 0 {
                let holder = node.holder.clone();
                let (service, handle) = Acceptor::new(services.clone(), name.clone(), holder);
                self.serve(gate, service.run(self.stop.child_token()));
                for n in 0..does.workers {
                    let work = workers::work(node.clone(), ty, handle.clone(), rng(0, n));
                    self.spawn(gate, work);
                }
            }
            for n in 0..does.claimers {
                self.spawn(gate, workers::claim(node.clone(), ty, rng(1, n)));
            }
            if does.followers > 0 {
                let options = plan.options.clone();
                let (service, handle) = Notifier::new(services.clone(), name, options);
                self.serve(gate, service.run(self.stop.child_token()));
                for n in 0..does.followers {
                    let follow = followers::follow(node.clone(), ty, handle.clone(), rng(2, n));
                    self.spawn(gate, follow);
                }
            }
        }
        for n in 0..does.creators {
            let parts = [node.index as u64, incarnation, 9, n as u64];
            let rng = actor_rng(plan.seed, &parts);
            self.spawn(gate, creators::create(node.clone(), rng));
        }
        if does.creators > 0 {
            let rng = actor_rng(plan.seed, &[node.index as u64, incarnation, 10]);
            self.spawn(gate, creators::signal(node.clone(), rng));
        }
    }

    /// A task of an actor; ends with the process.
    fn spawn(&mut self, gate: &Arc<Gate>, task: impl Future<Output = ()> + Send + 'static) {
        let (gate, stop) = (Arc::clone(gate), self.stop.clone());
        let task = async move { gate.through(task).await };
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// A service, which ends on its own once it is stopped.
    fn serve(&mut self, gate: &Arc<Gate>, task: impl Future<Output = ()> + Send + 'static) {
        let gate = Arc::clone(gate);
        self.tasks.spawn(async move { gate.through(task).await });
    }
}
