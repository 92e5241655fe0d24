//! Runs jobs: a push for each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jobs::{Failure, Finish, Task};
use metrics::{counter, histogram};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::mirrors::{Mirror, Mirrors};
use crate::process::Git;
use crate::project::Project;
use crate::push::{Class, Outcome, Push};

/// A guard ends a push after this part of the lock's time-out without a sign from its node. A node stops its pushes 3/4 of
/// the time-out after its last heartbeat, and the last sign of one that hangs is not later than that.
const SILENCE: u32 = 5;

/// What a push needs.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) mirrors: Mirrors,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    pub(crate) repositories: PathBuf,
    /// Ends all pushes at once.
    pub(crate) halt: CancellationToken,
}

impl Runner {
    /// Pushes what is due. If the job is lost, or the node stops, this is dropped, which kills git.
    pub(crate) async fn run(self: Arc<Self>, task: Task<Mirror>) -> Result<Finish, Failure> {
        let config = Arc::clone(&self.config.borrow());
        let mut mirror = self.mirrors.take(task.job()).await?;
        let began = Instant::now();
        // As the job has it: the node that started last may have changed the time-out of the type.
        let silence = task.job().timeout() / SILENCE;
        let push = self.push(&config, &mut mirror, silence);
        let Some(outcome) = self.halt.run_until_cancelled(push).await else {
            return Ok(Finish::again(0));
        };
        let outcome = outcome?;
        let (remote, target, took) = (&mirror.remote, &mirror.place, began.elapsed());
        let refs = mirror.refs.shown();
        let how = match &outcome {
            Outcome::Done(None) => "pushed".to_owned(),
            Outcome::Done(_) => "nothing".to_owned(),
            Outcome::Failed { class, .. } => format!("{class:?}").to_lowercase(),
        };
        counter!("davenport_git_pushes_total", "remote" => remote.clone(), "outcome" => how)
            .increment(1);
        histogram!("davenport_git_push_seconds", "remote" => remote.clone()).record(took);
        match &outcome {
            Outcome::Done(None) => tracing::info!(remote, target, refs, ?took, "pushed"),
            Outcome::Done(why) => tracing::info!(remote, target, refs, why, "nothing to push"),
            Outcome::Failed { class, reason, .. } => {
                tracing::warn!(remote, target, refs, ?class, reason, ?took, "cannot push");
            }
        }
        let remote = config.remote(&mirror.remote);
        self.mirrors.end(task.job(), mirror, outcome, remote).await
    }

    async fn push(
        &self,
        config: &Config,
        mirror: &mut Mirror,
        silence: Duration,
    ) -> Result<Outcome, Failure> {
        let absent = std::mem::take(&mut mirror.absent);
        let project = Project::new(&mirror.project).map_err(Failure::Dead)?;
        let remote = config.remote(&mirror.remote).into_iter();
        let mut targets = remote.flat_map(|remote| remote.targets(&project));
        let Some(target) = targets.find(|target| target.place == mirror.place) else {
            let reason = "this node's configuration does not have the target";
            return Ok(Outcome::failed(Class::Unknown, reason, &mirror.refs));
        };
        let (named, root) = (project.clone(), self.repositories.clone());
        // Their filesystem may hang.
        let repository = spawn_blocking(move || named.repository(&root)).await?;
        let repository = repository
            .map_err(|error| Failure::Retry(format!("cannot read the repository: {error}")))?;
        let Some(repository) = repository else {
            return Ok(Outcome::Done(Some("the project has no repository here")));
        };
        if mirror.refs.is_empty() {
            return Ok(Outcome::Done(None));
        }
        let mut push = Push {
            git: Git {
                repository: Some(&repository),
                silence,
            },
            target: &target,
            refs: &mirror.refs,
            absent,
            now_ms: self.mirrors.jobs.clock().now_ms(),
        };
        let outcome = push.run().await?;
        mirror.absent = push.absent;
        Ok(outcome)
    }
}
