//! Continuous jobs that have caught up.

use peer::{Fault, Faults, FeedFaults, On};
use scheduler::Options;
use serde_json::{Value, json};

use crate::fixture::{Node, World};

const PAIRS: usize = 5;
const LOSES_ALL: FeedFaults = FeedFaults {
    lose: 1_000,
    repeat: 0,
    reorder: 0,
};

/// One permit, and no job is ever stopped for others.
fn one_permit() -> Options {
    Options {
        max_jobs: 1,
        max_churn: 0,
        stats_update_interval_sec: 0,
        ..Options::default()
    }
}

async fn pairs(world: &World) {
    for n in 0..PAIRS {
        let (source, target) = (format!("s{n}"), format!("t{n}"));
        world.peer.create_database(&source).unwrap();
        world.peer.create_database(&target).unwrap();
        world.peer.put(&source, r#"{"_id":"early"}"#).unwrap();
        let endpoints = json!({
            "source": world.peer.database_url(&source),
            "target": world.peer.database_url(&target),
            "continuous": true,
        });
        world.put(&format!("x{n}"), &endpoints).await;
    }
}

/// Waits until all jobs have copied this many documents and are idle; returns their rows.
async fn until_idle(world: &World, docs: u64) -> Vec<Value> {
    let mut rows = Vec::new();
    for n in 0..PAIRS {
        let idle = |row: &Value| row["info"]["docs_written"] == docs && row["info"]["idle"] == true;
        rows.push(world.until(&format!("x{n}"), idle).await);
    }
    rows
}

async fn all_run_with_one_permit(world: &World, node: &mut Node) {
    pairs(world).await;
    let rows = until_idle(world, 1).await;
    assert!(
        rows.iter().all(|row| row["state"] == "running"),
        "{rows:#?}"
    );
    node.until_parked(PAIRS).await;
    for n in 0..PAIRS {
        world
            .peer
            .put(&format!("s{n}"), r#"{"_id":"late"}"#)
            .unwrap();
    }
    until_idle(world, 2).await;
    for n in 0..PAIRS {
        assert!(world.peer.get(&format!("t{n}"), "late").unwrap().is_some());
        // Waiting for its turn is no failure.
        let row = world
            .replications
            .scheduler_doc(&world.db, &format!("x{n}"))
            .await
            .unwrap();
        let id = row["id"].as_str().unwrap();
        let job = world.scheduler_job(id).await.unwrap();
        let events = job["history"].as_array().unwrap();
        let kinds: Vec<_> = events
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        assert!(!kinds.contains(&"crashed"), "{job:#}");
        assert_eq!(row["error_count"], 0, "{row:#}");
    }
}

#[tokio::test]
async fn idle_jobs_hold_no_permit() {
    let world = World::new().await;
    let mut node = world.node_with("n1", one_permit()).await;
    all_run_with_one_permit(&world, &mut node).await;
    assert!(
        world.peer.count("GET", "/_db_updates") <= 2,
        "one listens for all"
    );
    // A node that may run nothing gives its idle jobs back.
    node.replications
        .set_options(Options {
            max_jobs: 0,
            interval_sec: 1,
            ..one_permit()
        })
        .unwrap();
    node.until_running(0).await;
    let row = world.until_state("x0", "pending").await;
    assert_eq!(
        (&row["error_count"], &row["info"]["idle"]),
        (&json!(0), &Value::Null)
    );
}

#[tokio::test]
async fn sequences_are_polled_without_an_update_feed() {
    let world = World::new().await;
    let missing = Fault::Status {
        status: 404,
        retry_after: None,
    };
    world
        .peer
        .set_faults(Faults::script([(On::any("/_db_updates"), missing)]));
    let mut node = world.node_with("n1", one_permit()).await;
    all_run_with_one_permit(&world, &mut node).await;
    assert!(world.peer.count("POST", "/_dbs_info") >= 2);
}

/// As behind a proxy that waits for the end of an answer.
#[tokio::test]
async fn a_feed_that_ends_at_once_is_not_opened_all_the_time() {
    let world = World::new().await;
    let opened = On::any("/_db_updates?*feed=continuous*");
    let ends = Fault::Answer {
        status: 200,
        headers: Vec::new(),
        body: "{\"last_seq\":\"1-x\"}\n".to_owned(),
    };
    world.peer.set_faults(Faults::script([(opened, ends)]));
    let mut node = world.node_with("n1", one_permit()).await;
    all_run_with_one_permit(&world, &mut node).await;
    let asked = world.peer.count("GET", "/_db_updates");
    assert!(asked < 10, "{asked}");
}

/// A job keeps its own feed if its server cannot be watched.
#[tokio::test]
async fn jobs_keep_their_feed_if_the_server_cannot_be_watched() {
    let world = World::new().await;
    world.forbid_watching();
    let options = Options {
        park_after_sec: 1,
        ..one_permit()
    };
    let _node = world.node_with("n1", options).await;
    world.put("x", &json!({"continuous": true})).await;
    world.peer.put("a", r#"{"_id":"early"}"#).unwrap();
    world.until_copied("early").await;
    let asked = async {
        while world.peer.count("POST", "/_dbs_info") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), asked)
        .await
        .unwrap();
    let feeds = || world.peer.count("GET", "/a/_changes");
    let before = feeds();
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
    assert_eq!(feeds(), before, "it has run all the time");
}

/// What the selector leaves out is not pending, and a replication that has caught up does not lag.
#[tokio::test]
async fn idle_jobs_have_nothing_pending() {
    let world = World::new().await;
    let options = Options {
        park_after_sec: 1,
        ..one_permit()
    };
    let mut node = world.node_with("n1", options).await;
    let docs = (0..10).map(|n| json!({"_id": format!("d{n}"), "n": n}).to_string());
    world.peer.put_all("a", docs).unwrap();
    let selector = json!({"continuous": true, "selector": {"n": {"$in": [3, 20]}}});
    world.put("x", &selector).await;
    for docs in 1..3 {
        let idle = |row: &Value| row["info"]["docs_written"] == docs && row["info"]["idle"] == true;
        world.until("x", idle).await;
        node.until_parked(1).await;
        let parked = |row: &Value| row["info"]["checkpointed_source_seq"] != "0";
        let row = world.until("x", parked).await;
        let info = &row["info"];
        let shown = (&info["changes_pending"], &info["lag_seconds"]);
        assert_eq!(shown, (&json!(0), &json!(0)), "{row:#}");
        world.peer.put("a", r#"{"_id":"d20","n":20}"#).ok();
    }
}

/// A change of which half a row arrived is noticed when the feed resumes.
#[tokio::test]
async fn a_feed_that_was_cut_resumes() {
    let world = World::new().await;
    // The first request reads the current sequence of the feed.
    let cut = Fault::CutBody { after_bytes: 10 };
    let feed = On::get("/_db_updates").nth(2);
    world.peer.set_faults(Faults::script([(feed, cut)]));
    let mut node = world.node_with("n1", one_permit()).await;
    world.put("x", &json!({"continuous": true})).await;
    world.peer.put("a", r#"{"_id":"early"}"#).unwrap();
    let idle = |row: &Value| row["info"]["docs_written"] == 1 && row["info"]["idle"] == true;
    world.until("x", idle).await;
    node.until_parked(1).await;
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
    assert_eq!(world.peer.injected().len(), 1, "the feed was cut");
}

/// The update feed reported a change before the job had a listener, and the job's own feed has not delivered it.
#[tokio::test]
async fn a_change_before_the_listener_is_armed_is_not_missed() {
    let world = World::new().await;
    let options = Options {
        park_after_sec: 1,
        stats_update_interval_sec: 0,
        ..Options::default()
    };
    let mut node = world.node_with("n1", options).await;
    // This job makes the node follow the update feed.
    let endpoints = ["first", "second"].map(|name| {
        world.peer.create_database(name).unwrap();
        world.peer.database_url(name)
    });
    let [source, target] = endpoints;
    let other = json!({"source": source, "target": target, "continuous": true});
    world.put("other", &other).await;
    node.until_parked(1).await;
    let feed = On::get("/a/_changes?*feed=continuous*").first(1);
    let slow = Fault::SlowBody {
        bytes_per_second: 1,
    };
    world.peer.set_faults(Faults::script([(feed, slow)]));
    world.peer.put("a", r#"{"_id":"early"}"#).unwrap();
    world.put("x", &json!({"continuous": true})).await;
    let followed = async {
        while world.peer.injected().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), followed)
        .await
        .unwrap();
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
    node.until_parked(2).await;
}

/// The feed does not report the change, and no permit is free when the job asks for it.
#[tokio::test]
async fn a_change_after_a_run_that_found_none_waits_only_for_a_permit() {
    let world = World::new().await;
    world.peer.set_feed_faults(1, LOSES_ALL);
    let asks = On::get("/a/_changes?*&limit=1").first(1);
    let slow = Fault::Latency { ms: 200 };
    world.peer.set_faults(Faults::script([(asks, slow)]));
    let _node = world.node_with("n1", one_permit()).await;
    world.put("x", &json!({"continuous": true})).await;
    let asked = async {
        while world.peer.injected().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), asked)
        .await
        .unwrap();
    world.peer.put("a", r#"{"_id":"late"}"#).unwrap();
    world.until_copied("late").await;
}

/// One job's requests hang, and all jobs of the server learn of it.
#[tokio::test]
async fn all_jobs_of_a_server_show_its_outage() {
    let world = World::new().await;
    let mut node = world.node("n").await;
    pairs(&world).await;
    let (source, target) = ("a", "b");
    let busy = json!({
        "source": world.peer.database_url(source), "target": world.peer.database_url(target),
        "continuous": true, "connection_timeout": 1000, "retries_per_request": 20,
    });
    world.put("busy", &busy).await;
    until_idle(&world, 1).await;
    node.until_parked(PAIRS + 1).await;
    world
        .peer
        .set_faults(Faults::script([(On::any("*"), Fault::Hang)]));
    world.peer.put(source, r#"{"_id":"wakes it"}"#).unwrap();
    let server = world.peer.url().trim_end_matches('/').to_owned();
    let ids = || {
        (0..PAIRS)
            .map(|n| format!("x{n}"))
            .chain(["busy".to_owned()])
    };
    for id in ids() {
        let row = world
            .until(&id, |row| row["info"]["unreachable"] == json!(server))
            .await;
        assert_eq!(
            (&row["state"], row["info"].get("idle")),
            (&json!("running"), None),
            "{row:#}"
        );
        let error = row["info"]["error"].as_str().unwrap();
        assert!(
            error.starts_with(&format!("{server} does not respond: ")),
            "{error}"
        );
    }
    let summary = world.replications.summary().await.unwrap();
    assert_eq!(summary["jobs"]["unreachable"], PAIRS + 1, "{summary:#}");
    assert_eq!(summary["unreachable"][0]["jobs"], PAIRS + 1, "one line");
    assert_eq!(summary["unreachable"][0]["server"], json!(server));
    // An outage gives them no permit.
    let page = world.replications.shares(None, 10).await.unwrap();
    let work = &page["shares"][0];
    assert_eq!(
        (&work["idle"], &work["running"]),
        (&json!(PAIRS), &json!(1))
    );
    world.peer.set_faults(Faults::none());
    for id in ids() {
        let well = |row: &Value| row["info"]["idle"] == true && row["info"].get("error").is_none();
        world.until(&id, well).await;
    }
    assert!(world.peer.get(target, "wakes it").unwrap().is_some());
    node.stop().await;
}

/// Nothing uses the server until the next run.
#[tokio::test]
async fn the_servers_of_a_crashed_job_are_probed_until_it_runs_again() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let value = |series: &str| {
        let text = recorder.handle().render();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map(|value| value.trim().parse::<f64>().unwrap())
    };
    let up = r#"davenport_endpoint_up{server="http://127.0.0.1:1"}"#;
    let world = World::new().await;
    let _node = world.node("n").await;
    let down = json!({"source": "http://127.0.0.1:1/a", "retries_per_request": 1});
    world.put("down", &down).await;
    world.until_state("down", "crashing").await;
    let probed = async |times: f64| {
        let requests = || value("couchdb_couch_replicator_requests_total").unwrap();
        let enough = requests() + times;
        while requests() < enough {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let probed = tokio::time::timeout(std::time::Duration::from_secs(10), probed(10.0));
    probed.await.expect("it is probed");
    assert_eq!(value(up), Some(0.0));
}
