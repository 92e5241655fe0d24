//! Limits that are rates.

use std::time::Duration;

use super::{World, ids, job_id, key, pool};
use crate::{Add, Finish, Limit, LimitName};

#[tokio::test(start_paused = true)]
async fn a_rate_limits_starts_in_any_period() {
    let world = World::new().await;
    world.set("api", Limit::per(2, 10_000)).await;
    for n in 0..7 {
        world.add(&format!("job-{n}"), key("api")).await;
    }
    let clock = world.jobs.clock();
    let mut starts = Vec::new();
    for _ in 0..80 {
        for run in world.claim().await {
            starts.push(clock.now_ms() - 1_700_000_000_000);
            // The end of a run frees nothing.
            world.finish(&run, Finish::done()).await;
        }
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    assert_eq!(starts, [0, 0, 10_000, 10_000, 20_000, 20_000, 30_000]);
}

/// A claim keeps the clock that it read when it began. It must not start a job as if that was before the rate allowed it:
/// with a slot that was free already when a job gave it back, or when the next one was given it.
#[tokio::test(start_paused = true)]
async fn a_claim_of_long_ago_starts_nothing_too_early() {
    for waits in [false, true] {
        let world = World::new().await;
        world.set("api", Limit::per(1, 10_000)).await;
        for id in ["started", "booked"] {
            world.add(id, key("api")).await;
            world.claim().await;
        }
        tokio::time::advance(Duration::from_secs(5)).await;
        let early = world.jobs.claim(&world.ty, &world.me, 1);
        if waits {
            world.add("next", key("api")).await;
            assert!(world.claim().await.is_empty());
        }
        tokio::time::advance(Duration::from_secs(15)).await;
        let booked = job_id("booked");
        world.jobs.remove(&world.ty, &booked).await.unwrap();
        if !waits {
            world.add("next", key("api")).await;
        }
        let claimed = world.jobs.accept_claim(&early).await.unwrap();
        world.check().await;
        assert!(claimed.jobs.is_empty(), "{waits}");
        assert_eq!(ids(&world.claim().await), ["next"]);
    }
}

/// Slots of keys that no job uses again leave no rows, once they are free by any clock.
#[tokio::test(start_paused = true)]
async fn rows_of_rates_that_have_cooled_down_are_cleared() {
    let world = World::new().await;
    world.set("api", Limit::per(1, 10_000)).await;
    let slots = world.jobs.keys().all_slots(&world.ty);
    for n in 0..700 {
        let name = LimitName::new(format!("api|{n}")).unwrap();
        let add = Add::new(job_id(&format!("job-{n}")), "data").key(name);
        world.jobs.add(&world.ty, add).await.unwrap();
    }
    let started = world.jobs.accept(&world.ty, &world.me, 500).await.unwrap();
    let more = world.jobs.accept(&world.ty, &world.me, 500).await.unwrap();
    assert_eq!(started.jobs.len() + more.jobs.len(), 700);
    let clear = async || {
        let next = world.jobs.clear_cold(&world.ty, None).await.unwrap();
        let next = world
            .jobs
            .clear_cold(&world.ty, next.as_ref())
            .await
            .unwrap();
        assert_eq!(next, None);
        world.jobs.rows(slots.clone()).await.len()
    };
    assert_eq!(clear().await, 700);
    tokio::time::advance(Duration::from_mins(11)).await;
    world.add("late", key("api|5")).await;
    assert_eq!(world.claim().await.len(), 1);
    let _ = clear().await;
    assert_eq!(world.jobs.rows(slots).await.len(), 1);
}

/// Only starts count, so runs from before keep no slot of the rate.
#[tokio::test(start_paused = true)]
async fn runs_from_before_a_limit_became_a_rate_do_not_count() {
    for several in [1, 3] {
        let world = World::new().await;
        world.set("api", Limit::at_once(several)).await;
        for n in 0..=several {
            world.add(&format!("job-{n}"), key("api")).await;
        }
        let mut runs = world.claim().await;
        assert_eq!(runs.len(), several as usize);
        world.set("api", Limit::per(several, 10_000)).await;
        world.add("late", key("api")).await;
        runs.extend(world.claim().await);
        let late = usize::from(several > 1);
        assert_eq!(runs.len(), several as usize + 1 + late);
        for run in &runs {
            world.finish(run, Finish::done()).await;
        }
    }
}

/// Also if their slots were given to them for a time at which another limit let them start.
#[tokio::test(start_paused = true)]
async fn runs_that_were_booked_before_a_limit_became_a_rate_do_not_count() {
    let world = World::new().await;
    world.set("pool", Limit::per(1, 10_000)).await;
    world.add("first", pool("pool")).await;
    assert_eq!(ids(&world.claim().await), ["first"]);
    world
        .add("second", |add| pool("pool")(key("key")(add)))
        .await;
    assert_eq!(ids(&world.claim().await), [""; 0]);
    tokio::time::advance(Duration::from_secs(11)).await;
    let second = world.claim().await.remove(0);
    world.set("key", Limit::per(1, 1_000)).await;
    world.add("third", key("key")).await;
    assert_eq!(ids(&world.claim().await), ["third"]);
    world.finish(&second, Finish::done()).await;
}

/// Neither does one whose other limit is a rate, in which it has a slot that was free.
#[tokio::test(start_paused = true)]
async fn no_job_waits_for_a_rate_that_is_none_any_more() {
    let world = World::new().await;
    world.set("key", Limit::per(1, 10_000)).await;
    world.set("pool", Limit::per(1, 60_000)).await;
    world.add("first", pool("pool")).await;
    let first = world.claim().await.remove(0);
    world.finish(&first, Finish::done()).await;
    world.set("pool", Limit::at_once(0)).await;
    world
        .add("second", |add| pool("pool")(key("key")(add)))
        .await;
    assert_eq!(ids(&world.claim().await), [""; 0]);
    world.set("pool", Limit::per(1, 60_000)).await;
    assert_eq!(ids(&world.claim().await), [""; 0]);
    world.set("pool", Limit::at_once(1)).await;
    assert_eq!(ids(&world.claim().await), ["second"]);
    world.set("key", Limit::at_once(1)).await;
}
