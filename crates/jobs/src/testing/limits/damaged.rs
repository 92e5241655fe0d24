//! Rows of limits and of jobs with limits that cannot be decoded.

use super::{World, ids, job_id, key, limit_name};
use crate::{Accepted, Error, Finish, Limit};

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
