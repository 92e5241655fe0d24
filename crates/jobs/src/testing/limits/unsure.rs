//! Calls with an unknown outcome.

use std::time::Duration;

use store::{CommitFate, FaultControl, Faults};

use super::{World, job_id, limit_name, pool};
use crate::{Add, Entropy, Finish, Jobs, Limit};

impl World {
    /// Another handle of the same queue, whose store can fail.
    fn faulty(&self, seed: u64) -> (Jobs, FaultControl) {
        let (store, control) = self.jobs.store().with_faults(Faults::default());
        let clock = self.jobs.clock().clone();
        (Jobs::new(store, clock, Entropy::seeded(seed)), control)
    }

    async fn accept_of(&self, jobs: &Jobs) -> usize {
        let claimed = jobs.accept(&self.ty, &self.me, 9).await.unwrap();
        claimed.jobs.len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_of_a_rate_is_taken_again_once() {
    let world = World::new().await;
    world.set("api", Limit::per(1, 3_600_000)).await;
    world.add("a", pool("api")).await;
    let run = world.claim().await.remove(0);
    let _held = world.jobs.release_limits(&run.job).await.unwrap();
    tokio::time::advance(Duration::from_hours(1)).await;
    let (jobs, control) = world.faulty(2);
    control.set_next_commit(CommitFate::UnknownApplied);
    assert!(jobs.retake_limits(&run.job).await.unwrap());
    world.check().await;
    let _held = jobs.release_limits(&run.job).await.unwrap();
    assert!(!jobs.retake_limits(&run.job).await.unwrap());
    // Its holder may have lost the job meanwhile.
    tokio::time::advance(Duration::from_hours(1)).await;
    control.set_next_commit(CommitFate::UnknownApplied);
    world.finish(&run, Finish::done()).await;
    assert!(jobs.retake_limits(&run.job).await.is_err());
}

/// A process that has read the settings in between notices that they have changed again.
#[tokio::test(start_paused = true)]
async fn settings_of_another_try_have_another_version() {
    let world = World::new().await;
    world.set("p", Limit::at_once(5)).await;
    for id in ["a", "b", "c", "d", "e"] {
        world.add(id, pool("p")).await;
    }
    let runs = world.claim().await;
    assert_eq!(runs.len(), 5);
    let (jobs, control) = &world.faulty(2);
    let (world, op, name) = (&world, &jobs.op(), &limit_name("p"));
    let (third, _) = &world.faulty(3);
    control.set_next_commit(CommitFate::UnknownApplied);
    let set = jobs.store().transact("set_limit", |tx| async move {
        if tx.attempt() == 2 {
            assert_eq!(world.accept_of(&world.jobs).await, 0);
            let raised = Some(Limit::at_once(8));
            third.set_limit(&world.ty, name, raised).await?;
            for id in ["f", "g", "h"] {
                let add = pool("p")(Add::new(job_id(id), ""));
                third.add(&world.ty, add).await?;
            }
            assert_eq!(world.accept_of(third).await, 3);
        }
        let one = Some(Limit::at_once(1));
        jobs.set_limit_in(&tx, op, &world.ty, name, one).await
    });
    set.await.unwrap();
    for run in &runs {
        world.finish(run, Finish::done()).await;
    }
    world.add("i", pool("p")).await;
    assert_eq!(world.accept_of(&world.jobs).await, 0);
    world.check().await;
}
