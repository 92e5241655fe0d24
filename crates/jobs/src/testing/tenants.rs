//! Tenants, one step at a time, and over long times.

mod crowd;
mod order;
mod rfc017;

use std::collections::BTreeMap;

use store::Store;

use crate::operations::tenants::{START_MS, cost};
use crate::{
    Accepted, Add, Class, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, Limit, LimitName,
    SHARES_MAX, Sharing, State, Tenant, TenantUse, TypeConfig,
};

const START: i64 = 1_700_000_000_000;
/// A cycle of CouchDB's scheduler.
const CYCLE_MS: i64 = 60_000;

/// A queue that tenants share, whose consistency is checked after each step.
struct World {
    jobs: Jobs,
    ty: JobType,
    me: Holder,
    now_ms: i64,
}

impl World {
    async fn new() -> Self {
        let store = Store::open("memory:").await.unwrap();
        let jobs = Jobs::new(store, Clock::standing(START), Entropy::seeded(1));
        let ty = JobType::new("push").unwrap();
        let me = Holder::new("me").unwrap();
        let world = Self {
            jobs,
            ty,
            me,
            now_ms: START,
        };
        world.set(Sharing::On).await;
        world
    }

    async fn set(&self, sharing: Sharing) {
        let config = TypeConfig {
            sharing,
            ..TypeConfig::new(600_000)
        };
        self.jobs.set_type(&self.ty, config).await.unwrap();
    }

    fn pass(&mut self, ms: i64) {
        self.now_ms += ms;
        self.jobs.clock().set_ms(self.now_ms);
    }

    async fn add(&self, tenant: &str, count: usize) {
        self.add_as(tenant, count, |add| add).await;
    }

    async fn add_as(&self, tenant: &str, count: usize, change: impl Fn(Add) -> Add) {
        let adds = (0..count).map(|n| change(add(tenant, n)));
        let adds: Vec<Add> = adds.collect();
        self.jobs.add_many(&self.ty, &adds).await.unwrap();
    }

    async fn claim(&self, count: usize) -> Vec<Accepted> {
        let claimed = self.jobs.accept(&self.ty, &self.me, count).await.unwrap();
        claimed.jobs
    }

    async fn end(&self, runs: &[Accepted], finish: Finish) {
        let ends = runs.iter().map(|run| (run.job.clone(), finish.clone()));
        let ends: Vec<_> = ends.collect();
        for answer in self.jobs.finish_many(&ends).await.unwrap() {
            let _held = answer.unwrap();
        }
    }

    async fn shares(&self, name: &str, shares: u32) {
        let tenant = tenant(name);
        let set = (self.jobs).set_shares(&self.ty, Some(&tenant), Some(shares));
        set.await.unwrap();
    }

    async fn uses(&self) -> BTreeMap<String, TenantUse> {
        let uses = self.jobs.tenants(&self.ty, None, 1_000).await.unwrap();
        let name = |of: &TenantUse| of.tenant.as_ref().map(ToString::to_string);
        let named = uses
            .into_iter()
            .map(|of| (name(&of).unwrap_or_default(), of));
        named.collect()
    }

    async fn check(&self) {
        let check = self.jobs.check(&self.ty).await.unwrap();
        assert!(check.problems.is_empty(), "{:?}", check.problems);
    }

    async fn turns(&self) -> usize {
        let turns = self.jobs.keys().turns(&self.ty, None);
        self.jobs.rows(turns).await.len()
    }
}

fn tenant(name: &str) -> Tenant {
    Tenant::try_from(name).unwrap()
}

fn add(name: &str, n: usize) -> Add {
    let add = Add::new(JobId::new(format!("{name}/{n}")).unwrap(), "");
    if name.is_empty() {
        return add;
    }
    add.tenant(tenant(name))
}

fn of(run: &Accepted) -> String {
    let id = run.job.id.to_string();
    id.split('/').next().unwrap_or_default().to_owned()
}

fn names(runs: &[Accepted]) -> Vec<String> {
    runs.iter().map(of).collect()
}

/// A tenant, its shares, and the number of its jobs.
type Sharer = (&'static str, u32, usize);

/// The part of the time, in percent, that each tenant gets over some cycles with so many seats.
async fn parts(sharers: &[Sharer], seats: usize, cycles: usize) -> Vec<f64> {
    let mut world = World::new().await;
    for (name, shares, count) in sharers {
        world.shares(name, *shares).await;
        world.add(name, *count).await;
    }
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..cycles {
        let held = world.claim(seats).await;
        assert_eq!(held.len(), seats);
        for run in &held {
            *runs.entry(of(run)).or_default() += 1;
        }
        world.pass(CYCLE_MS);
        world.end(&held, Finish::again(0)).await;
    }
    world.check().await;
    let all = f64::from(u32::try_from(seats * cycles).unwrap());
    let part = |name: &str| {
        let runs = runs.get(name).copied().unwrap_or_default();
        100.0 * f64::from(u32::try_from(runs).unwrap()) / all
    };
    sharers.iter().map(|(name, ..)| part(name)).collect()
}

fn near(parts: &[f64], wanted: &[f64]) {
    let close = |(part, wanted): (&f64, &f64)| (part - wanted).abs() <= 3.0;
    assert!(
        parts.iter().zip(wanted).all(close),
        "{parts:?}, not {wanted:?}"
    );
}

/// However many seats there are, even if one.
#[tokio::test]
async fn time_is_divided_by_shares() {
    let cases: [(&[Sharer], &[f64]); 4] = [
        (&[("a", 100, 50), ("b", 100, 150)], &[50.0, 50.0]),
        (&[("a", 1, 50), ("b", 100, 50)], &[1.0, 99.0]),
        (
            &[("a", 100, 50), ("b", 700, 50), ("c", 200, 50)],
            &[10.0, 70.0, 20.0],
        ),
        (
            &[("a", 1_000, 50), ("b", 100, 50), ("c", 1, 50)],
            &[90.8, 9.1, 0.1],
        ),
    ];
    for (sharers, wanted) in cases {
        near(&parts(sharers, 10, 400).await, wanted);
        near(&parts(sharers, 1, 400).await, wanted);
    }
}

#[tokio::test]
async fn shares_have_bounds_and_apply_from_now_on() {
    let mut world = World::new().await;
    for shares in [0, SHARES_MAX + 1] {
        let set = world.jobs.set_shares(&world.ty, None, Some(shares)).await;
        assert!(set.is_err(), "{shares}");
    }
    world.shares("b", 50).await;
    for name in ["a", "b", ""] {
        world.add(name, 1).await;
    }
    let held = world.claim(3).await;
    world.pass(1_000);
    world.shares("a", 1_000).await;
    world.shares("b", 1).await;
    let b = tenant("b");
    let reset = world.jobs.set_shares(&world.ty, Some(&b), None);
    reset.await.unwrap();
    world.end(&held, Finish::done()).await;
    let uses = world.uses().await;
    let vtimes = ["a", "b", ""].map(|name| uses[name].vtime);
    let run = 1_000 - START_MS;
    let expected = [
        cost(START_MS, 100) + cost(run, 1_000),
        cost(START_MS, 50) + cost(run, 100),
        cost(1_000, 100),
    ];
    assert_eq!(vtimes, expected);
    assert_eq!(uses["a"].shares, 1_000);
    let ahead = ["a", "b", ""].map(|name| uses[name].ahead_ms);
    assert_eq!(ahead, [1_900, 1_100, 1_000]);
    assert_eq!((uses[""].shares, uses[""].tenant.clone()), (100, None));
}

/// A run is charged for the time for which it is held, also while it goes on, and however it ends.
#[tokio::test]
async fn running_jobs_are_charged() {
    let mut world = World::new().await;
    let mut total = 0;
    for end in [
        "done", "short", "update", "beat", "idle", "far", "removed", "stalled",
    ] {
        world.add("a", 1).await;
        let run = world.claim(1).await.remove(0);
        let job = &run.job;
        let ms = if end == "short" { 20 } else { 5_000 };
        world.pass(ms);
        // An idle holder pays for its start.
        total += cost(
            if end == "idle" {
                START_MS
            } else {
                ms.max(START_MS)
            },
            100,
        );
        let op = world.jobs.op();
        let jobs = &world.jobs;
        match end {
            "update" => {
                let _held = jobs.update(job, Some("data".into())).await.unwrap();
            }
            "beat" | "idle" | "far" => {
                job.set_idle(end == "idle");
                let far = end == "far";
                let beat = jobs.store().transact("keep", |tx| async move {
                    if far {
                        jobs.beat_with_in(&tx, &op, job, None).await
                    } else {
                        jobs.keep_in(&tx, &op, job).await
                    }
                });
                let _held = beat.await.unwrap();
                job.set_idle(false);
            }
            "removed" => jobs.remove(&world.ty, &job.id).await.unwrap(),
            "stalled" => {
                let stall = jobs.store().transact("stall", |tx| async move {
                    let mut header = jobs.header(&tx, &job.ty, &job.id).await?;
                    let mut effects = jobs.effects(&tx, op.now_ms).await?;
                    let event = crate::model::machine::Event::Stall {
                        verdict: crate::Verdict::Policy,
                        policy: TypeConfig::new(1).stalls,
                    };
                    effects.run(&job.ty, &job.id, &mut header, event)?;
                    effects.flush(&op).await.map(drop)
                });
                stall.await.unwrap();
            }
            _ => {}
        }
        if matches!(end, "update" | "beat" | "idle" | "far") {
            assert_eq!(world.uses().await["a"].vtime, total, "{end}");
            world.pass(50);
            total += cost(50, 100);
        }
        if !matches!(end, "removed" | "stalled") {
            world.end(&[run], Finish::done()).await;
        }
        assert_eq!(world.uses().await["a"].vtime, total, "{end}");
        world.check().await;
    }
}

/// However much one tenant has queued, another waits for one seat.
#[tokio::test]
async fn a_tenant_starts_with_the_next_seat() {
    let mut world = World::new().await;
    world.add("a", 20_000).await;
    let mut held = world.claim(10).await;
    for round in 0..5 {
        let name = format!("b{round}");
        for ms in [1, 10_000] {
            world.pass(ms);
            world.add(&name, 1).await;
            let ended = held.remove(0);
            world.end(&[ended], Finish::done()).await;
            let next = world.claim(1).await;
            assert_eq!(names(&next), std::slice::from_ref(&name), "after {ms} ms");
            world.end(&next, Finish::done()).await;
            held.extend(world.claim(1).await);
        }
    }
    world.check().await;
}

/// Time that a tenant lets pass, or jobs that it removes and adds again, gain it nothing.
#[tokio::test]
async fn coming_and_going_gains_nothing() {
    for trick in ["idle", "again", "both"] {
        let mut world = World::new().await;
        world.add("honest", 40).await;
        world.add("other", 40).await;
        let mut runs = BTreeMap::from([("honest".to_owned(), 0), ("other".to_owned(), 0)]);
        for cycle in 0..200 {
            if trick != "idle" || cycle == 60 {
                for n in 0..40 {
                    let _ = world.jobs.remove(&world.ty, &add("other", n).id).await;
                }
                world.jobs.forget_tenants(&world.ty, None).await.unwrap();
            }
            if trick == "again" || !(60..120).contains(&cycle) {
                world.add("other", 40).await;
            }
            let held = world.claim(4).await;
            // Only when both wanted seats.
            if trick == "again" || !(60..120).contains(&cycle) {
                for run in &held {
                    *runs.entry(of(run)).or_default() += 1;
                }
            }
            world.pass(CYCLE_MS);
            for run in held {
                let finish = Finish::again(0);
                let _ = world.jobs.finish(&run.job, finish).await;
            }
        }
        world.check().await;
        let (honest, other) = (runs["honest"], runs["other"]);
        assert!(other * 100 <= (honest + other) * 53, "{trick}: {runs:?}");
    }
}

/// Scheduled jobs take turns once they are due, however many of one tenant are due before.
#[tokio::test]
async fn scheduled_jobs_take_turns() {
    let mut world = World::new().await;
    let due_ms = START + 1_000;
    world.add_as("a", 3_000, |add| add.due_ms(due_ms)).await;
    world.add_as("b", 1, |add| add.due_ms(due_ms + 1)).await;
    let claimed = world.jobs.accept(&world.ty, &world.me, 4).await.unwrap();
    assert_eq!((claimed.jobs.len(), claimed.next_due_ms), (0, Some(due_ms)));
    world.pass(2_000);
    let mut taken = Vec::new();
    for _ in 0..6 {
        taken.extend(names(&world.claim(4).await));
    }
    assert_eq!(taken.len(), 24);
    assert!(taken.contains(&"b".to_owned()), "{taken:?}");
    world.check().await;
    // Not before they are due by the claimant's clock, even if another one's is ahead.
    let mut world = World::new().await;
    world.add_as("a", 30, |add| add.due_ms(due_ms)).await;
    world.pass(1_000);
    assert_eq!(world.claim(1).await.len(), 1);
    world.pass(-1_000);
    let claimed = world.jobs.accept(&world.ty, &world.me, 40).await.unwrap();
    assert_eq!((claimed.jobs.len(), claimed.next_due_ms), (0, Some(due_ms)));
    world.check().await;
    world.pass(1_000);
    assert_eq!(world.claim(40).await.len(), 29);
}

/// Classes rank above tenants; jobs that wait for a limit are not charged, and let others of their tenant start.
#[tokio::test]
async fn classes_and_limits_go_together_with_tenants() {
    let world = World::new().await;
    world.add("a", 3).await;
    world.add_as("b", 3, |add| add.class(Class::Urgent)).await;
    let key = LimitName::new("k").unwrap();
    world
        .add_as("c", 3, |add| add.class(Class::Bulk).key(key.clone()))
        .await;
    world.add_as("d", 3, |add| add.class(Class::Bulk)).await;
    let mut held = world.claim(20).await;
    world.check().await;
    let mut order = names(&held);
    assert_eq!(order[..6], ["b", "b", "b", "a", "a", "a"]);
    order[6..].sort();
    assert_eq!(order[6..], ["c", "d", "d", "d"]);
    assert_eq!(world.uses().await["c"].vtime, cost(START_MS, 100));
    let limit = world.jobs.limit_use(&world.ty, &key).await.unwrap();
    assert_eq!((limit.limit, limit.waiting), (Limit::at_once(1), 2));
    for _ in 0..2 {
        let ended = held.iter().position(|run| of(run) == "c").unwrap();
        let ended = held.remove(ended);
        world.end(&[ended], Finish::done()).await;
        held.extend(world.claim(9).await);
        world.check().await;
    }
    world.end(&held, Finish::done()).await;
    let counts = world.jobs.counts(&world.ty).await.unwrap();
    assert_eq!((counts.pending, counts.finished), (0, 12));
}

/// Jobs are found whether or not their type was shared when they were added, and in listings.
#[tokio::test]
async fn a_type_begins_and_ends_to_share() {
    let mut world = World::new().await;
    world.set(Sharing::Off).await;
    let config = world.jobs.type_config(&world.ty).await.unwrap().unwrap();
    assert_eq!(config.sharing, Sharing::Ended);
    world.add("before", 4).await;
    world.set(Sharing::On).await;
    world.add("during", 4).await;
    world.add_as("later", 4, |add| add.due_ms(START + 1)).await;
    world.check().await;
    let query = crate::Query {
        state: Some(State::Pending),
        ..crate::Query::default()
    };
    let listed = world.jobs.list(&world.ty, &query, None, 99).await.unwrap();
    assert_eq!(listed.jobs.len(), 12);
    let held = world.claim(3).await;
    world.end(&held, Finish::again(0)).await;
    let backlog = world.jobs.backlog(&world.ty, START, 99).await.unwrap();
    assert_eq!((backlog.due, backlog.future), (8, 4));
    // Even the registration that said so is lost.
    world.jobs.clear_type(&world.ty).await.unwrap();
    world.set(Sharing::Off).await;
    world.add("after", 4).await;
    world.jobs.forget_tenants(&world.ty, None).await.unwrap();
    world.pass(10);
    let mut taken = BTreeMap::<String, usize>::new();
    for _ in 0..20 {
        for name in names(&world.claim(2).await) {
            *taken.entry(name).or_default() += 1;
        }
        world.check().await;
    }
    let all = ["after", "before", "during", "later"].map(|name| (name.to_owned(), 4));
    assert_eq!(taken, BTreeMap::from(all));
}

/// Jobs of one tenant that are not due do not hide those of another, whichever lane comes first.
#[tokio::test]
async fn due_jobs_are_counted_among_those_that_are_not() {
    for (due, later) in [("a", "b"), ("b", "a")] {
        let world = World::new().await;
        world.add_as(due, 3, |add| add.due_ms(START)).await;
        world.add_as(later, 50, |add| add.due_ms(START + 1)).await;
        let backlog = world.jobs.backlog(&world.ty, START, 10).await.unwrap();
        assert_eq!((backlog.due, backlog.future), (3, 50));
    }
}
