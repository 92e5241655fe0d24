//! `davenport bench replicate`, `api`, `fleet`, `changes` and `webhooks`, with few documents and jobs.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use peer::{Fault, Faults, On, Options, Peer};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::timeout;

async fn figures(bench: &str, args: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["bench", bench, "--json"])
        .args(args)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let figures = lines.lines().map(|line| {
        let figure: Value = serde_json::from_str(line).unwrap();
        assert_eq!(figure["bench"], bench);
        assert!(figure["value"].as_f64().unwrap() >= 0.0 && figure["unit"].is_string());
        figure
    });
    figures.collect()
}

/// The metrics of each case, in their order.
fn by_case(figures: &[Value]) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for figure in figures {
        let metrics = found.entry(figure["case"].as_str().unwrap()).or_default();
        metrics.push(figure["metric"].as_str().unwrap());
    }
    found
}

#[tokio::test]
async fn every_case_has_its_figures() {
    let figures = figures("replicate", &["--scale", "0.002"]).await;
    let alone = figures.iter().all(|figure| figure["who"] == "davenport");
    assert!(alone, "the server in memory has no replicator");
    let found = by_case(&figures);
    let cases: Vec<_> = found.keys().copied().collect();
    assert_eq!(
        cases,
        ["attachments", "caught_up", "conflicts", "large", "small"]
    );
    for (case, metrics) in found {
        if cfg!(target_os = "linux") {
            let all = ["wall_s", "cpu_s", "server_cpu_s", "peak_rss_mb"];
            assert_eq!(metrics, all, "{case}");
        } else {
            assert!(metrics.contains(&"wall_s"), "{case}");
        }
    }
}

#[tokio::test]
async fn waiting_replications_are_counted() {
    let found = figures("replicate", &["--idle", "5"]).await;
    assert!(found.iter().all(|figure| figure["case"] == "idle"));
    assert_eq!(found.len(), if cfg!(target_os = "linux") { 3 } else { 0 });
}

#[tokio::test]
async fn a_frontend_is_measured() {
    let small = [
        "--clients",
        "4",
        "--docs",
        "20",
        "--large",
        "30",
        "--listeners",
        "5",
    ];
    let figures = figures("api", &small).await;
    let found = by_case(&figures);
    let cases: Vec<_> = found.keys().copied().collect();
    let all = [
        "changes_fanout",
        "doc_writes",
        "docs_page/30",
        "docs_page_from/30",
    ];
    assert_eq!(cases, all);
    for (case, metrics) in found {
        assert_eq!(metrics[..3], ["per_s", "ms_p50", "ms_p99"], "{case}");
    }
}

#[tokio::test]
async fn a_fleet_is_measured() {
    let cases = "idle/3,one_shot/10,takeover/stop";
    let soon = ["--set", "replicator.park_after_sec=1"];
    let small = [&["--cases", cases, "--seconds", "1"][..], &soon].concat();
    let figures = figures("fleet", &small).await;
    let found = by_case(&figures);
    assert_eq!(found["one_shot/10"], ["wall_s"]);
    assert_eq!(found["takeover/stop"], ["seconds"]);
    let idle = &found["idle/3"];
    assert!(idle.contains(&"arrival_ms_p50"), "{idle:?}");
    assert!(cfg!(not(target_os = "linux")) || idle.contains(&"cpu_percent"));
}

#[tokio::test]
async fn a_node_that_follows_changes_is_measured() {
    let small = [
        "--sleepers=200",
        "--databases=100",
        "--changes=20",
        "--seconds=1",
        "--updates=500",
        "--storm-databases=10",
    ];
    let figures = figures("changes", &small).await;
    let value = |case: &str, metric: &str| {
        let mut found = figures.iter();
        let found = found.find(|figure| figure["case"] == case && figure["metric"] == metric);
        found.unwrap()["value"].as_f64().unwrap()
    };
    assert!(value("sleeping", "woken") < 0.5);
    assert!(value("sleeping", "arrival_ms_p50") > 0.0 && value("sleeping", "wake_ms_p50") > 0.0);
    assert!(value("databases", "unchanged_requests") < 0.5);
    assert!(value("databases", "changes_per_s") > 1.0);
    assert!(value("storm", "feed_rows") >= 100.0);
    assert!(value("storm", "runs_per_database") >= 1.0);
}

#[tokio::test]
async fn calls_of_webhooks_are_measured() {
    let small = ["--calls=200", "--endpoints=5", "--rate=100", "--seconds=1"];
    let figures = figures("webhooks", &small).await;
    let found = by_case(&figures);
    assert_eq!(found["throughput"], ["enqueued", "delivered", "received"]);
    assert_eq!(found["debounced"], ["calls"]);
    let debounced = figures.iter().find(|figure| figure["case"] == "debounced");
    assert_eq!(debounced.unwrap()["value"].as_f64(), Some(2.0));
    assert_eq!(
        found["down"],
        ["up_ms_p50", "up_ms_p99", "ms_p50", "ms_p99", "p99_ratio"]
    );
}

/// A server that never accepts documents for the target, and a benchmark that times out.
async fn stuck(args: &[&str]) -> (Peer, Child) {
    let peer = Peer::start(Options::default()).await.unwrap();
    let hang = (On::post("/bench-small-*-ours/_bulk_docs"), Fault::Hang);
    peer.set_faults(Faults::script([hang]));
    let child = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["bench", "replicate", "--cases", "small", "--scale", "0.01"])
        .args(["--server", &peer.url()])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    (peer, child)
}

/// The error of a failed benchmark; its databases are deleted.
async fn failed(peer: &Peer, child: Child) -> String {
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let requests = peer.requests();
    let created: Vec<&str> = (requests.iter())
        .filter(|request| request.is("PUT", "/bench-small-*") && request.status == 201)
        .map(|request| request.path.trim_matches('/'))
        .filter(|name| !name.contains('/'))
        .collect();
    assert_eq!(created.len(), 2);
    assert!(created.iter().all(|name| peer.contents(name).is_err()));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn interrupted_it_leaves_nothing_behind() {
    for signal in ["-INT", "-TERM"] {
        let (peer, child) = stuck(&[]).await;
        let begun = async {
            // The benchmark waits until the server, which is this process, is idle.
            while peer.injected().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_mins(1), begun).await.unwrap();
        let pid = child.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().await;
        assert!(sent.unwrap().success());
        let said = failed(&peer, child).await;
        assert!(said.contains("interrupted"), "{said}");
    }
}

#[tokio::test]
async fn a_case_that_takes_too_long_is_given_up() {
    let (peer, child) = stuck(&["--limit", "3"]).await;
    let said = failed(&peer, child).await;
    assert!(said.contains("case small: timed out after 3 s"), "{said}");
    assert!(said.contains("not measured: small"), "{said}");
}
