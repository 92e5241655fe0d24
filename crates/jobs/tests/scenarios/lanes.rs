//! Owners take turns: the many jobs of one do not block another's.

use jobs::{Add, Clock, Entropy, Jobs, Lane};

use crate::support::{Kind, Queue};

/// Jobs of the first owner, added before the other's.
fn many(queue: &Queue) -> u32 {
    match queue.kind {
        Kind::memory | Kind::lmdb => 10_000,
        Kind::faulty | Kind::fdb => 1_000,
    }
}

async fn flood(queue: &Queue, lane: Option<Lane>, due_ms: i64) {
    let adds: Vec<Add> = (0..many(queue))
        .map(|number| Add {
            lane,
            ..Add::new(queue.id(&format!("a{number}")), "").due_ms(due_ms)
        })
        .collect();
    queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
}

async fn add_of_bob(queue: &Queue, name: &str, data: &str, due_ms: i64) {
    let add = Add::new(queue.id(name), data.to_owned()).due_ms(due_ms);
    let add = add.lane(Lane::of(b"bob"));
    queue.jobs.add(&queue.ty, add).await.unwrap();
}

/// How many claims of `count` jobs it takes until a job is claimed.
async fn claims_until(jobs: &Jobs, queue: &Queue, name: &str, count: usize) -> u32 {
    for claim in 1..=50 {
        let claimed = jobs.accept(&queue.ty, &queue.me, count).await.unwrap();
        if (claimed.jobs.iter()).any(|accepted| accepted.job.id == queue.id(name)) {
            return claim;
        }
    }
    panic!("{name} was not claimed by 50 claims");
}

/// Another node, or this one after a restart.
fn another_handle(queue: &Queue, seed: u64) -> Jobs {
    let clock = if queue.paused() {
        Clock::simulated(1_000_000)
    } else {
        Clock::system()
    };
    Jobs::new(queue.store.clone(), clock, Entropy::seeded(seed))
}

pub(crate) async fn ready_jobs_of_owners_take_turns(queue: Queue) {
    flood(&queue, Some(Lane::of(b"anna")), 0).await;
    for (number, count) in [1, 1, 2, 16].into_iter().enumerate() {
        let name = format!("b{number}");
        add_of_bob(&queue, &name, "", 0).await;
        // Adding it again with other data does not move it back.
        add_of_bob(&queue, &name, "newer", 0).await;
        let claims = claims_until(&queue.jobs, &queue, &name, count).await;
        assert!(claims <= 2, "{claims} claims of {count}");
    }
    for seed in 0..8 {
        let name = format!("after restart {seed}");
        add_of_bob(&queue, &name, "", 0).await;
        let claims = claims_until(&another_handle(&queue, seed), &queue, &name, 1).await;
        assert!(claims <= 2, "{claims} claims after a restart");
    }
    queue.check().await;
}

pub(crate) async fn scheduled_jobs_of_owners_take_turns(queue: Queue) {
    let now_ms = queue.jobs.clock().now_ms();
    flood(&queue, Some(Lane::of(b"anna")), now_ms - 1_000).await;
    // Owners without due jobs take no turn.
    for number in 0..100_u32 {
        let add = Add::new(queue.id(&format!("later{number}")), "").due_ms(i64::MAX - 1);
        let add = add.lane(Lane::of(&number.to_be_bytes()));
        queue.jobs.add(&queue.ty, add).await.unwrap();
    }
    // One claim reads 16 of the lanes with scheduled jobs.
    let bound = 102 / 16 + 3;
    for number in 0..4 {
        let name = format!("b{number}");
        add_of_bob(&queue, &name, "", now_ms - 1).await;
        let claims = claims_until(&queue.jobs, &queue, &name, 1).await;
        assert!(claims <= bound, "{claims} claims");
    }
    add_of_bob(&queue, "ready", "", 0).await;
    let claims = claims_until(&another_handle(&queue, 7), &queue, "ready", 1).await;
    assert!(claims <= 4, "{claims} claims");
    // Without other jobs, a claim finds the due ones among many that are not.
    let rest = many(&queue) as usize;
    let mut left = rest;
    while left > 0 {
        let claimed = queue.jobs.accept(&queue.ty, &queue.me, 400).await.unwrap();
        if claimed.jobs.is_empty() {
            assert_eq!(claimed.next_due_ms, Some(i64::MAX - 1));
            break;
        }
        left = left.saturating_sub(claimed.jobs.len());
    }
    let counts = queue.jobs.counts(&queue.ty).await.unwrap();
    assert_eq!(counts.pending, 100);
    add_of_bob(&queue, "last", "", now_ms - 1).await;
    assert_eq!(claims_until(&queue.jobs, &queue, "last", 1).await, 1);
    queue.check().await;
}

pub(crate) async fn owners_take_turns_with_jobs_without_a_lane(queue: Queue) {
    flood(&queue, None, 0).await;
    for number in 0..4 {
        let name = format!("b{number}");
        add_of_bob(&queue, &name, "", 0).await;
        let claims = claims_until(&queue.jobs, &queue, &name, 1).await;
        assert!(claims <= 10, "{claims} claims");
    }
}
