//! A fleet on one store, and its faults.

use std::sync::Arc;

use store::{FaultControl, Faults, Store, Transaction};
use testkit::{Fault, Report, actor_rng};
use tokio::task::{JoinSet, unconstrained};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::history::Setting;
use super::node::{Gate, Node, World};
use super::plan::{Act, LIMITS, Limits, Plan};
use super::process::Process;
use crate::testing::mistake::Mistake;
use crate::{Clock, Entropy, Holder, Jobs, LimitName, TypeConfig};

/// The start time, by a correct clock.
pub(super) const START_MS: i64 = 1_700_000_000_000;

/// The nodes, and the store they share.
pub(super) struct Fleet {
    pub(super) world: Arc<World>,
    mistake: Mistake,
    pub(super) members: Vec<Member>,
    /// A queue on the same rows, without faults.
    pub(super) calm: Jobs,
}

/// A node of the fleet.
pub(super) struct Member {
    clock: Clock,
    /// The clock's errors, and since when.
    pub(super) skews: Vec<(Instant, i64)>,
    gate: Arc<Gate>,
    pub(super) process: Option<Process>,
    incarnation: u64,
    outage: bool,
    full: bool,
    /// When the store became useless, and the transactions the services had tried by then.
    tried: Option<(Instant, u64)>,
}

/// Runs a plan from beginning to end.
pub(super) async fn run(plan: Plan, mistake: &Mistake) -> (Report, u64) {
    let mut fleet = Fleet::open(plan, mistake.clone()).await;
    fleet.troubled().await;
    fleet.heal().await;
    if !fleet.world.history.has_problems() {
        fleet.drain().await;
        fleet.check_final_notices().await;
        fleet.idle().await;
        fleet.hold().await;
    }
    fleet.stop().await;
    if !fleet.world.history.has_problems() {
        fleet.clean_up().await;
    }
    fleet.judge().await
}

impl Fleet {
    async fn open(plan: Plan, mistake: Mistake) -> Self {
        let store = Store::open("memory:").await.unwrap();
        let calm = Jobs::new(
            store.clone(),
            Clock::simulated(START_MS),
            Entropy::seeded(plan.seed),
        );
        let moves = Arc::default();
        let calm = calm.recording(&moves);
        let members = plan.nodes.iter().map(|node| {
            let clock = Clock::simulated(START_MS);
            clock.set_skew_ms(node.skew_ms);
            Member {
                clock,
                skews: vec![(Instant::now(), node.skew_ms)],
                gate: Arc::default(),
                process: None,
                incarnation: 0,
                outage: false,
                full: false,
                tried: None,
            }
        });
        let members = members.collect();
        let world = Arc::new(World::new(plan, store, moves));
        for (name, ty) in world.types.iter().zip(&world.plan.types) {
            calm.set_type(name, ty.config).await.unwrap();
        }
        let mut fleet = Self {
            world,
            mistake,
            members,
            calm,
        };
        fleet.set_limits().await;
        for node in 0..fleet.members.len() {
            fleet.start(node);
        }
        fleet
    }

    pub(super) fn queue(&self, node: usize, which: u64) -> (Jobs, FaultControl) {
        let (plan, member) = (&self.world.plan, &self.members[node]);
        let parts = [node as u64, member.incarnation, which];
        let mut rng = actor_rng(plan.seed, &parts);
        let faults = Faults {
            seed: rand::RngExt::random(&mut rng),
            weaken: self.mistake.weaken,
            log: self.mistake.log.clone(),
            ..plan.faults.clone()
        };
        let (store, control) = self.world.store.with_faults(faults);
        control.set_outage(member.outage);
        control.set_full(member.full);
        control.set_quiet(self.world.healing());
        let entropy = Entropy::seeded(rand::RngExt::random(&mut rng));
        let planted = self.mistake.planted;
        let jobs = Jobs::planted_with(store, member.clock.clone(), entropy, planted);
        (jobs.recording(&self.world.moves), control)
    }

    /// Starts a node unless it is running.
    fn start(&mut self, index: usize) {
        if self.members[index].process.is_some() {
            return;
        }
        self.members[index].incarnation += 1;
        let (services, control) = self.queue(index, 0);
        let (jobs, actors_control) = self.queue(index, 1);
        let node = Node {
            index,
            world: Arc::clone(&self.world),
            jobs,
            holder: Holder::new(&format!("node-{index}")).unwrap(),
        };
        let incarnation = self.members[index].incarnation;
        let mut process = Process {
            services,
            controls: vec![control, actors_control],
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        process.start(&node, &self.members[index].gate, incarnation);
        self.members[index].process = Some(process);
    }

    /// Crashes or stops a node.
    async fn end(&mut self, index: usize, crash: bool) {
        let member = &mut self.members[index];
        let Some(mut process) = member.process.take() else {
            return;
        };
        member.tried = None;
        if crash {
            process.tasks.abort_all();
        } else {
            process.stop.cancel();
        }
        while let Some(ended) = process.tasks.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                let history = &self.world.history;
                history.problem(format!("a task of node {index} panicked"));
            }
        }
        for followed in &mut self.world.history.record().followed {
            followed.open &= followed.node != index;
        }
    }

    /// Applies all faults.
    async fn troubled(&mut self) {
        let begin = Instant::now();
        let troubled = self.world.plan.troubled;
        let mut schedule = self.world.plan.schedule.clone().into_iter().peekable();
        for part in 1..=6 {
            let until = troubled / 6 * part;
            while let Some((at, act)) = schedule.next_if(|(at, _)| *at <= until) {
                sleep_until(begin + at).await;
                self.act(act).await;
            }
            sleep_until(begin + until).await;
            self.audit().await;
            if self.world.history.has_problems() {
                return;
            }
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Node(node, fault) => self.inject(node, fault).await,
            Act::Full(node, full) => {
                self.useless(node);
                self.members[node].full = full;
                self.set_controls(node);
            }
            Act::Retime(ty, other) => {
                let TypeConfig { timeout_ms, .. } = self.world.plan.types[ty].config;
                let other_ms = self.world.plan.types[ty].other_timeout_ms;
                let config = TypeConfig {
                    timeout_ms: if other { other_ms } else { timeout_ms },
                    ..self.world.plan.types[ty].config
                };
                let set = self.calm.set_type(&self.world.types[ty], config);
                unconstrained(set).await.unwrap();
            }
            Act::Limit(ty, limit, setting) => {
                unconstrained(self.set_limit(ty, limit, setting)).await;
            }
        }
    }

    async fn inject(&mut self, node: usize, fault: Fault) {
        match fault {
            Fault::Outage(outage) => {
                self.useless(node);
                self.members[node].outage = outage;
                self.set_controls(node);
            }
            Fault::Pause(pause) => self.members[node].gate.close(pause),
            Fault::Crash => self.end(node, true).await,
            Fault::Stop => {
                // A process that is stopped and paused at once would never end.
                self.members[node].gate.close(false);
                self.end(node, false).await;
            }
            Fault::Start => self.start(node),
            Fault::Skew(skew_ms) => self.skew(node, skew_ms),
        }
    }

    fn skew(&mut self, node: usize, skew_ms: i64) {
        let member = &mut self.members[node];
        member.clock.set_skew_ms(skew_ms);
        member.skews.push((Instant::now(), skew_ms));
    }

    fn set_controls(&mut self, node: usize) {
        let member = &mut self.members[node];
        for control in member.process.iter().flat_map(|process| &process.controls) {
            control.set_outage(member.outage);
            control.set_full(member.full);
            control.set_quiet(self.world.healing());
        }
    }

    /// Called when the store becomes useless to a node, or usable again: without a usable store a node does little.
    fn useless(&mut self, node: usize) {
        let loops = 1 + 3 * self.world.types.len() as u64;
        let member = &mut self.members[node];
        let now = member
            .process
            .as_ref()
            .map(|process| attempts(&process.services));
        if let (Some((since, before)), Some(now)) = (member.tried.take(), now) {
            let (tried, length) = (now - before, since.elapsed());
            if tried > loops * (40 + 4 * length.as_secs()) {
                self.world.history.problem(format!(
                    "node {node} tried {tried} transactions in {length:?} with a store of no use"
                ));
            }
        }
        let member = &mut self.members[node];
        if !member.outage && !member.full {
            member.tried = now.map(|now| (Instant::now(), now));
        }
    }

    /// Ends all faults; creators stop.
    async fn heal(&mut self) {
        self.world.heal();
        for node in 0..self.members.len() {
            self.useless(node);
            let member = &mut self.members[node];
            (member.outage, member.full) = (false, false);
            member.gate.close(false);
            self.skew(node, 0);
            self.set_controls(node);
            self.start(node);
        }
        for (name, ty) in self.world.types.iter().zip(&self.world.plan.types) {
            let set = self.calm.set_type(name, ty.config);
            unconstrained(set).await.unwrap();
        }
        self.set_limits().await;
    }

    /// Sets all limits as they are without an operator.
    async fn set_limits(&self) {
        for ty in 0..self.world.types.len() {
            for limit in 0..LIMITS.len() {
                unconstrained(self.set_limit(ty, limit, 0)).await;
            }
        }
    }

    /// Changes a limit while nothing else happens.
    async fn set_limit(&self, ty: usize, limit: usize, setting: usize) {
        let Some(Limits(settings)) = &self.world.plan.types[ty].limits else {
            return;
        };
        let (name, limit) = (LIMITS[limit], settings[limit][setting]);
        let before = self.version().await;
        let (of_type, of_name) = (&self.world.types[ty], LimitName::try_from(name).unwrap());
        let set = self.calm.set_limit(of_type, &of_name, limit);
        set.await.unwrap();
        let served = self.version().await;
        self.world.history.record().settings.push(Setting {
            from: before + 1,
            served,
            ty,
            name,
            limit,
        });
    }

    /// That of the last commit.
    async fn version(&self) -> u64 {
        let read = |tx: Transaction| async move { tx.read_version().await };
        self.world.store.transact("version", read).await.unwrap()
    }

    async fn stop(&mut self) {
        for node in 0..self.members.len() {
            self.end(node, false).await;
        }
    }
}

/// All transactions tried.
fn attempts(jobs: &Jobs) -> u64 {
    let stats = jobs.store().stats();
    stats.values().map(|stats| stats.attempts).sum()
}
