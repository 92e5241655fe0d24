//! Limits, one step at a time.

mod at_once;
mod damaged;
mod lowered;
mod many;
mod rates;
mod unsure;

use std::time::Duration;

use store::Store;

use crate::model::machine::Event;
use crate::{
    Accepted, Add, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, Limit, LimitName, Limits,
    State, TypeConfig, Verdict,
};

/// A queue whose consistency is checked after each step.
struct World {
    jobs: Jobs,
    ty: JobType,
    me: Holder,
}

impl World {
    async fn new() -> Self {
        let store = Store::open("memory:").await.unwrap();
        let clock = Clock::simulated(1_700_000_000_000);
        let jobs = Jobs::new(store, clock, Entropy::seeded(1));
        let ty = JobType::new("push").unwrap();
        jobs.set_type(&ty, TypeConfig::new(30_000)).await.unwrap();
        let me = Holder::new("me").unwrap();
        Self { jobs, ty, me }
    }

    async fn add(&self, id: &str, change: impl FnOnce(Add) -> Add) {
        let add = change(Add::new(job_id(id), "data"));
        self.jobs.add(&self.ty, add).await.unwrap();
        self.check().await;
    }

    /// Claims until nothing is due; returns the ids in their order.
    async fn claim(&self) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        loop {
            let claimed = self.jobs.accept(&self.ty, &self.me, 3).await.unwrap();
            self.check().await;
            if claimed.is_idle() {
                accepted.sort_by(|a: &Accepted, b| a.job.id.cmp(&b.job.id));
                return accepted;
            }
            accepted.extend(claimed.jobs);
        }
    }

    async fn finish(&self, accepted: &Accepted, finish: Finish) {
        let _held = self.jobs.finish(&accepted.job, finish).await.unwrap();
        self.check().await;
    }

    async fn set(&self, name: &str, limit: Limit) {
        let name = limit_name(name);
        let set = self.jobs.set_limit(&self.ty, &name, Some(limit)).await;
        set.unwrap();
        self.check().await;
    }

    /// The run's holder goes silent.
    async fn stall(&self, run: &Accepted) {
        let (jobs, op, id) = (&self.jobs, &self.jobs.op(), &run.job.id);
        let stall = jobs.store().transact("stall", |tx| async move {
            let mut header = jobs.header(&tx, &self.ty, id).await?;
            let mut effects = jobs.effects(&tx, op.now_ms).await?;
            let event = Event::Stall {
                verdict: Verdict::Policy,
                policy: TypeConfig::new(1).stalls,
            };
            effects.run(&self.ty, id, &mut header, event)?;
            effects.flush(op).await.map(drop)
        });
        stall.await.unwrap();
    }

    async fn check(&self) {
        let check = self.jobs.check(&self.ty).await.unwrap();
        assert!(check.problems.is_empty(), "{:?}", check.problems);
    }

    /// What a job waits for.
    async fn waits_for(&self, id: &str) -> Option<String> {
        let info = self.jobs.info(&self.ty, &job_id(id)).await.unwrap();
        Some(info?.waits_for?.to_string())
    }
}

fn job_id(id: &str) -> JobId {
    JobId::new(id.to_owned()).unwrap()
}

fn limit_name(name: &str) -> LimitName {
    name.try_into().unwrap()
}

fn key(name: &'static str) -> impl FnOnce(Add) -> Add {
    move |add| add.key(limit_name(name))
}

fn pool(name: &'static str) -> impl FnOnce(Add) -> Add {
    move |add| add.pool(limit_name(name))
}

fn ids(accepted: &[Accepted]) -> Vec<String> {
    accepted.iter().map(|a| a.job.id.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_key_run_one_after_another() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.add(id, key("target|x")).await;
    }
    world.add("d", key("target|y")).await;
    let mut order = Vec::new();
    let first = world.claim().await;
    assert_eq!(first.len(), 2);
    let (d, mut running): (Vec<_>, Vec<_>) =
        (first.into_iter()).partition(|a| a.job.id == job_id("d"));
    world.finish(&d[0], Finish::done()).await;
    while let Some(run) = running.pop() {
        order.push(run.job.id.clone());
        let waiting = (["a", "b", "c"].into_iter()).filter(|id| !order.contains(&job_id(id)));
        for id in waiting {
            assert_eq!(world.waits_for(id).await.as_deref(), Some("target|x"));
        }
        // Waiting is no attempt.
        assert_eq!(run.job.attempt, 1);
        world.finish(&run, Finish::done()).await;
        running = world.claim().await;
        assert!(running.len() <= 1);
    }
    assert_eq!(order.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_in_any_way_frees_its_slots() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(1)).await;
    for end in ["done", "again", "stalled", "dead", "removed"] {
        world.add("first", |add| pool("pool")(key("k")(add))).await;
        let run = world.claim().await.remove(0);
        world.add("second", pool("pool")).await;
        assert!(world.claim().await.is_empty(), "{end}");
        match end {
            "done" => world.finish(&run, Finish::done()).await,
            "again" => world.finish(&run, Finish::again(i64::MAX)).await,
            "dead" => world.finish(&run, Finish::dead("why")).await,
            "stalled" => world.stall(&run).await,
            _ => world.jobs.remove(&world.ty, &run.job.id).await.unwrap(),
        }
        world.check().await;
        let next = world.claim().await;
        let second = next.iter().find(|a| a.job.id == job_id("second"));
        world.finish(second.expect(end), Finish::done()).await;
        for run in world.claim().await {
            world.finish(&run, Finish::done()).await;
        }
        let _ = world.jobs.remove(&world.ty, &job_id("first")).await;
    }
    let cleared = world.jobs.clear_cold(&world.ty, None).await;
    assert_eq!(cleared.unwrap(), None);
    assert!(
        world
            .jobs
            .rows(world.jobs.keys().all_slots(&world.ty))
            .await
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn a_holder_can_go_on_without_its_slots() {
    let world = World::new().await;
    world.add("a", key("k")).await;
    let first = world.claim().await.remove(0);
    let _held = world.jobs.release_limits(&first.job).await.unwrap();
    assert!(world.jobs.retake_limits(&first.job).await.unwrap());
    world.check().await;
    world.add("b", key("k")).await;
    assert!(world.claim().await.is_empty());
    let waited_for = || async {
        let names = [limit_name("k"), limit_name("l")];
        let waited_for = world.jobs.limits_waited_for(&world.ty, &names).await;
        waited_for.unwrap()
    };
    assert_eq!(waited_for().await, [true, false]);
    for _ in 0..2 {
        let held = world.jobs.release_limits(&first.job).await.unwrap();
        assert!(!held.again);
        world.check().await;
    }
    assert_eq!(waited_for().await, [false, false]);
    let second = world.claim().await.remove(0);
    assert_ne!(second.job.id, first.job.id);
    assert!(!world.jobs.retake_limits(&first.job).await.unwrap());
    world.check().await;
    // It has to wait for its turn, as others do.
    world.finish(&first, Finish::again(0)).await;
    assert!(world.claim().await.is_empty());
    world.finish(&second, Finish::done()).await;
    assert_eq!(world.claim().await[0].job.id, first.job.id);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_can_change_the_limits_of_the_next() {
    let world = World::new().await;
    world.add("a", key("k")).await;
    let run = world.claim().await.remove(0);
    assert_eq!(run.limits.key, Some(limit_name("k")));
    let limits = Limits {
        key: None,
        pool: Some(limit_name("p")),
    };
    let finish = Finish {
        limits: Some(limits.clone()),
        ..Finish::again(0)
    };
    world.finish(&run, finish).await;
    world.add("b", key("k")).await;
    let runs = world.claim().await;
    assert_eq!(ids(&runs), ["a", "b"]);
    assert_eq!(runs[0].limits, limits);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_its_pool_keeps_its_key() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(1)).await;
    world.add("a", pool("pool")).await;
    let a = world.claim().await.remove(0);
    world.add("b", |add| pool("pool")(key("k")(add))).await;
    assert!(world.claim().await.is_empty());
    assert_eq!(world.waits_for("b").await.as_deref(), Some("pool"));
    world.add("c", key("k")).await;
    assert!(world.claim().await.is_empty());
    assert_eq!(world.waits_for("c").await.as_deref(), Some("k"));
    world.finish(&a, Finish::done()).await;
    let b = world.claim().await;
    assert_eq!(ids(&b), ["b"]);
    world.finish(&b[0], Finish::done()).await;
    assert_eq!(ids(&world.claim().await), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_job_can_be_removed_postponed_and_moved_to_another_limit() {
    let world = World::new().await;
    world.add("a", key("k")).await;
    let a = world.claim().await.remove(0);
    for id in ["b", "c", "d", "e"] {
        world.add(id, key("k")).await;
        assert!(world.claim().await.is_empty());
    }
    // Adding it again as it is does not lose its turn.
    world.add("b", |add| key("k")(add).due_ms(-3)).await;
    assert_eq!(world.waits_for("b").await.as_deref(), Some("k"));
    world.jobs.remove(&world.ty, &job_id("b")).await.unwrap();
    world.check().await;
    world.add("c", |add| key("k")(add).due_ms(i64::MAX)).await;
    assert_eq!(world.waits_for("c").await, None);
    world.add("d", key("other")).await;
    assert_eq!(ids(&world.claim().await), ["d"]);
    world.finish(&a, Finish::done()).await;
    // The job that has been given the slot is postponed: the slot goes to the next.
    world.add("f", key("k")).await;
    assert!(world.claim().await.len() == 1);
    world.add("e", |add| key("k")(add).due_ms(i64::MAX)).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_given_a_slot_and_postponed_passes_it_on() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.add(id, |add| key("k")(add)).await;
    }
    let first = world.claim().await.remove(0);
    world.finish(&first, Finish::done()).await;
    let rest = ["a", "b", "c"]
        .into_iter()
        .filter(|id| job_id(id) != first.job.id);
    let rest: Vec<&str> = rest.collect();
    let mut granted = None;
    for id in &rest {
        if world.waits_for(id).await.is_none() {
            granted = Some(*id);
        }
    }
    let granted = granted.expect("one of them has the slot");
    world
        .add(granted, |add| key("k")(add).due_ms(i64::MAX))
        .await;
    let run = world.claim().await;
    assert_eq!(run.len(), 1);
    assert_ne!(run[0].job.id, job_id(granted));
}

#[tokio::test(start_paused = true)]
async fn limits_change_while_jobs_run() {
    let world = World::new().await;
    let names: Vec<String> = (0..9).map(|n| format!("job-{n}")).collect();
    world.set("pool", Limit::at_once(4)).await;
    for id in &names {
        world.add(id, pool("pool")).await;
    }
    let mut running = world.claim().await;
    assert_eq!(running.len(), 4);
    world.set("pool", Limit::at_once(2)).await;
    for left in [3, 2] {
        world.finish(&running.remove(1), Finish::done()).await;
        assert!(world.claim().await.is_empty(), "{left} still run");
    }
    world.finish(&running.remove(0), Finish::done()).await;
    running.extend(world.claim().await);
    assert_eq!(running.len(), 2);
    world.set("pool", Limit::at_once(5)).await;
    running.extend(world.claim().await);
    assert_eq!(running.len(), 5);
    world.set("pool", Limit::at_once(0)).await;
    for run in running {
        world.finish(&run, Finish::done()).await;
    }
    assert!(world.claim().await.is_empty());
    let name = limit_name("pool");
    let usage = world.jobs.limit_use(&world.ty, &name).await.unwrap();
    assert_eq!((usage.jobs.len(), usage.waiting), (0, 1));
    world.set("pool", Limit::at_once(1)).await;
    assert_eq!(world.claim().await.len(), 1);
}

/// A node that raises a limit may die before it has served the jobs that wait.
#[tokio::test(start_paused = true)]
async fn maintenance_serves_jobs_that_wait_for_free_slots() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(0)).await;
    world.add("a", pool("pool")).await;
    assert!(world.claim().await.is_empty());
    let (jobs, op, ty, name) = (
        &world.jobs,
        &world.jobs.op(),
        &world.ty,
        &limit_name("pool"),
    );
    let raised = jobs.store().transact("set_limit", |tx| async move {
        let limit = Some(Limit::at_once(1));
        jobs.set_limit_in(&tx, op, ty, name, limit).await
    });
    raised.await.unwrap();
    let check = jobs.check(&world.ty).await.unwrap();
    assert_eq!(
        check.problems,
        ["jobs wait for limit pool, which has free slots"]
    );
    let service = crate::Maintenance::new(jobs.clone(), crate::Options::default());
    let stop = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(service.serve(world.ty.clone()).run(stop.clone()));
    while world
        .jobs
        .accept(&world.ty, &world.me, 1)
        .await
        .unwrap()
        .jobs
        .is_empty()
    {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_group_has_one_setting() {
    let world = World::new().await;
    world.set("customer", Limit::at_once(2)).await;
    for id in ["a1", "a2", "a3"] {
        world.add(id, key("customer|a")).await;
    }
    for id in ["b1", "b2", "b3"] {
        world.add(id, key("customer|b")).await;
    }
    assert_eq!(world.claim().await.len(), 4);
    world.set("customer", Limit::at_once(3)).await;
    assert_eq!(world.claim().await.len(), 2);
    let limits = world.jobs.limits(&world.ty).await.unwrap();
    assert_eq!(limits, [(limit_name("customer"), Limit::at_once(3))].into());
}

#[tokio::test(start_paused = true)]
async fn a_signal_does_not_cost_a_job_its_turn() {
    let world = World::new().await;
    world.set("api", Limit::per(1, 10_000)).await;
    for id in ["a", "b", "c"] {
        world.add(id, key("api")).await;
        world.claim().await;
    }
    let signal = crate::Signal::new(job_id("b"));
    world.jobs.signal(&world.ty, signal).await.unwrap();
    world.check().await;
    assert!(world.claim().await.is_empty());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(ids(&world.claim().await), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn impossible_limits_are_rejected() {
    let world = World::new().await;
    for limit in [Limit::at_once(10_001), Limit::per(1, 0)] {
        let name = limit_name("x");
        let set = world.jobs.set_limit(&world.ty, &name, Some(limit)).await;
        assert!(set.is_err());
    }
    assert!(LimitName::new("").is_err());
    assert!(LimitName::new(vec![b'x'; crate::LIMIT_BYTES_MAX + 1]).is_err());
}

#[tokio::test(start_paused = true)]
async fn jobs_behind_a_limit_do_not_delay_others() {
    let world = World::new().await;
    for n in 0..300 {
        world.add(&format!("job-{n}"), key("k")).await;
    }
    world.add("other", |add| add).await;
    // A claim moves those it finds behind the limit, and looks at others in the same transaction.
    let mut claims = 0;
    loop {
        claims += 1;
        let claimed = world.jobs.accept(&world.ty, &world.me, 1).await.unwrap();
        if claimed.jobs.iter().any(|a| a.job.id == job_id("other")) {
            break;
        }
        assert!(claims < 40);
    }
    let state = world
        .jobs
        .info(&world.ty, &job_id("job-1"))
        .await
        .unwrap()
        .unwrap()
        .state;
    assert!(matches!(state, State::Pending | State::Running));
}
