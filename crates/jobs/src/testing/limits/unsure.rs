//! Calls of which the store cannot tell whether they were committed.

use std::time::Duration;

use store::{CommitFate, FaultControl, Faults};

use super::{World, pool};
use crate::{Entropy, Finish, Jobs, Limit};

impl World {
    /// Another handle of the same queue, whose store can fail.
    fn faulty(&self, seed: u64) -> (Jobs, FaultControl) {
        let (store, control) = self.jobs.store().with_faults(Faults::default());
        let clock = self.jobs.clock().clone();
        (Jobs::new(store, clock, Entropy::seeded(seed)), control)
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
