//! A race for a dead job.

use tokio::time::sleep;

use super::World;
use crate::{Finish, JobId};

impl World {
    /// A job that two callers retry becomes pending once.
    pub(super) async fn retry_twice(&self) -> Option<String> {
        let id = JobId::try_from("a").unwrap();
        self.add(&id, "").await;
        for job in self.accept_all().await {
            let dead = Finish::dead("it cannot work");
            let _ = self.calm.finish(&job, dead).await.unwrap();
        }
        let other = async {
            sleep(self.late).await;
            self.calm.retry(&self.ty, &id).await.unwrap();
        };
        let (retried, ()) = tokio::join!(self.jobs.retry(&self.ty, &id), other);
        retried.unwrap();
        self.problems().await
    }
}
