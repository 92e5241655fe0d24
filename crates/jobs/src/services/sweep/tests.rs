//! Expiry keeps up with finishing, on LMDB.

use testkit::Backend;
use tokio::sync::watch;

use super::*;
use crate::operations::leases::Leases;
use crate::services::duties::Held;
use crate::{
    Add, Clock, Entropy, Finish, Holder, JobId, Maintenance, Options, Retention, TypeConfig,
};

/// Jobs that finish per simulated second, for how many seconds, and how long they are kept.
const FINISHED: usize = 4_000;
const SECONDS: usize = 20;
const KEPT_SECONDS: usize = 3;

#[tokio::test]
async fn expiry_keeps_up_with_finishing() {
    let place = Backend::Lmdb.place().unwrap();
    let store = store::Store::open(&place.url).await.unwrap();
    let clock = Clock::simulated(1_700_000_000_000);
    let jobs = &Jobs::new(store, clock.clone(), Entropy::seeded(1));
    let (ty, me) = (&JobType::new("mail").unwrap(), Holder::new("me").unwrap());
    jobs.set_type(ty, TypeConfig::new(60_000)).await.unwrap();
    let mut leases = Leases::new(1);
    let order = leases.turn(jobs, ty, Duration::MAX).await.unwrap();
    let held = Held {
        leases: leases.held().to_vec(),
        order: Some(order),
        ahead_ms: 0,
    };
    let mut expiry = Expiry::new(jobs, ty, watch::channel(held).1);
    let kept = Retention::Ms(1_000 * KEPT_SECONDS as u64);
    for second in 1..=SECONDS {
        let add = |n| {
            let id = JobId::new(format!("{second}/{n}")).unwrap();
            Add::new(id, "").retention(kept)
        };
        let adds: Vec<Add> = (0..FINISHED).map(add).collect();
        jobs.add_many(ty, &adds).await.unwrap();
        let mut finished = 0;
        while finished < FINISHED {
            let claimed = jobs.accept(ty, &me, 500).await.unwrap().jobs;
            let ends = claimed.into_iter().map(|held| (held.job, Finish::done()));
            let ends: Vec<_> = ends.collect();
            finished += jobs.finish_many(&ends).await.unwrap().len();
        }
        clock.set_skew_ms(1_000 * i64::try_from(second).unwrap());
        // Turns in a row, while none waits.
        let token = CancellationToken::new();
        while expiry.turn(&token).await.unwrap().is_zero() {}
        let left = jobs.counts(ty).await.unwrap().finished;
        let bound = (KEPT_SECONDS + 1) * FINISHED;
        assert!(left <= bound as u64, "{left} are left after {second} s");
    }
    let check = jobs.check(ty).await.unwrap();
    assert_eq!(check.problems, Vec::<String>::new());
}

/// A node with a fast clock removes no job early while another node exists.
#[tokio::test(start_paused = true)]
async fn a_fast_clock_expires_nothing_early() {
    const MINUTE: Duration = Duration::from_mins(1);
    let store = store::Store::open("memory:").await.unwrap();
    let queue = |skew_ms, seed| {
        let clock = Clock::simulated(1_700_000_000_000);
        clock.set_skew_ms(skew_ms);
        Jobs::new(store.clone(), clock, Entropy::seeded(seed))
    };
    let (jobs, fast) = (queue(0, 1), queue(3_600_000, 2));
    let (ty, me) = (&JobType::new("mail").unwrap(), Holder::new("me").unwrap());
    jobs.set_type(ty, TypeConfig::new(60_000)).await.unwrap();
    let stop = CancellationToken::new();
    let mut services = tokio::task::JoinSet::new();
    for node in [&jobs, &fast] {
        let service = Maintenance::new(node.clone(), Options::default());
        services.spawn(service.serve(ty.clone()).run(stop.clone()));
        tokio::time::sleep(MINUTE * 5).await;
    }
    let adds = (0..100).map(|n| Add::new(JobId::new(format!("{n}")).unwrap(), ""));
    let adds: Vec<Add> = adds
        .map(|add| add.retention(Retention::Ms(1_800_000)))
        .collect();
    jobs.add_many(ty, &adds).await.unwrap();
    let claimed = jobs.accept(ty, &me, 100).await.unwrap().jobs;
    let ends: Vec<_> = claimed
        .into_iter()
        .map(|held| (held.job, Finish::done()))
        .collect();
    assert_eq!(jobs.finish_many(&ends).await.unwrap().len(), 100);
    for (minutes, left) in [(25, 100), (10, 0)] {
        tokio::time::sleep(MINUTE * minutes).await;
        assert_eq!(jobs.counts(ty).await.unwrap().finished, left);
    }
    stop.cancel();
    services.join_all().await;
}
