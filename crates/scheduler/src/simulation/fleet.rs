//! A fleet on one store between two servers, and its faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use docstore::{Db, DocStore};
use jobs::{Clock, Entropy, Jobs};
use seal::Sealer;
use store::Store;
use testkit::{Fault, Report};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::clients::{self, Frontend};
use super::judge;
use super::plan::Plan;
use super::process::{Journal, Running};
use super::servers::{Servers, write_for_ever};
use crate::service::{Replications, Setup};
use crate::testing::Bug;

/// The start time, by a correct clock.
const START_MS: i64 = 1_700_000_000_000;
/// How long recovery may take after all faults have ended.
const RECOVERY_MAX: Duration = Duration::from_mins(12);
/// How long the idle fleet is watched.
const IDLE: Duration = Duration::from_mins(10);

/// Shared state.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) bug: Option<Bug>,
    /// The rows, without faults.
    pub(super) store: Store,
    pub(super) db: Db,
    pub(super) servers: Arc<Servers>,
    pub(super) journal: Journal,
    healing: AtomicBool,
}

impl World {
    pub(super) fn is_healing(&self) -> bool {
        self.healing.load(Ordering::Relaxed)
    }
}

/// The nodes.
pub(super) struct Fleet {
    pub(super) world: Arc<World>,
    /// The service, without faults.
    pub(super) calm: Frontend,
    members: Vec<Member>,
    pub(super) begun: Instant,
}

struct Member {
    clock: Clock,
    running: Option<Running>,
    starts: u64,
    is_cut_off: bool,
}

/// Runs a plan from start to end.
pub(super) async fn run(plan: Plan, bug: Option<Bug>) -> Report {
    let mut fleet = Fleet::open(plan, bug).await;
    let writing = write_for_ever(Arc::clone(&fleet.world.servers), fleet.world.plan.clone());
    let writing = AbortOnDropHandle::new(tokio::spawn(writing));
    let mut problems = fleet.troubled().await;
    drop(writing);
    if problems.is_empty() {
        problems.extend(Box::pin(fleet.heal()).await);
        problems.extend(fleet.settle().await);
    }
    if problems.is_empty() {
        problems.extend(fleet.idle().await);
    }
    problems.extend(fleet.stop().await);
    let mut report = judge::judge(&fleet).await;
    problems.append(&mut report.problems);
    Report { problems, ..report }
}

impl Fleet {
    async fn open(plan: Plan, bug: Option<Bug>) -> Self {
        let faultless = store::Faults {
            seed: plan.seed,
            ..store::Faults::default()
        };
        let (store, _) = Store::open("memory:").await.unwrap().with_faults(faultless);
        let jobs = Jobs::new(
            store.clone(),
            Clock::simulated(START_MS),
            Entropy::seeded(plan.seed),
        );
        let docs = DocStore::new(store.clone(), docstore::Options::default());
        let setup = Setup {
            sealer: Sealer::new(vec![("k".to_owned(), [9; 32])]).unwrap(),
            options: plan.options.clone(),
            ..Setup::default()
        };
        let replications = Replications::open(jobs, docs, setup).await.unwrap();
        let db = replications.create_database("_replicator").await.unwrap();
        let members = plan.nodes.iter().map(|_| Member {
            clock: Clock::simulated(START_MS),
            running: None,
            starts: 0,
            is_cut_off: false,
        });
        let members = members.collect();
        let world = Arc::new(World {
            servers: Arc::new(Servers::start(&plan)),
            plan,
            bug,
            store,
            db,
            journal: Arc::new(Mutex::default()),
            healing: AtomicBool::new(false),
        });
        let calm = Frontend {
            world: Arc::clone(&world),
            replications,
        };
        let mut fleet = Self {
            world,
            calm,
            members,
            begun: Instant::now(),
        };
        for (number, goal) in fleet.world.plan.goals.iter().enumerate() {
            // Clients create the others.
            if number % 2 == 0 && goal.documents > 0 {
                let body = clients::body(&fleet.world, goal);
                let id = clients::document_id(number, 0);
                unconstrained(fleet.calm.put(&id, None, &body))
                    .await
                    .unwrap();
            }
        }
        for node in 0..fleet.members.len() {
            fleet.start(node);
        }
        fleet
    }

    fn start(&mut self, node: usize) {
        let member = &mut self.members[node];
        if member.running.is_none() {
            member.starts += 1;
            let (starts, clock) = (member.starts, member.clock.clone());
            let running = Running::start(&self.world, node, starts, clock);
            running.control.set_outage(member.is_cut_off);
            member.running = Some(running);
        }
    }

    /// Applies all faults.
    async fn troubled(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (at, (node, fault)) in self.world.plan.schedule.clone() {
            sleep_until(self.begun + at).await;
            problems.extend(self.inject(node, fault).await.err());
        }
        sleep_until(self.begun + self.world.plan.troubled).await;
        problems
    }

    async fn inject(&mut self, node: usize, fault: Fault) -> Result<(), String> {
        let member = &mut self.members[node];
        match fault {
            Fault::Outage(outage) => {
                member.is_cut_off = outage;
                if let Some(running) = &member.running {
                    running.control.set_outage(outage);
                }
            }
            Fault::Pause(paused) => {
                if let Some(running) = &member.running {
                    running.process.pause(paused);
                }
            }
            Fault::Crash => {
                if let Some(running) = member.running.take() {
                    running.crash().await;
                }
            }
            Fault::Stop => {
                if let Some(running) = member.running.take() {
                    // A process that is stopped and paused at once would never end.
                    running.process.pause(false);
                    running.stop().await?;
                }
            }
            Fault::Start => self.start(node),
            Fault::Skew(skew_ms) => member.clock.set_skew_ms(skew_ms),
        }
        Ok(())
    }

    /// Ends all faults and all clients.
    async fn heal(&mut self) -> Vec<String> {
        self.world.healing.store(true, Ordering::Relaxed);
        self.world.servers.heal();
        for node in 0..self.members.len() {
            let member = &mut self.members[node];
            member.is_cut_off = false;
            member.clock.set_skew_ms(0);
            if let Some(running) = &member.running {
                running.control.set_outage(false);
                running.control.set_quiet(true);
                running.process.pause(false);
            }
            self.start(node);
        }
        // Work in progress ends.
        sleep(Duration::from_secs(90)).await;
        unconstrained(self.resume_all()).await
    }

    /// Resumes everything that is paused.
    async fn resume_all(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (id, _) in self.documents() {
            let job = crate::data::document_job_id(self.world.db.instance(), &id);
            let Ok(Some(doc)) = self.calm.read(&id).await else {
                continue;
            };
            if doc["paused"] == true
                && let Err(error) = self.calm.replications.set_paused(&job, false).await
            {
                problems.push(format!("cannot resume {id}: {error}"));
            }
        }
        problems
    }

    /// All documents that may exist, and their goals.
    pub(super) fn documents(&self) -> Vec<(String, usize)> {
        let goals = self.world.plan.goals.iter().enumerate();
        let documents = goals.flat_map(|(number, goal)| {
            (0..goal.documents).map(move |nth| (clients::document_id(number, nth), number))
        });
        documents.collect()
    }

    /// Whether continuous jobs take turns, because there are too few permits for all.
    pub(super) fn takes_turns(&self) -> bool {
        self.world.plan.options.park_after_sec == 0
    }

    /// Waits until everything is in its final state.
    async fn settle(&self) -> Vec<String> {
        let begun = Instant::now();
        loop {
            sleep(Duration::from_secs(5)).await;
            let violations = unconstrained(judge::violations(self)).await;
            if violations.is_empty() || begun.elapsed() > RECOVERY_MAX {
                return violations;
            }
        }
    }

    /// Idle, the fleet does little, and nothing changes.
    async fn idle(&self) -> Vec<String> {
        let tried = || -> BTreeMap<&str, u64> {
            let mut sums = BTreeMap::new();
            let up = self
                .members
                .iter()
                .filter_map(|member| member.running.as_ref());
            for running in up {
                for (name, stats) in running.store.stats() {
                    *sums.entry(name).or_default() += stats.attempts;
                }
            }
            sums
        };
        let before = tried();
        sleep(IDLE).await;
        let after = tried();
        let more = after.iter().map(|(name, after)| {
            let before = before.get(name).copied().unwrap_or(0);
            (*name, after - before)
        });
        let more: BTreeMap<_, _> = more.filter(|(_, more)| *more > 0).collect();
        let sum: u64 = more.values().sum();
        let minutes = IDLE.as_secs() / 60;
        // The queue's services, the scheduler's background work; per job, heartbeats and statistics.
        let nodes = self.members.len() as u64 * (300 + 120 / self.world.plan.options.interval_sec);
        let jobs = self.documents().len() as u64 * 20;
        let mut problems = unconstrained(judge::violations(self)).await;
        if sum > minutes * (nodes + jobs) {
            problems.push(format!(
                "{sum} transactions in {minutes} idle minutes: {more:?}"
            ));
        }
        problems
    }

    async fn stop(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for member in &mut self.members {
            if let Some(running) = member.running.take() {
                running.process.pause(false);
                problems.extend(running.stop().await.err());
            }
        }
        problems
    }
}
