//! Rows of limits and of jobs with limits that cannot be decoded.

use super::{World, ids, job_id, key, limit_name};
use crate::{
    Accepted, Add, Class, Entropy, Error, Finish, Jobs, Limit, Sharing, State, Tenant, TypeConfig,
};

const GARBAGE: &[u8] = b"\xffnonsense";

impl World {
    async fn write(&self, row: Vec<u8>, value: &[u8]) {
        let row = &row;
        let written = self.jobs.store().transact("damage", |tx| async move {
            tx.set(row, value);
            Ok::<_, Error>(())
        });
        written.await.unwrap();
    }

    async fn damage_job(&self, id: &str) {
        let row = self.jobs.keys().job(&self.ty, &job_id(id));
        self.write(row, GARBAGE).await;
    }

    async fn problems(&self) -> Vec<String> {
        self.jobs.check(&self.ty).await.unwrap().problems
    }

    /// Another process, which has read nothing yet.
    fn restarted(&self) -> Self {
        let (store, clock) = (self.jobs.store().clone(), self.jobs.clock().clone());
        let jobs = Jobs::new(store, clock, Entropy::seeded(2));
        let (ty, me) = (self.ty.clone(), self.me.clone());
        Self { jobs, ty, me }
    }

    /// [`Self::claim`], while some rows are damaged.
    async fn claim_some(&self) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        loop {
            let claimed = self.jobs.accept(&self.ty, &self.me, 3).await.unwrap();
            if claimed.is_idle() {
                return accepted;
            }
            accepted.extend(claimed.jobs);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_job_that_cannot_be_decoded_blocks_no_other() {
    for raised in [false, true] {
        let world = World::new().await;
        let mut runs = Vec::new();
        for id in ["a", "b", "c"] {
            world.add(id, key("k")).await;
            runs.extend(world.claim().await);
        }
        assert_eq!(ids(&runs), ["a"]);
        world.damage_job("b").await;
        if raised {
            let (name, limit) = (limit_name("k"), Some(Limit::at_once(2)));
            let set = world.jobs.set_limit(&world.ty, &name, limit).await;
            set.unwrap();
        } else {
            let end = world.jobs.finish(&runs[0].job, Finish::done()).await;
            let _held = end.unwrap();
        }
        let c = world.claim_some().await;
        assert_eq!(ids(&c), ["c"], "{raised}");
        let quarantined = world.jobs.quarantined(&world.ty).await.unwrap();
        assert_eq!(quarantined, [job_id("b")]);
        let removed = world.jobs.remove(&world.ty, &job_id("b")).await;
        removed.unwrap();
        world.finish(&c[0], Finish::done()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_passes_over_few_jobs_that_cannot_be_decoded() {
    let world = World::new().await;
    let damaged = (0..300).map(|n| format!("b-{n}"));
    let damaged: Vec<_> = damaged.collect();
    world.add("a", key("k")).await;
    let run = world.claim().await.remove(0);
    let add = |id: &str| Add::new(job_id(id), "data").key(limit_name("k"));
    for id in &damaged {
        world.jobs.add(&world.ty, add(id)).await.unwrap();
    }
    assert!(world.claim_some().await.is_empty());
    world.add("c", key("k")).await;
    assert!(world.claim_some().await.is_empty());
    for id in &damaged {
        world.damage_job(id).await;
    }
    let _held = world.jobs.finish(&run.job, Finish::done()).await.unwrap();
    let quarantined = world.jobs.quarantined(&world.ty).await.unwrap().len();
    assert!((1..50).contains(&quarantined), "{quarantined}");
    let served = world.jobs.serve_limit(&world.ty, &limit_name("k")).await;
    served.unwrap();
    assert_eq!(ids(&world.claim_some().await), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_cannot_be_decoded_is_in_use_until_its_run_ends() {
    for limit in [Limit::at_once(1), Limit::at_once(2), Limit::per(2, 10_000)] {
        let world = World::new().await;
        world.set("k", Limit::at_once(limit.max)).await;
        for id in ["a", "b"].into_iter().take(limit.max as usize) {
            world.add(id, key("k")).await;
        }
        let runs = world.claim().await;
        assert_eq!(runs.len(), limit.max as usize);
        for (id, name) in [("c", "k"), ("d", "l")] {
            world.add(id, key(name)).await;
        }
        let slot = world.jobs.keys().slot(&world.ty, b"k", 0);
        world.write(slot, GARBAGE).await;
        if limit.per_ms.is_some() {
            let name = limit_name("k");
            let set = world.jobs.set_limit(&world.ty, &name, Some(limit)).await;
            set.unwrap();
        }
        let started = ids(&world.claim_some().await);
        assert!(started.contains(&"d".to_owned()));
        // Under a rate, the slot of b is free, because its run does not count.
        let is_rate = limit.per_ms.is_some();
        assert_eq!(started.contains(&"c".to_owned()), is_rate);
        let problems = world.problems().await;
        let known = "slot 0 of limit k cannot be decoded";
        let reported = problems.iter().any(|problem| problem.starts_with(known));
        assert_eq!(reported, !is_rate);
        for run in &runs {
            let _held = world.jobs.finish(&run.job, Finish::done()).await.unwrap();
        }
        world.claim_some().await;
        let last = world.jobs.info(&world.ty, &job_id("c")).await.unwrap();
        assert_eq!(last.unwrap().state, State::Running);
        world.check().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_rate_that_cannot_be_decoded_is_free_after_a_period() {
    let world = World::new().await;
    world.set("k", Limit::per(1, 10_000)).await;
    world.add("a", key("k")).await;
    let run = world.claim().await.remove(0);
    world.finish(&run, Finish::done()).await;
    let slot = world.jobs.keys().slot(&world.ty, b"k", 0);
    world.write(slot, GARBAGE).await;
    let add = Add::new(job_id("b"), "data").key(limit_name("k"));
    world.jobs.add(&world.ty, add).await.unwrap();
    assert!(world.claim_some().await.is_empty());
    let served = world.jobs.serve_limit(&world.ty, &limit_name("k")).await;
    served.unwrap();
    assert!(world.claim().await.is_empty());
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    assert_eq!(ids(&world.claim().await), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_setting_that_cannot_be_decoded_counts_as_none_and_can_be_replaced() {
    let world = World::new().await;
    let damage = async || {
        world.set("k", Limit::at_once(3)).await;
        let row = world.jobs.keys().limit(&world.ty, b"k");
        world.write(row, GARBAGE).await;
        world.restarted()
    };
    for id in ["a", "b", "c"] {
        world.add(id, key("k")).await;
    }
    let restarted = damage().await;
    assert_eq!(ids(&restarted.claim_some().await).len(), 1);
    assert_eq!(
        restarted.problems().await,
        ["the setting of limit k cannot be decoded"]
    );
    let (ty, name) = (&restarted.ty, &limit_name("k"));
    let two = Some(Limit::at_once(2));
    restarted.jobs.set_limit(ty, name, two).await.unwrap();
    assert_eq!(ids(&restarted.claim().await).len(), 1);
    let restarted = damage().await;
    restarted.jobs.set_limit(ty, name, None).await.unwrap();
    restarted.check().await;
    let (jobs, op) = (&damage().await.jobs, &restarted.jobs.op());
    let replaced = jobs.store().transact("replace", |tx| async move {
        jobs.replace_limits_in(&tx, op, ty, &[].into()).await
    });
    replaced.await.unwrap();
    restarted.check().await;
}

#[tokio::test(start_paused = true)]
async fn accounts_and_shares_that_cannot_be_decoded_affect_one_tenant_only() {
    let world = World::new().await;
    let config = TypeConfig {
        sharing: Sharing::On,
        ..TypeConfig::new(30_000)
    };
    world.jobs.set_type(&world.ty, config).await.unwrap();
    let tenant = |name: &'static str| Tenant::new(name).unwrap();
    for n in 0..40 {
        for name in ["a", "b"] {
            let add = |add: Add| add.tenant(tenant(name));
            world.add(&format!("{name}-{n}"), add).await;
        }
    }
    let (keys, ty) = (world.jobs.keys(), &world.ty);
    for row in [
        keys.vtime(ty, b"a"),
        keys.shares(ty, b"a"),
        keys.last_vtime(ty),
    ] {
        world.write(row, b"odd").await;
    }
    let odd_keys = [
        keys.vtimes(ty),
        keys.all_shares(ty),
        keys.turns(ty, Some(Class::Normal)),
    ]
    .map(|all| [&*all.begin, b"odd"].concat());
    for row in &odd_keys {
        world.write(row.clone(), b"odd").await;
    }
    // A listing writes nothing.
    assert_eq!(world.jobs.tenants(ty, None, 10).await.unwrap().len(), 1);
    assert_eq!(world.problems().await.len(), 6);
    let returning = Add::new(job_id("c"), "data").tenant(tenant("c"));
    world.jobs.add(ty, returning).await.unwrap();
    world.jobs.remove(ty, &job_id("c")).await.unwrap();
    let mut of_a = 0;
    for _ in 0..10 {
        let run = world
            .jobs
            .accept(ty, &world.me, 1)
            .await
            .unwrap()
            .jobs
            .remove(0);
        of_a += usize::from(run.job.id.to_string().starts_with('a'));
        let _held = world.jobs.finish(&run.job, Finish::done()).await.unwrap();
    }
    assert!((4..=6).contains(&of_a), "{of_a}");
    let served = world.jobs.tenants(ty, None, 10).await.unwrap();
    assert_eq!(served.len(), 2);
    let shares = [(tenant("b"), 50)].into();
    world.jobs.replace_shares(ty, &shares).await.unwrap();
    let cleared = world.jobs.store().transact("test", |tx| {
        let odd_keys = &odd_keys;
        async move {
            for row in odd_keys {
                tx.clear(row);
            }
            Ok::<_, Error>(())
        }
    });
    cleared.await.unwrap();
    world.check().await;
}

#[tokio::test(start_paused = true)]
async fn slots_of_jobs_removed_from_quarantine_are_freed() {
    let world = World::new().await;
    for id in ["a", "b"] {
        world.add(id, key("k")).await;
    }
    let run = world.claim().await.remove(0);
    world.finish(&run, Finish::done()).await;
    let b = ["a", "b"]
        .into_iter()
        .find(|id| job_id(id) != run.job.id)
        .unwrap();
    world.damage_job(b).await;
    assert!(world.claim_some().await.is_empty());
    world.jobs.remove(&world.ty, &job_id(b)).await.unwrap();
    let add = Add::new(job_id("c"), "data").key(limit_name("k"));
    world.jobs.add(&world.ty, add).await.unwrap();
    assert!(world.claim_some().await.is_empty());
    world.jobs.free_orphans(&world.ty, None).await.unwrap();
    assert_eq!(ids(&world.claim().await), ["c"]);
    world.check().await;
}
