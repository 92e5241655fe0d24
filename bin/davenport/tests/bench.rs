//! `davenport bench replicate`, with few documents.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::process::Command;

async fn figures(args: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["bench", "replicate", "--json"])
        .args(args)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn every_case_has_its_figures() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for figure in figures(&["--scale", "0.002"]).await {
        assert_eq!(figure["bench"], "replicate");
        assert_eq!(
            figure["who"], "davenport",
            "the server in memory has no replicator"
        );
        assert!(figure["value"].as_f64().unwrap() >= 0.0 && figure["unit"].is_string());
        let case = figure["case"].as_str().unwrap().to_owned();
        let metric = figure["metric"].as_str().unwrap().to_owned();
        found.entry(case).or_default().push(metric);
    }
    let cases: Vec<_> = found.keys().map(String::as_str).collect();
    assert_eq!(
        cases,
        ["attachments", "caught_up", "conflicts", "large", "small"]
    );
    for (case, metrics) in found {
        if cfg!(target_os = "linux") {
            let all = ["wall_s", "cpu_s", "server_cpu_s", "peak_rss_mb"];
            assert_eq!(metrics, all, "{case}");
        } else {
            assert!(metrics.contains(&"wall_s".to_owned()), "{case}");
        }
    }
}

#[tokio::test]
async fn waiting_replications_are_counted() {
    let found = figures(&["--idle", "5"]).await;
    assert!(found.iter().all(|figure| figure["case"] == "idle"));
    assert_eq!(found.len(), if cfg!(target_os = "linux") { 3 } else { 0 });
}

#[tokio::test]
async fn a_frontend_is_measured() {
    let output = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["bench", "api", "--json", "--clients", "4", "--docs", "20"])
        .args(["--large", "30", "--listeners", "5"])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let figure: Value = serde_json::from_str(line).unwrap();
        assert_eq!(figure["bench"], "api");
        assert!(figure["value"].as_f64().unwrap() > 0.0 && figure["unit"].is_string());
        let case = figure["case"].as_str().unwrap().to_owned();
        let metric = figure["metric"].as_str().unwrap().to_owned();
        found.entry(case).or_default().push(metric);
    }
    let cases: Vec<_> = found.keys().map(String::as_str).collect();
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
