//! Claims and ends of runs that take and free slots at once.

use std::collections::BTreeSet;

use store::Transaction;

use super::{World, job_id, pool};
use crate::operations::limits::slots::Admission;
use crate::{Finish, Limit};

#[tokio::test(start_paused = true)]
async fn claims_at_once_take_different_slots() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(64)).await;
    world.add("job", pool("pool")).await;
    let (jobs, ty, op) = (&world.jobs, &world.ty, &world.jobs.op());
    let take = |tx: Transaction| async move {
        let header = jobs.header(&tx, ty, &job_id("job")).await?;
        let headers = vec![header.unwrap(); 30];
        let mut supplies = jobs.supplies(&tx, op, ty, headers.iter(), None).await?;
        let taken = headers.iter().flat_map(|header| {
            let Admission::Start(slots) = supplies.admit(header) else {
                panic!("there is no slot")
            };
            slots.taken
        });
        Ok::<_, crate::Error>(taken.collect::<BTreeSet<_>>())
    };
    let both = jobs.store().transact("one", |tx| async move {
        let other = jobs.store().transact("other", take).await?;
        Ok::<_, crate::Error>((take(tx).await?, other))
    });
    let (one, other) = both.await.unwrap();
    assert_eq!((one.len(), other.len()), (30, 30));
    assert!(one.is_disjoint(&other));
}

/// A claim that began to read before a slot was freed takes another one. It does not have to run again.
#[tokio::test(start_paused = true)]
async fn a_slot_that_is_freed_during_a_claim_is_no_conflict() {
    let world = World::new().await;
    world.set("pool", Limit::at_once(20)).await;
    let (jobs, ty) = (&world.jobs, &world.ty);
    // Few slots are read one by one, neighbours together.
    for runs in [1, 8] {
        for nth in 0..runs {
            world.add(&format!("{runs}-{nth}"), pool("pool")).await;
        }
        let running = world.claim().await;
        assert_eq!(running.len(), runs);
        for nth in 0..runs {
            world.add(&format!("next-{nth}"), pool("pool")).await;
        }
        let claim = &jobs.claim(ty, &world.me, runs);
        let ended: Vec<_> = (running.into_iter())
            .map(|accepted| (accepted.job, Finish::done()))
            .collect();
        let ended = &ended;
        let claimed = jobs.store().transact("claim", |tx| async move {
            assert_eq!(tx.attempt(), 1, "a conflict");
            assert!(jobs.header(&tx, ty, &job_id("next-0")).await?.is_some());
            for answer in jobs.finish_many(ended).await? {
                let _held = answer?;
            }
            jobs.accept_in(&tx, claim).await
        });
        let claimed = claimed.await.unwrap();
        assert_eq!(claimed.jobs.len(), runs);
        world.check().await;
        for accepted in &claimed.jobs {
            world.finish(accepted, Finish::done()).await;
        }
    }
}
