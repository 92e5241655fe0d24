//! Limits that are lowered or removed while more jobs run than they allow from then on.

use super::{World, ids, key, limit_name, pool};
use crate::{Finish, Limit};

/// The stored setting: the maximum, and up to which number slots may be taken.
async fn stored(world: &World, name: &str) -> Option<(u32, u32, bool)> {
    let (jobs, ty) = (&world.jobs, &world.ty);
    let rules = (jobs.store())
        .transact("look", |tx| async move { jobs.limit_rules(&tx, ty).await })
        .await
        .unwrap();
    let rule = rules.by_name.get(name.as_bytes());
    rule.map(|rule| (rule.limit.max, rule.over, rule.removed))
}

#[tokio::test(start_paused = true)]
async fn removing_a_setting_admits_no_more_than_one() {
    let world = World::new().await;
    world.set("k", Limit::at_once(3)).await;
    for id in ["a", "b", "c", "d"] {
        world.add(id, key("k")).await;
    }
    let runs = world.claim().await;
    assert_eq!(runs.len(), 3);
    let (jobs, ty) = (&world.jobs, &world.ty);
    jobs.set_limit(ty, &limit_name("k"), None).await.unwrap();
    world.check().await;
    assert!(jobs.limits(ty).await.unwrap().is_empty());
    assert_eq!(stored(&world, "k").await, Some((1, 3, true)));

    for run in &runs[..2] {
        world.finish(run, Finish::done()).await;
        jobs.relax_limits(ty).await.unwrap();
        world.check().await;
        assert!(world.claim().await.is_empty());
    }
    world.finish(&runs[2], Finish::done()).await;
    assert_eq!(world.claim().await.len(), 1);
    jobs.relax_limits(ty).await.unwrap();
    world.check().await;
    assert_eq!(stored(&world, "k").await, None);
    world.add("e", key("k")).await;
    assert!(world.claim().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_forgets_what_it_was() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(3)).await;
    for id in ["a", "b", "c"] {
        world.add(id, pool("pool|x")).await;
    }
    let runs = world.claim().await;
    world.set("pool", Limit::at_once(1)).await;
    let (jobs, ty) = (&world.jobs, &world.ty);
    jobs.relax_limits(ty).await.unwrap();
    assert_eq!(stored(&world, "pool").await, Some((1, 3, false)));
    for run in &runs {
        world.finish(run, Finish::done()).await;
    }
    jobs.relax_limits(ty).await.unwrap();
    assert_eq!(stored(&world, "pool").await, Some((1, 0, false)));
    world.check().await;
}

/// Otherwise more would run than either setting allows.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_lowered_waits_for_runs_of_limits_without_a_setting_of_their_own() {
    let world = World::new().await;
    world.set("g", Limit::at_once(4)).await;
    world.set("g|a", Limit::at_once(6)).await;
    let (jobs, ty) = (&world.jobs, &world.ty);
    jobs.set_limit(ty, &limit_name("g|a"), None).await.unwrap();
    world.set("g", Limit::at_once(9)).await;
    for n in 0..10 {
        world.add(&format!("job-{n}"), key("g|a")).await;
    }
    let runs = world.claim().await;
    assert_eq!(runs.len(), 9);
    world.set("g", Limit::at_once(2)).await;
    jobs.relax_limits(ty).await.unwrap();
    assert_eq!(stored(&world, "g").await, Some((2, 9, false)));
    assert!(stored(&world, "g|a").await.is_some());
    for run in &runs[..7] {
        world.finish(run, Finish::done()).await;
        assert!(world.claim().await.is_empty());
    }
    for run in &runs[7..] {
        world.finish(run, Finish::done()).await;
    }
    jobs.relax_limits(ty).await.unwrap();
    assert_eq!(stored(&world, "g").await, Some((2, 0, false)));
    assert_eq!(stored(&world, "g|a").await, None);
}

/// The simulation found this.
#[tokio::test(start_paused = true)]
async fn a_job_with_a_slot_waits_again_if_the_limit_is_lowered_before_it_starts() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(2)).await;
    for id in ["a", "b"] {
        world.add(id, pool("pool")).await;
    }
    let runs = world.claim().await;
    world.add("c", |add| key("k")(pool("pool")(add))).await;
    assert!(world.claim().await.is_empty());
    world.finish(&runs[0], Finish::done()).await;
    world.set("pool", Limit::at_once(1)).await;
    assert!(world.claim().await.is_empty(), "b runs, and c has its slot");
    assert_eq!(world.waits_for("c").await.as_deref(), Some("pool"));
    world.finish(&runs[1], Finish::done()).await;
    world.set("pool", Limit::at_once(0)).await;
    assert!(world.claim().await.is_empty(), "nothing runs any more");
    world.set("pool", Limit::at_once(1)).await;
    assert_eq!(ids(&world.claim().await), ["c"]);
}

/// Otherwise others would wait for its pool, and it for its key.
#[tokio::test(start_paused = true)]
async fn a_job_that_gives_its_key_back_gives_its_pool_back() {
    let world = World::new().await;
    world.set("k", Limit::at_once(2)).await;
    world.add("x", key("k")).await;
    world.add("p", pool("pool")).await;
    let runs = world.claim().await;
    assert_eq!(ids(&runs), ["p", "x"]);
    world.add("y", |add| key("k")(pool("pool")(add))).await;
    assert!(world.claim().await.is_empty());
    world.add("z", pool("pool")).await;
    assert!(world.claim().await.is_empty());
    world.finish(&runs[0], Finish::done()).await;
    assert_eq!(world.waits_for("y").await, None, "it has both slots");
    world.set("k", Limit::at_once(1)).await;
    assert_eq!(ids(&world.claim().await), ["z"]);
    assert_eq!(world.waits_for("y").await.as_deref(), Some("k"));
}

/// A rate that was lowered does not start the jobs for which it had booked slots.
#[tokio::test(start_paused = true)]
async fn a_lowered_rate_starts_no_more_than_it_allows() {
    let world = World::new().await;
    world.set("api", Limit::per(3, 10_000)).await;
    for id in ["a", "b", "c", "d", "e", "f"] {
        world.add(id, key("api")).await;
    }
    assert_eq!(world.claim().await.len(), 3);
    world.set("api", Limit::per(1, 10_000)).await;
    for left in [2, 1, 0] {
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(world.claim().await.len(), 1, "{left} are left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shorter_period_lets_jobs_start_earlier() {
    let world = World::new().await;
    world.set("api", Limit::per(2, 3_600_000)).await;
    for id in ["a", "b", "c", "d", "e"] {
        world.add(id, key("api")).await;
    }
    assert_eq!(world.claim().await.len(), 2);
    world.set("api", Limit::per(2, 10_000)).await;
    assert!(world.claim().await.is_empty());
    for left in [2, 1] {
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(world.claim().await.len(), left);
    }
}

/// When the slots of a rate are free again says nothing about concurrent runs.
#[tokio::test(start_paused = true)]
async fn a_rate_that_becomes_a_number_of_runs_holds_no_job_back() {
    for (before, after) in [(1, 1), (3, 2)] {
        let world = World::new().await;
        world.set("api", Limit::per(before, 3_600_000)).await;
        for id in ["a", "b", "c"] {
            world.add(id, key("api")).await;
        }
        let runs = world.claim().await;
        assert_eq!(runs.len(), before as usize);
        world.set("api", Limit::at_once(after)).await;
        for id in ["d", "e", "f", "g", "h"] {
            world.add(id, key("api")).await;
        }
        let mut runs = world.claim().await;
        for _ in 0..3 {
            assert_eq!(runs.len(), after as usize);
            let ended = runs.remove(0);
            world.finish(&ended, Finish::done()).await;
            runs.extend(world.claim().await);
        }
    }
}
