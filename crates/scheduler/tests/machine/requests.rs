//! Jobs created by `POST /_replicate`.

use replication::id::ReplicationId;
use scheduler::{Answer, Caller, Options, ServiceError, Started};
use serde_json::json;

use crate::fixture::World;

fn caller(name: &str, is_admin: bool) -> Caller {
    Caller {
        name: Some(name.to_owned()),
        is_admin,
    }
}

#[tokio::test]
async fn a_request_waits_for_its_result() {
    let world = World::new().await;
    let _node = world.node("n1").await;
    let joe = caller("joe", false);
    world.peer.put("a", r#"{"_id":"x"}"#).unwrap();
    let started = world.request(&json!({}), &joe).await.unwrap();
    let Answer::Completed { result } = world.wait(&started).await else {
        panic!("it is not completed");
    };
    assert_eq!(result["history"][0]["docs_written"], 1);
    let again = world.request(&json!({}), &joe).await.unwrap();
    assert_eq!(again, started);
    let Answer::Completed { result } = world.wait(&again).await else {
        panic!("it is not completed");
    };
    assert_eq!(result["no_changes"], true);
    // A finished job cannot be cancelled.
    let cancel = world.request(&json!({"cancel": true}), &joe).await;
    assert!(matches!(cancel, Err(ServiceError::Missing)), "{cancel:?}");
    // The result is kept for a while, then removed.
    let Started::Job { job, .. } = &again else {
        panic!()
    };
    assert_eq!(world.replications.forget_transient().await.unwrap(), 0);
    assert_eq!(world.scheduler_job(job).await.unwrap()["user"], "joe");
    let options = Options {
        transient_job_max_age_sec: 0,
        ..Options::default()
    };
    world.replications.set_options(options).unwrap();
    assert_eq!(world.replications.forget_transient().await.unwrap(), 1);
    assert_eq!(world.scheduler_job(job).await, None);
}

#[tokio::test]
async fn a_failed_request_is_not_retried() {
    let world = World::new().await;
    let _node = world.node("n1").await;
    let body = json!({"source": world.peer.database_url("none")});
    let started = world.request(&body, &caller("joe", false)).await.unwrap();
    let Answer::Failed(failure) = world.wait(&started).await else {
        panic!("it has not failed");
    };
    assert_eq!(
        (failure.status, failure.error.as_str()),
        (500, "db_not_found")
    );
    assert!(
        failure.reason.starts_with("could not open http"),
        "{}",
        failure.reason
    );
}

#[tokio::test]
async fn a_continuous_request_runs_until_cancelled() {
    let world = World::new().await;
    let mut node = world.node("n1").await;
    let joe = caller("joe", false);
    let body = json!({"continuous": true});
    let started = world.request(&body, &joe).await.unwrap();
    let Answer::Running { local_id } = world.wait(&started).await else {
        panic!("it does not run");
    };
    assert!(local_id.ends_with("+continuous"));
    let (tasks, more) = world.replications.active_tasks(None).await.unwrap();
    assert!(more.is_none());
    let [task] = &tasks[..] else {
        panic!("{tasks:?}")
    };
    assert_eq!(task["type"], "replication");
    assert_eq!(
        (&task["user"], &task["node"]),
        (&json!("joe"), &json!("n1"))
    );
    assert_eq!(task["replication_id"], *local_id);
    assert_eq!(task["source"], world.peer.database_url("a") + "/");
    for name in ["source_seq", "through_seq", "checkpointed_source_seq"] {
        assert_eq!(task[name], "0", "{name}: {task:#}");
    }
    for name in [
        "revisions_checked",
        "missing_revisions_found",
        "docs_read",
        "docs_written",
        "doc_write_failures",
        "bulk_get_docs",
        "bulk_get_attempts",
    ] {
        assert_eq!(task[name], 0, "{name}: {task:#}");
    }
    assert!(task.get("changes_pending").is_some(), "{task:#}");
    // An equal request is the same job.
    let pid = task["pid"].clone();
    assert_eq!(world.request(&body, &joe).await.unwrap(), started);
    world.wait(&started).await;
    assert_eq!(
        world.replications.active_tasks(None).await.unwrap().0[0]["pid"],
        pid
    );
    // A document with the same replication waits for it.
    world.put("doc", &body).await;
    world.until_state("doc", "crashing").await;
    let page = world
        .replications
        .scheduler_jobs(&scheduler::JobsQuery {
            limit: 1,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(
        (page.total_rows, page.jobs[0]["id"].as_str()),
        (2, Some(&*local_id))
    );
    let page = world
        .replications
        .scheduler_jobs(&scheduler::JobsQuery {
            limit: 5,
            bookmark: page.bookmark,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(
        (page.jobs.len(), &page.jobs[0]["doc_id"]),
        (1, &json!("doc"))
    );
    // Only its user or an administrator cancels it.
    let id = ReplicationId::from_client(&local_id.replace('+', " "));
    let refused = world
        .replications
        .cancel(&id, &caller("eve", false))
        .await
        .unwrap_err();
    assert!(matches!(
        refused,
        ServiceError::Unauthorized("You are not a server admin.")
    ));
    let cancel = json!({"continuous": true, "cancel": true});
    let cancelled = world.request(&cancel, &joe).await.unwrap();
    assert_eq!(cancelled, Started::Cancelled { local_id });
    node.until_running(0).await;
    let missing = world.request(&cancel, &joe).await.unwrap_err();
    assert!(matches!(missing, ServiceError::Missing));
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.replications.restart(&world.job("doc")).await.unwrap();
    world.until_state("doc", "running").await;
    let collision = world
        .replications
        .cancel(&id, &caller("adm", true))
        .await
        .unwrap_err();
    assert!(matches!(
        collision,
        ServiceError::Unauthorized("Persistent replication collision")
    ));
}

/// The number of finished jobs that are kept forever does not matter.
#[tokio::test]
async fn results_expire_among_many_finished_jobs() {
    let world = World::new().await;
    world.put("x", &json!({})).await;
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let (_, data) = jobs.get(ty, &world.job("x")).await.unwrap().unwrap();
    let add = |n| {
        jobs::Add::new(
            jobs::JobId::new(format!("filler-{n}")).unwrap(),
            data.clone(),
        )
    };
    let adds: Vec<jobs::Add> = (0..2_000).map(add).collect();
    jobs.add_many(ty, &adds).await.unwrap();
    let holder = jobs::Holder::new("n0").unwrap();
    loop {
        let accepted = jobs.accept(ty, &holder, 500).await.unwrap().jobs;
        if accepted.is_empty() {
            break;
        }
        let done = accepted
            .into_iter()
            .map(|one| (one.job, jobs::Finish::done()));
        for held in jobs.finish_many(&done.collect::<Vec<_>>()).await.unwrap() {
            assert!(!held.unwrap().repeated);
        }
    }
    let _node = world.node("n1").await;
    let body = json!({"source": world.peer.database_url("none")});
    let started = world.request(&body, &caller("joe", false)).await.unwrap();
    assert!(matches!(world.wait(&started).await, Answer::Failed(_)));
    let options = Options {
        transient_job_max_age_sec: 0,
        ..Options::default()
    };
    world.replications.set_options(options).unwrap();
    assert_eq!(world.replications.forget_transient().await.unwrap(), 1);
    let Started::Job { job, .. } = &started else {
        panic!()
    };
    assert_eq!(world.scheduler_job(job).await, None);
}
