//! Remotes, from the document to the copies, on fleets of nodes.

use std::time::Duration;

use jobs::{JobInfo, Query, State};
use peer::{Fault, Faults, On};
use rules::rule::{Compiled, Rules};
use rules::source::SourceOptions;
use scheduler::{Action, Chosen, RemoteState, RowState, ServiceError, TableQuery};
use serde_json::{Value, json};

use crate::fixture::{World, quick};

/// A remote without delays, with these members besides.
fn remote(world: &World, more: &Value) -> Value {
    let mut body = json!({
        "type": "remote", "source": format!("{}/${{name}}", world.peer.url()),
        "replication_delay_sec": 0, "random_delay_sec": 0, "create_missing": true,
    });
    let members = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

fn create(world: &World, names: &[&str]) {
    for name in names {
        world.peer.create_database(name).unwrap();
        world.peer.put(name, r#"{"_id":"early"}"#).unwrap();
    }
}

fn is_copied(world: &World, target: &str, id: &str) -> bool {
    matches!(world.peer.get(target, id), Ok(Some(_)))
}

async fn found(world: &World, name: &str) -> Compiled {
    let rules = Rules::new(world.replications.clone());
    rules.remote(name).await.unwrap().unwrap()
}

async fn counts(world: &World, name: &str) -> Value {
    let remote = found(world, name).await;
    let counts = world.replications.remote_counts(remote.remote_id()).await;
    counts.unwrap()["states"].clone()
}

/// The targets of the jobs that run at this moment.
async fn running(world: &World) -> Vec<String> {
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let query = Query {
        state: Some(State::Running),
        data: true,
        ..Query::default()
    };
    let page = jobs.list(ty, &query, None, 1_000).await.unwrap();
    let target = |listed: jobs::Listed| {
        let data: Value = serde_json::from_slice(&listed.data.unwrap()).unwrap();
        data["shown"]["target"].as_str().unwrap().to_owned()
    };
    page.jobs.into_iter().map(target).collect()
}

/// The only job.
async fn job(world: &World) -> JobInfo {
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let mut page = jobs.list(ty, &Query::default(), None, 2).await.unwrap();
    assert_eq!(page.jobs.len(), 1);
    page.jobs.remove(0).info
}

#[tokio::test]
async fn databases_are_copied_to_each_url_with_their_rights() {
    let world = World::new().await;
    create(&world, &["app_a", "app_tmp_x", "other"]);
    let rights = json!({"admins": {"names": ["ann"], "roles": []}, "members": {"names": [], "roles": ["x"]}});
    world.peer.set_security("app_a", &rights).unwrap();
    let _node = world.node(quick()).await;
    let urls = ["eu1", "eu2"].map(|to| format!("{}/{to}_${{name}}", world.peer.url()));
    let body = json!({
        "url": urls, "databases": ["^app_"], "exclude_databases": ["app_tmp_*"], "copy_security": true, "threads": 2,
    });
    world.rule("eu", Some(&remote(&world, &body))).await;
    for target in ["eu1_app_a", "eu2_app_a"] {
        world
            .until(async || is_copied(&world, target, "early"))
            .await;
    }
    create(&world, &["app_b"]);
    world
        .until(async || is_copied(&world, "eu2_app_b", "early"))
        .await;
    let all_asleep = async || counts(&world, "eu").await["asleep"] == 4;
    world.until(all_asleep).await;
    assert_eq!(world.peer.security("eu2_app_a").unwrap(), rights);
    world.peer.put("app_a", r#"{"_id":"late"}"#).unwrap();
    world
        .until(async || is_copied(&world, "eu1_app_a", "late"))
        .await;
    assert!(world.peer.get("eu1_app_tmp_x", "early").is_err());
    assert!(world.peer.get("eu1_other", "early").is_err());
    let limits = world.replications.remotes().await.unwrap();
    assert_eq!(limits, [("eu".to_owned(), 2)]);
    world.rule("eu", None).await;
    assert_eq!(world.replications.remotes().await.unwrap(), []);
}

/// A run whose rights were refused has failed, whatever it has copied, and is repeated.
#[tokio::test]
async fn rights_that_are_refused_fail_the_run() {
    let world = World::new().await;
    create(&world, &["app"]);
    let [rights, before] = ["ann", "bob"].map(|name| {
        let users = json!({"names": [name], "roles": []});
        json!({"admins": users, "members": users})
    });
    world.peer.set_security("app", &rights).unwrap();
    world.peer.create_database("to_app").unwrap();
    world.peer.set_security("to_app", &before).unwrap();
    let refused = Fault::Status {
        status: 403,
        retry_after: None,
    };
    let faults = Faults::script([(On::put("/to_app/_security"), refused)]);
    world.peer.set_faults(faults);
    let _node = world.node(quick()).await;
    let body = json!({
        "url": format!("{}/to_${{name}}", world.peer.url()), "databases": ["app"], "copy_security": true,
        "retry": {"delay_sec": 1, "limit": 0},
    });
    world.rule("eu", Some(&remote(&world, &body))).await;
    let remote = found(&world, "eu").await;
    let first_row = async || {
        let listed = (world.replications).remote_jobs(remote.remote_id(), None, None, 10);
        let (mut rows, _) = listed.await.unwrap();
        (rows.len() == 1).then(|| serde_json::to_value(rows.remove(0)).unwrap())
    };
    let failed = async || {
        let row = first_row().await.unwrap_or_default();
        row["errors"].as_u64().is_some_and(|errors| errors >= 2)
    };
    world.until(failed).await;
    let row = first_row().await.unwrap();
    let error = row["last_error"].as_str().unwrap();
    assert!(error.contains("_security"), "{error}");
    assert_eq!(world.peer.security("to_app").unwrap(), before);
    assert!(is_copied(&world, "to_app", "early"));

    world.peer.set_faults(Faults::none());
    world
        .until(async || counts(&world, "eu").await["asleep"] == 1)
        .await;
    assert_eq!(world.peer.security("to_app").unwrap(), rights);
}

/// Two nodes, and two remotes one of whose targets is the same.
#[tokio::test]
async fn runs_of_a_remote_and_of_a_target_are_limited_over_all_nodes() {
    let world = World::new().await;
    let names = ["app_0", "app_1", "app_2", "app_3", "side"];
    create(&world, &names);
    let _nodes = [world.node(quick()).await, world.node(quick()).await];
    let at = |name: &str| format!("{}/{name}", world.peer.url());
    let urls = ["eu1", "eu2"].map(|to| at(&format!("{to}_${{name}}")));
    let eu = json!({"url": urls, "databases": ["app_*"], "threads": 2});
    let side = json!({"url": at("eu1_app_0"), "databases": ["side"], "source": at("side")});
    let work = async {
        world.rule("side", Some(&remote(&world, &side))).await;
        world.rule("eu", Some(&remote(&world, &eu))).await;
        for round in 0..5 {
            let id = format!("doc{round}");
            for name in names {
                world
                    .peer
                    .put(name, &json!({"_id": id}).to_string())
                    .unwrap();
            }
            for target in ["eu1_app_0", "eu1_app_3", "eu2_app_1", "eu2_app_2"] {
                world.until(async || is_copied(&world, target, &id)).await;
            }
        }
        let sleeps = async || {
            counts(&world, "eu").await["asleep"] == 8 && counts(&world, "side").await["asleep"] == 1
        };
        world.until(sleeps).await;
    };
    let mut most = 0;
    // Each look is one transaction, and sees what runs at one moment.
    let looks = async {
        loop {
            let mut targets = running(&world).await;
            targets.sort_unstable();
            let runs = targets.len();
            let of_eu = targets
                .iter()
                .filter(|target| !target.contains("/eu1_app_0/"))
                .count();
            most = most.max(of_eu);
            assert!(of_eu <= 2, "{targets:?}");
            targets.dedup();
            assert_eq!(targets.len(), runs, "{targets:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = looks => {}
    }
    assert_eq!(most, 2);
}

#[tokio::test]
async fn many_changes_are_few_runs() {
    const DELAY_SEC: f64 = 0.5;
    let world = World::new().await;
    create(&world, &["app"]);
    let _nodes = [world.node(quick()).await, world.node(quick()).await];
    let url = format!("{}/to_${{name}}", world.peer.url());
    let body = json!({"url": url, "databases": ["app"], "replication_delay_sec": DELAY_SEC});
    world.rule("eu", Some(&remote(&world, &body))).await;
    world
        .until(async || counts(&world, "eu").await["asleep"] == 1)
        .await;
    let before = job(&world).await.attempts;
    let began = tokio::time::Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    for nth in 0..250 {
        ticks.tick().await;
        world
            .peer
            .put("app", &json!({"_id": format!("d{nth}")}).to_string())
            .unwrap();
    }
    world
        .until(async || is_copied(&world, "to_app", "d249"))
        .await;
    world
        .until(async || counts(&world, "eu").await["asleep"] == 1)
        .await;
    let lasted = began.elapsed().as_secs_f64();
    let made = job(&world).await.attempts - before;
    let most = lasted / DELAY_SEC + 2.0;
    assert!(
        made >= 2 && f64::from(made) <= most,
        "{made} runs in {lasted} s"
    );
}

#[tokio::test]
async fn a_remote_that_is_down_leaves_others_alone_and_can_be_started() {
    let world = World::new().await;
    create(&world, &["app"]);
    let _node = world.node(quick()).await;
    let down = json!({"url": "http://127.0.0.1:1/${name}", "databases": ["app"], "threads": 1});
    let missing = json!({
        "url": format!("{}/lost_${{name}}", world.peer.url()), "databases": ["app"], "create_missing": false,
        "retry": {"delay_sec": 0, "limit": 1},
    });
    let well = json!({"url": format!("{}/to_${{name}}", world.peer.url()), "databases": ["app"]});
    for (id, body) in [("down", down), ("missing", missing), ("well", well)] {
        world.rule(id, Some(&remote(&world, &body))).await;
    }
    world
        .until(async || is_copied(&world, "to_app", "early"))
        .await;
    world
        .until(async || counts(&world, "missing").await["failed"] == 1)
        .await;
    assert_ne!(counts(&world, "down").await["asleep"], 1);
    let (replications, remote) = (&world.replications, found(&world, "missing").await);
    let failed = Some(RemoteState::Failed);
    let listed = replications.remote_jobs(remote.remote_id(), failed, None, 10);
    let (rows, _) = listed.await.unwrap();
    assert_eq!(
        (&rows[0]["errors"], &rows[0]["database"]),
        (&json!(2), &json!("app"))
    );
    let error = rows[0]["last_error"].as_str().unwrap();
    assert!(error.contains("db_not_found"), "{error}");
    let (jobs, ty) = (replications.jobs(), replications.job_type());
    assert_eq!(jobs.counts(ty).await.unwrap().dead, 1);
    let query = TableQuery {
        states: vec![RowState::Failed],
        ..TableQuery::default()
    };
    let chosen = Chosen::Matching(query);
    world
        .until(async || {
            let acted = replications.act(Action::Delete, &chosen).await.unwrap();
            assert_eq!(acted.done, 0);
            let refused = |(_, error)| matches!(error, ServiceError::Forbidden(_));
            acted.failed.into_iter().any(refused)
        })
        .await;

    world.peer.create_database("lost_app").unwrap();
    let of = remote.remote_id();
    let started = replications.start_remote(of, |one| one.target.contains("nothing"), true);
    assert_eq!(Box::pin(started).await.unwrap(), []);
    let started = replications.start_remote(of, |one| one.database == "app", true);
    let mut asked = Box::pin(started).await.unwrap();
    assert_eq!(asked.len(), 1);
    let (job, mut ended) = (asked[0].job.clone(), scheduler::Ended::default());
    replications
        .wait_for_runs(&mut asked, &mut ended)
        .await
        .unwrap();
    assert_eq!((ended.completed, ended.failed), (1, 0));
    assert!(is_copied(&world, "lost_app", "early"));
    let info = jobs.info(ty, &job).await.unwrap().unwrap();
    assert_eq!(
        (info.state, info.class),
        (State::Pending, jobs::Class::Normal)
    );
}

#[tokio::test]
async fn a_start_during_the_first_copy_makes_another_run() {
    let world = World::new().await;
    create(&world, &["app"]);
    let slow = Fault::Latency { ms: 2_000 };
    let write = On::any("/to_app/_bulk_docs").first(1);
    world.peer.set_faults(Faults::script([(write, slow)]));
    let _node = world.node(quick()).await;
    let url = format!("{}/to_${{name}}", world.peer.url());
    let body = remote(&world, &json!({"url": url, "databases": ["app"]}));
    world.rule("eu", Some(&body)).await;
    world.until(async || world.peer.injected().len() == 1).await;
    let remote = found(&world, "eu").await;
    let of = remote.remote_id();
    let started = (world.replications).start_remote(of, |_| true, true);
    let mut asked = Box::pin(started).await.unwrap();
    let mut ended = scheduler::Ended::default();
    let waited = (world.replications).wait_for_runs(&mut asked, &mut ended);
    tokio::time::timeout(Duration::from_mins(1), waited)
        .await
        .expect("the run that was asked for begins")
        .unwrap();
    assert_eq!((ended.completed, ended.failed), (1, 0));
}

/// Its next run waits for the delay, and not for another change.
#[tokio::test]
async fn a_change_during_a_run_waits_for_the_delay() {
    let world = World::new().await;
    create(&world, &["app"]);
    let slow = Fault::Latency { ms: 2_000 };
    let write = On::any("/to_app/_bulk_docs").first(1);
    world.peer.set_faults(Faults::script([(write, slow)]));
    let _node = world.node(quick()).await;
    let url = format!("{}/to_${{name}}", world.peer.url());
    let body = json!({"url": url, "databases": ["app"], "replication_delay_sec": 5});
    world.rule("eu", Some(&remote(&world, &body))).await;
    world.until(async || world.peer.injected().len() == 1).await;
    world.peer.put("app", r#"{"_id":"late"}"#).unwrap();
    let has_run = async || job(&world).await.state == State::Pending;
    world.until(has_run).await;
    assert!(!is_copied(&world, "to_app", "late"));
    let remote = found(&world, "eu").await;
    let listed = world
        .replications
        .remote_jobs(remote.remote_id(), None, None, 1);
    let (rows, _) = listed.await.unwrap();
    assert_eq!(
        (&rows[0]["state"], &rows[0]["reason"]),
        (&json!("waiting"), &json!("delay"))
    );
    assert!(rows[0]["next_run"].is_string(), "{rows:?}");
    world
        .until(async || is_copied(&world, "to_app", "late"))
        .await;
}

/// Nothing is left of a target that a remote does not name any more, even of one that has failed for good.
#[tokio::test]
async fn an_edited_remote_leaves_no_jobs() {
    let world = World::new().await;
    create(&world, &["app", "kept_app"]);
    let _node = world.node(quick()).await;
    let url = |to: &str| format!("{}/{to}_${{name}}", world.peer.url());
    let body = |urls: &[String]| {
        let more = json!({
            "url": urls, "databases": ["app"], "create_missing": false, "retry": {"delay_sec": 1, "limit": 1},
        });
        remote(&world, &more)
    };
    world
        .rule("eu", Some(&body(&[url("kept"), url("gone")])))
        .await;
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let count = async |state| {
        let query = Query {
            state,
            ..Query::default()
        };
        jobs.list(ty, &query, None, 10).await.unwrap().jobs.len()
    };
    world
        .until(async || count(Some(State::Dead)).await == 1)
        .await;
    world.rule("eu", Some(&body(&[url("kept")]))).await;
    world.until(async || count(None).await == 1).await;
    assert_eq!(count(Some(State::Dead)).await, 0);
}

/// Another source has none of the databases that the remote is about.
#[tokio::test]
async fn another_source_leaves_the_jobs_of_an_edited_remote() {
    let (world, other) = (World::new().await, World::new().await);
    create(&world, &["app"]);
    let url = format!("{}/to_${{name}}", world.peer.url());
    let mut body = remote(&world, &json!({"url": url, "databases": ["app"]}));
    world.rule("eu", Some(&body)).await;
    let node = world.node(quick()).await;
    world
        .until(async || is_copied(&world, "to_app", "early"))
        .await;
    node.stop().await;
    body["replication_delay_sec"] = json!(1);
    world.rule("eu", Some(&body)).await;
    let options = SourceOptions {
        url: other.peer.url(),
        ..quick()
    };
    let _node = world.renaming_node(options).await;
    world.until_seeded(2).await;
    assert_ne!(job(&world).await.state, State::Dead);
}

/// A start during a run that fails shortens its back-off only if it says so.
#[tokio::test]
async fn a_start_during_a_run_that_fails_keeps_the_back_off() {
    for now in [false, true] {
        let world = World::new().await;
        create(&world, &["app"]);
        let (slow, refused) = (
            Fault::Latency { ms: 1_000 },
            Fault::Status {
                status: 403,
                retry_after: None,
            },
        );
        world.peer.set_faults(Faults::script([
            (On::any("/to_app/_bulk_docs").first(1), slow),
            (On::put("/to_app/_security"), refused),
        ]));
        world
            .peer
            .set_security("app", &json!({"admins": {"names": ["ann"], "roles": []}}))
            .unwrap();
        let _node = world.node(quick()).await;
        let body = json!({
            "url": format!("{}/to_${{name}}", world.peer.url()), "databases": ["app"], "copy_security": true,
            "retry": {"delay_sec": 3_600},
        });
        world.rule("eu", Some(&remote(&world, &body))).await;
        world.until(async || world.peer.injected().len() == 1).await;
        let remote = found(&world, "eu").await;
        let started = (world.replications).start_remote(remote.remote_id(), |_| true, now);
        assert_eq!(Box::pin(started).await.unwrap().len(), 1);
        assert_eq!(job(&world).await.state, State::Running);
        let runs = if now { 2 } else { 1 };
        let has_failed = async || {
            let job = job(&world).await;
            job.state == State::Pending && job.attempts >= runs
        };
        world.until(has_failed).await;
        let job = job(&world).await;
        let now_ms = world.replications.jobs().clock().now_ms();
        assert_eq!(job.attempts, runs);
        assert!(job.due_ms > now_ms + 3_000_000, "{job:?}");
    }
}
