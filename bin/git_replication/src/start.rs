//! `davenport-git start`: has all refs of projects pushed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use jobs::{JobInfo, Outcome, State};

use crate::cli::{Shared, println};
use crate::config::{Config, Refused, Target};
use crate::mirrors::{Mirrors, When};
use crate::project::{self, Pattern, Project};
use crate::refs::Refs;

/// How often a job that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    shared: Shared,
    /// Directory of the repositories
    #[arg(long, env = "DAVENPORT_GIT_REPOSITORIES", value_name = "DIR")]
    repositories: PathBuf,
    /// All projects
    #[arg(long, conflicts_with = "project")]
    all: bool,
    /// A project, prefix* or ^regex; can be repeated
    #[arg(long, value_name = "PROJECT")]
    project: Vec<String>,
    /// Only to this remote; can be repeated
    #[arg(long, value_name = "NAME")]
    remote: Vec<String>,
    /// Only to URLs with this text, before or after `${name}` is replaced
    #[arg(long, value_name = "TEXT")]
    url: Option<String>,
    /// Without the remote's delay, and whatever a failed push waits for
    #[arg(long)]
    now: bool,
    /// Wait until all have been pushed or have failed
    #[arg(long)]
    wait: bool,
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let chooses = self.url.is_some() || !self.project.is_empty() || !self.remote.is_empty();
        if !self.all && !chooses {
            let reason = "nothing is chosen; give --all, --project, --remote or --url";
            return Err(Refused::argument(reason).into());
        }
        let (mirrors, config) = self.shared.open().await?;
        let projects = self.projects()?;
        let targets = self.targets(&config, &projects);
        if targets.is_empty() {
            if chooses {
                let reason = "nothing to push: no project and remote match; check --project, --remote and --url";
                return Err(Refused::argument(reason).into());
            }
            println("nothing to push: no remote has a project");
            return Ok(ExitCode::SUCCESS);
        }
        let when = if self.now { When::Now } else { When::Delayed };
        let notified = mirrors.notify(&targets, &Refs::all(), when).await;
        let before = notified.context("cannot write to the store")?;
        println(&match targets.len() {
            1 => "1 push was requested".to_owned(),
            count => format!("{count} pushes were requested"),
        });
        if !self.wait {
            return Ok(ExitCode::SUCCESS);
        }
        wait(&mirrors, &targets, before).await
    }

    fn projects(&self) -> anyhow::Result<Vec<Project>> {
        let directory = self.repositories.display();
        let all = project::all(&self.repositories)
            .with_context(|| format!("cannot list {directory}; check --repositories"))?;
        let pattern = |text: &String| {
            let pattern = Pattern::parse(text);
            pattern.map_err(|why| Refused::argument(format!("--project {text:?}: {why}")))
        };
        let patterns: Vec<Pattern> = self.project.iter().map(pattern).collect::<Result<_, _>>()?;
        let any = |project: &Project| Pattern::any(&patterns, project, false);
        let chosen = |project: &Project| patterns.is_empty() || any(project);
        Ok(all.into_iter().filter(chosen).collect())
    }

    fn targets<'a>(&self, config: &'a Config, projects: &'a [Project]) -> Vec<Target<'a>> {
        let url = self.url.as_deref().unwrap_or_default();
        let chosen = |target: &Target| {
            (self.remote.is_empty() || self.remote.contains(&target.remote.name))
                && (target.url.contains(url) || target.template.as_str().contains(url))
        };
        let targets = projects.iter().flat_map(|project| config.targets(project));
        targets.filter(chosen).collect()
    }
}

/// Waits for a push of each target that began after the request; fails if one failed.
async fn wait(
    mirrors: &Mirrors,
    targets: &[Target<'_>],
    before: Vec<u32>,
) -> anyhow::Result<ExitCode> {
    let mut failed = false;
    let mut waiting: Vec<(&Target, u32)> = targets.iter().zip(before).collect();
    loop {
        let mut still = Vec::new();
        for (target, before) in waiting {
            let Some(ended) = outcome(mirrors.info(target).await?, before) else {
                still.push((target, before));
                continue;
            };
            failed |= ended.is_err();
            let told = ended.unwrap_or_else(|reason| format!("failed: {reason}"));
            println(&format!("{}: {told}", target.place));
        }
        if still.is_empty() {
            return Ok(ExitCode::from(u8::from(failed)));
        }
        waiting = still;
        tokio::time::sleep(LOOK).await;
    }
}

/// How the requested push ended, if it has. A run that was in progress at the request does not count.
fn outcome(info: Option<JobInfo>, before: u32) -> Option<Result<String, String>> {
    let Some(info) = info else {
        return Some(Err("it was removed".to_owned()));
    };
    let last = info.last.as_ref().and_then(|last| last.end.as_ref());
    // No run follows a dead letter.
    let last = last.filter(|_| info.state == State::Dead);
    let end = info.ended_after(before).or(last)?;
    let reason = end.reason.clone().unwrap_or_default();
    match (info.state, end.outcome) {
        // After a push during which events arrived, it is pending again.
        (_, Outcome::Done) if reason.is_empty() => Some(Ok("pushed".to_owned())),
        (_, Outcome::Done) => Some(Ok(format!("nothing to push: {reason}"))),
        (State::Dead, _) => Some(Err(reason)),
        (State::Finished, _) => Some(Err(reason + "; it was given up")),
        (State::Pending, _) if info.stalls > 0 => Some(Err(reason + "; it will be retried")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use jobs::{Finish, Holder, decode};

    use super::*;
    use crate::config::tests::read;
    use crate::mirrors::Mirror;
    use crate::push::{self, Class};

    #[tokio::test]
    async fn what_was_not_pushed_is_not_told_as_pushed() {
        let config = read("[remote \"a\"]\nurl = /m/${name}\n").unwrap();
        let project = Project::new("app").unwrap();
        let target = config.targets(&project).next().unwrap();
        let mirrors = Mirrors::open("memory:").await.unwrap();
        mirrors.register(None).await.unwrap();
        let (jobs, holder) = (&mirrors.jobs, Holder::new("node").unwrap());
        let info = async || mirrors.info(&target).await.unwrap().unwrap();
        // The runs below do not take refs, so none may have arrived.
        let none = Refs::default();
        let failed = |class| push::Outcome::failed(class, "why", &Refs::all());
        let targets = std::slice::from_ref(&target);
        let ends = [
            (push::Outcome::Done(None), Some(Ok("pushed"))),
            (
                push::Outcome::Done(Some("why")),
                Some(Ok("nothing to push: why")),
            ),
            (failed(Class::Rejected), Some(Err("why"))),
            (failed(Class::Offline), Some(Err("why; it will be retried"))),
            (failed(Class::Unknown), Some(Err("why; it was given up"))),
        ];
        for (end, told) in ends {
            let given_up = matches!(told, Some(Err(told)) if told.ends_with("given up"));
            let before = mirrors.info(&target).await.unwrap();
            let before = before.map_or(0, |info| info.attempts);
            mirrors.notify(targets, &none, When::Now).await.unwrap();
            assert_eq!(outcome(Some(info().await), before), None);
            let accepted = jobs.accept(&mirrors.ty, &holder, 1).await.unwrap().jobs;
            assert_eq!(outcome(Some(info().await), before), None);
            let mut mirror: Mirror = decode(&accepted[0].data).unwrap();
            mirror.failed = given_up.then_some((Class::Unknown, 10));
            let remote = config.remote("a");
            let finish = mirrors.end(&accepted[0].job, mirror, end, remote).await;
            let _ = jobs
                .finish(&accepted[0].job, finish.unwrap())
                .await
                .unwrap();
            let found = outcome(Some(info().await), before);
            let found = found.as_ref().map(|found| match found {
                Ok(told) => Ok(told.as_str()),
                Err(told) => Err(told.as_str()),
            });
            assert_eq!(found, told);
        }

        // With events during each push, the job is never finished.
        mirrors.notify(targets, &none, When::Now).await.unwrap();
        let accepted = jobs.accept(&mirrors.ty, &holder, 1).await.unwrap().jobs;
        let before = info().await.attempts;
        mirrors.notify(targets, &none, When::Now).await.unwrap();
        let _ = jobs.finish(&accepted[0].job, Finish::done()).await.unwrap();
        assert_eq!(outcome(Some(info().await), before), None);
        let accepted = jobs.accept(&mirrors.ty, &holder, 1).await.unwrap().jobs;
        mirrors.notify(targets, &none, When::Now).await.unwrap();
        let _ = jobs.finish(&accepted[0].job, Finish::done()).await.unwrap();
        let pushed = outcome(Some(info().await), before);
        assert_eq!(pushed, Some(Ok("pushed".to_owned())));
    }

    /// Nothing is known of a push whose node was killed, or whose job was given back.
    #[tokio::test]
    async fn a_push_that_tells_nothing_is_not_told() {
        let config = read("[remote \"a\"]\nurl = /m/${name}\n").unwrap();
        let project = Project::new("app").unwrap();
        let target = config.targets(&project).next().unwrap();
        let mirrors = Mirrors::open("memory:").await.unwrap();
        mirrors.register(None).await.unwrap();
        let (jobs, holder) = (&mirrors.jobs, Holder::new("node").unwrap());
        let info = async || mirrors.info(&target).await.unwrap().unwrap();
        let (targets, none) = (std::slice::from_ref(&target), Refs::default());
        mirrors.notify(targets, &none, When::Now).await.unwrap();
        let ends = async |finish| {
            let accepted = jobs.accept(&mirrors.ty, &holder, 1).await.unwrap().jobs;
            jobs.finish(&accepted[0].job, finish).await.unwrap()
        };
        let failed = Finish {
            again_ms: Some(0),
            ..Finish::failed("")
        };
        assert!(ends(failed).await.again);
        assert!(outcome(Some(info().await), 0).is_some());
        let mut silent = info().await;
        let end = silent.last.as_mut().unwrap().end.as_mut().unwrap();
        end.outcome = Outcome::Stalled;
        assert_eq!(outcome(Some(silent), 0), None);
        assert!(ends(Finish::returned(0)).await.again);
        // The stall is the previous run's.
        assert_eq!(info().await.stalls, 1);
        assert_eq!(outcome(Some(info().await), 1), None);
    }
}
