//! A fleet on one store that follows a server, its faults, and the changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use docstore::{Db, Edit, EditMode};
use document::doc::Doc;
use jobs::{Clock, Entropy, Jobs, Planted};
use rules::rule::Rules;
use scheduler::{Rank, Replications, Writer};
use serde_json::{Value, json};
use store::tuple::below;
use store::{RangeOptions, Store, Transaction};
use testkit::{Fault, Report, actor_rng, some_time};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::journal::Journal;
use crate::judge;
use crate::plan::{Act, Pace, Plan, Way};
use crate::process::{Running, service};
use crate::servers::Servers;

/// The start time, by a correct clock.
const START_MS: i64 = 1_700_000_000_000;
/// How long nodes have for finding the databases of rules before anything counts: a rule begins with what it hears of first.
const WARM_UP: Duration = Duration::from_mins(10);
/// How long recovery may take after all faults have ended: back-offs and leases pass, failed feeds are opened again.
pub(crate) const RECOVERY: Duration = Duration::from_mins(5);
/// How long databases change after that.
const STEADY: Duration = Duration::from_mins(4);
/// Changes of a burst.
const BURST: u64 = 6;
/// How long a change may take to move the position in the feed, while the source is followed.
const POSITION_MAX: Duration = Duration::from_secs(1);
/// How often targets are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Shared state.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) planted: Planted,
    /// The rows, without faults.
    pub(crate) store: Store,
    pub(crate) servers: Servers,
    pub(crate) journal: Journal,
    in_trouble: AtomicBool,
    databases: Vec<State>,
}

/// Whether there are faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Calm,
    Trouble,
}

/// A database, which may be deleted and made anew.
#[derive(Default)]
struct State {
    exists: AtomicBool,
    generation: AtomicU64,
    changes: AtomicU64,
}

impl World {
    pub(crate) fn phase(&self) -> Phase {
        if self.in_trouble.load(Ordering::Relaxed) {
            Phase::Trouble
        } else {
            Phase::Calm
        }
    }

    fn create(&self, database: usize) {
        let (name, state) = (name(database), &self.databases[database]);
        if !state.exists.swap(true, Ordering::Relaxed) {
            state.generation.fetch_add(1, Ordering::Relaxed);
            self.servers.source.create_database(&name).unwrap();
            self.journal.of(&name, "is created");
        }
    }

    fn delete(&self, database: usize) {
        let (name, state) = (name(database), &self.databases[database]);
        if state.exists.swap(false, Ordering::Relaxed) {
            self.servers.source.delete_database(&name).unwrap();
            self.journal.deleted(&name);
        }
    }

    /// Writes a new document into a database, if it exists.
    fn change(&self, database: usize) {
        let (name, state) = (name(database), &self.databases[database]);
        if state.exists.load(Ordering::Relaxed) {
            let nth = state.changes.fetch_add(1, Ordering::Relaxed);
            let generation = state.generation.load(Ordering::Relaxed);
            let doc = format!("{generation}-{nth:05}");
            let body = json!({"_id": doc}).to_string();
            self.servers.source.put(&name, &body).unwrap();
            self.journal.changed(&name, &doc);
        }
    }
}

pub(crate) struct Fleet {
    pub(crate) world: Arc<World>,
    /// The service, without faults.
    pub(crate) calm: Replications,
    members: Vec<Member>,
    begun: Instant,
    /// When all faults had ended.
    pub(crate) healed: Instant,
}

struct Member {
    clock: Clock,
    running: Option<Running>,
    starts: u64,
    is_cut_off: bool,
    is_stalled: bool,
}

pub(crate) async fn run(plan: Plan, planted: Planted) -> Report {
    let mut fleet = Fleet::open(plan, planted).await;
    for node in 0..fleet.members.len() {
        fleet.start(node);
    }
    let mut problems = fleet.warm_up().await;
    problems.extend(fleet.begin_trouble().await);
    let writing = fleet.write();
    let arriving = AbortOnDropHandle::new(tokio::spawn(look(Arc::clone(&fleet.world))));
    problems.extend(fleet.troubled().await);
    problems.extend(fleet.heal().await);
    sleep(RECOVERY + STEADY).await;
    drop(writing);
    sleep(fleet.world.plan.latest()).await;
    drop(arriving);
    let states = unconstrained(judge::states(&fleet)).await;
    problems.extend(fleet.stop().await);
    let mut report = judge::judge(&fleet, states);
    problems.append(&mut report.problems);
    Report { problems, ..report }
}

impl Fleet {
    async fn open(plan: Plan, planted: Planted) -> Self {
        let faultless = store::Faults {
            seed: plan.seed,
            ..store::Faults::default()
        };
        let (store, _) = Store::open("memory:").await.unwrap().with_faults(faultless);
        let clock = Clock::simulated(START_MS);
        let jobs = Jobs::new(store.clone(), clock, Entropy::seeded(plan.seed));
        let calm = service(jobs).await.unwrap();
        let journal = Journal::new();
        let members = (0..plan.nodes).map(|_| Member {
            clock: Clock::simulated(START_MS),
            running: None,
            starts: 0,
            is_cut_off: false,
            is_stalled: false,
        });
        let members = members.collect();
        let databases = plan.databases.iter().map(|_| State::default()).collect();
        let world = Arc::new(World {
            servers: Servers::start(&plan, &journal),
            plan,
            planted,
            store,
            journal,
            in_trouble: AtomicBool::new(false),
            databases,
        });
        let fleet = Self {
            world,
            calm,
            members,
            begun: Instant::now(),
            healed: Instant::now(),
        };
        for (database, drawn) in fleet.world.plan.databases.iter().enumerate() {
            if !drawn.is_late {
                fleet.world.create(database);
            }
        }
        unconstrained(fleet.ask()).await;
        fleet
    }

    /// Writes the documents of replications and rules.
    async fn ask(&self) {
        let replicator = self.calm.create_database("_replicator").await.unwrap();
        let rules = self.calm.create_database("_rules").await.unwrap();
        let (source, target) = (&self.world.servers.source, &self.world.servers.target);
        for way in &self.world.plan.ways {
            match way {
                Way::Continuous | Way::Triggered(_) => {
                    for database in 0..self.world.databases.len() {
                        let body = way.document(&source.url(), &target.url(), &name(database));
                        let id = format!("{}-{}", way.name(), name(database));
                        self.replicate(&replicator, &id, &body).await;
                    }
                }
                Way::Ruled | Way::InOrder(_) | Way::AtOnce => {
                    let body = way.document(&source.url(), &target.url(), "");
                    let edit = edit(way.name(), &body);
                    let of_rules = Rules::new(self.calm.clone());
                    let edit = of_rules.prepare(&rules, edit).unwrap();
                    let docs = self.calm.docs();
                    docs.put(&rules, &edit, EditMode::NewEdits, &of_rules.hook())
                        .await
                        .unwrap();
                }
            }
        }
    }

    async fn replicate(&self, db: &Db, id: &str, body: &Value) {
        let writer = Writer::User {
            name: Some("joe".to_owned()),
            rank: Rank::ServerAdmin,
        };
        let edit = self.calm.prepare(db, edit(id, body), &writer).unwrap();
        let hook = self.calm.hook(writer);
        let docs = self.calm.docs();
        docs.put(db, &edit, EditMode::NewEdits, &hook)
            .await
            .unwrap();
    }

    fn start(&mut self, node: usize) {
        let member = &mut self.members[node];
        if member.running.is_none() {
            member.starts += 1;
            let (starts, clock) = (member.starts, member.clock.clone());
            let running = Running::start(&self.world, node, starts, clock);
            running.control.set_outage(member.is_cut_off);
            running.control.set_stalled(member.is_stalled);
            member.running = Some(running);
        }
    }

    /// Waits until the databases that there are have been looked for, for each rule.
    async fn warm_up(&self) -> Vec<String> {
        let ways = self.world.plan.ways.iter();
        let rules = ways.filter(|way| way.is_rule()).count();
        let range = &below(&(52_u16, 20_u16));
        let seeded = async || {
            let look = |tx: Transaction| async move {
                let rows = tx.get_range(range.clone(), RangeOptions::default());
                Ok::<_, store::Error>(rows.collect().await?.len())
            };
            let seeded = self.world.store.transact("look", look);
            unconstrained(seeded).await.unwrap()
        };
        while seeded().await < rules {
            if self.begun.elapsed() > WARM_UP {
                return vec!["the databases of rules were not looked for".to_owned()];
            }
            sleep(LOOK).await;
        }
        Vec::new()
    }

    async fn begin_trouble(&mut self) -> Vec<String> {
        self.world.in_trouble.store(true, Ordering::Relaxed);
        self.world.servers.trouble(&self.world.plan);
        self.world.journal.all("trouble begins");
        let problems = self.restart().await;
        self.begun = Instant::now();
        problems
    }

    /// Stops all nodes in order, and starts them with the faults of now.
    async fn restart(&mut self) -> Vec<String> {
        let problems = self.stop().await;
        for node in 0..self.members.len() {
            self.start(node);
        }
        problems
    }

    /// Changes the databases until it is dropped.
    fn write(&self) -> Vec<AbortOnDropHandle<()>> {
        let writers = self.world.plan.databases.iter().enumerate();
        let writers = writers.map(|(database, drawn)| {
            let writing = write(Arc::clone(&self.world), database, drawn.pace);
            AbortOnDropHandle::new(tokio::spawn(writing))
        });
        writers.collect()
    }

    /// Applies all faults.
    async fn troubled(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (at, act) in self.world.plan.schedule.clone() {
            sleep_until(self.begun + at).await;
            match act {
                Act::Node(node, fault) => {
                    self.world.journal.all(format!("node-{node}: {fault:?}"));
                    problems.extend(self.inject(node, fault).await.err());
                }
                Act::Endpoint(mode) => {
                    self.world.journal.all(format!("the endpoint: {mode:?}"));
                    self.world.servers.endpoint.set(mode);
                }
                Act::Create(database) => self.world.create(database),
                Act::Delete(database) => self.world.delete(database),
                Act::PowerCut(nth, after) => self.cut(nth, after).await,
            }
        }
        sleep_until(self.begun + self.world.plan.troubled).await;
        problems
    }

    /// Changes the nth rare database, and lets all nodes crash.
    async fn cut(&mut self, nth: usize, after: Option<Duration>) {
        let before = self.position().await;
        let databases = self.world.plan.databases.iter().enumerate();
        let mut rare = databases.filter(|(_, drawn)| drawn.pace == Pace::Rare);
        if let Some((database, _)) = rare.nth(nth) {
            self.world.change(database);
        }
        if let Some(after) = after {
            sleep(after).await;
        } else {
            // What was not done before, or together with that, is lost.
            let moves = async {
                while self.position().await == before {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            let _late = timeout(POSITION_MAX, moves).await;
        }
        self.world.journal.all("all nodes crash");
        for node in 0..self.members.len() {
            if let Some(running) = self.members[node].running.take() {
                running.crash().await;
            }
            self.start(node);
        }
    }

    /// How far the source has been followed.
    async fn position(&self) -> Value {
        let sources = unconstrained(rules::source::list(self.calm.jobs())).await;
        let source = sources.unwrap().into_iter().next().unwrap_or_default();
        source["since"].clone()
    }

    async fn inject(&mut self, node: usize, fault: Fault) -> Result<(), String> {
        let member = &mut self.members[node];
        let control = (member.running.as_ref()).map(|running| &running.control);
        match fault {
            Fault::Outage(outage) => {
                member.is_cut_off = outage;
                control.inspect(|control| control.set_outage(outage));
            }
            Fault::Pause(stalled) => {
                member.is_stalled = stalled;
                control.inspect(|control| control.set_stalled(stalled));
            }
            Fault::Crash => {
                if let Some(running) = member.running.take() {
                    running.crash().await;
                }
            }
            Fault::Stop => {
                if let Some(running) = member.running.take() {
                    running.control.set_stalled(false);
                    running.stop().await?;
                }
            }
            Fault::Start => self.start(node),
            Fault::Skew(skew_ms) => member.clock.set_skew_ms(skew_ms),
        }
        Ok(())
    }

    /// Ends all faults but delays and those of the feed.
    async fn heal(&mut self) -> Vec<String> {
        self.world.in_trouble.store(false, Ordering::Relaxed);
        self.world.journal.all("trouble ends");
        self.world.servers.heal(&self.world.plan);
        for database in 0..self.world.databases.len() {
            self.world.create(database);
        }
        for member in &mut self.members {
            (member.is_cut_off, member.is_stalled) = (false, false);
            member.clock.set_skew_ms(0);
            if let Some(running) = &member.running {
                running.control.set_outage(false);
                running.control.set_stalled(false);
                running.control.set_quiet(true);
            }
        }
        let problems = self.restart().await;
        self.healed = Instant::now();
        problems
    }

    async fn stop(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for member in &mut self.members {
            if let Some(running) = member.running.take() {
                problems.extend(running.stop().await.err());
            }
        }
        problems
    }
}

fn name(database: usize) -> String {
    format!("app-{database}")
}

fn edit(id: &str, body: &Value) -> Edit {
    Edit::new(id, Doc::parse(&body.to_string()).unwrap()).unwrap()
}

/// Changes a database for ever.
async fn write(world: Arc<World>, database: usize, pace: Pace) {
    let mut rng = actor_rng(world.plan.seed, &[1_000, database as u64]);
    for nth in 1.. {
        let gap = some_time(&mut rng, world.plan.writes_gap);
        match pace {
            Pace::Rare => std::future::pending().await,
            Pace::Bursts if nth % BURST == 0 => sleep(world.plan.latest()).await,
            Pace::Busy | Pace::Bursts => sleep(gap).await,
        }
        world.change(database);
    }
}

/// Notes what has arrived at the targets.
async fn look(world: Arc<World>) {
    let copies: Vec<_> = (world.plan.ways.iter().copied())
        .filter(|way| !way.calls())
        .collect();
    let (mut seen, mut awaited) = (0, Vec::new());
    loop {
        sleep(LOOK).await;
        let new = world.journal.with(|record| {
            let new = record.changes[seen..].to_vec();
            seen = record.changes.len();
            new
        });
        for change in new {
            awaited.extend(copies.iter().map(|way| (*way, change.clone())));
        }
        awaited.retain(|(way, change)| {
            let is_there = world.servers.has(*way, &change.db, &change.doc);
            if is_there {
                (world.journal).arrived(way.name(), &change.db, &change.doc);
            }
            !is_there
        });
    }
}
