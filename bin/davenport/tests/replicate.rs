//! `davenport replicate` and `davenport demo`, as a new user tries them.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::process::{Output, Stdio};
use std::time::Duration;

use peer::{Options, Peer};
use testkit::{Signal, send_signal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;

async fn davenport(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(args)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn source() -> Peer {
    let source = Peer::start(Options::default()).await.unwrap();
    source.create_database("db").unwrap();
    let documents = (0..100).map(|n| format!(r#"{{"_id":"{n:03}","even":{}}}"#, n % 2 == 0));
    source.put_all("db", documents).unwrap();
    source
}

#[tokio::test]
async fn a_database_is_copied_once() {
    let (source, target) = (
        source().await,
        Peer::start(Options::default()).await.unwrap(),
    );
    let (from, to) = (source.database_url("db"), target.database_url("copy"));
    let output = davenport(&["replicate", &from, &to, "--create-target"]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "Copied 100 documents; 0 rejected\n");
    let contents = |peer: &Peer, name| peer.contents(name).unwrap().without_locals();
    assert_eq!(
        peer::compare(&contents(&source, "db"), &contents(&target, "copy")),
        []
    );
    // The second run finds the checkpoint of the first.
    let again = davenport(&["replicate", &from, &to, "--create-target", "--json"]).await;
    let last = text(&again.stdout).lines().last().unwrap().to_owned();
    let result: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(result["result"]["no_changes"], true);
    source.put("db", r#"{"_id":"more"}"#).unwrap();
    let more = davenport(&["replicate", &from, &to]).await;
    assert_eq!(text(&more.stdout), "Copied 1 documents; 0 rejected\n");
    let nothing = davenport(&["replicate", &from, &to]).await;
    assert_eq!(
        text(&nothing.stdout),
        "Nothing has changed since the last run\n"
    );
}

#[tokio::test]
async fn failures_can_be_read_by_programs() {
    let source = source().await;
    let (from, to) = (source.database_url("db"), source.database_url("missing"));
    let output = davenport(&["replicate", &from, &to, "--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let last = text(&output.stdout).lines().last().unwrap().to_owned();
    let result: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (&result["ok"], &result["error"]),
        (&false.into(), &"db_not_found".into())
    );
}

#[cfg(unix)]
#[tokio::test]
async fn an_interrupt_leaves_a_checkpoint() {
    let (source, target) = (
        source().await,
        Peer::start(Options::default()).await.unwrap(),
    );
    let (from, to) = (source.database_url("db"), target.database_url("copy"));
    let mut running = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["replicate", &from, &to, "--create-target", "--continuous"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let copied = async {
        while target.get("copy", "099").ok().flatten().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), copied)
        .await
        .unwrap();
    let pid = running.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().await;
    assert!(sent.unwrap().success());
    let status = running.wait().await.unwrap();
    assert_eq!(
        status.code(),
        Some(0),
        "a continuous one is done when it is told"
    );
    let locals = |peer: &Peer, name| peer.contents(name).unwrap().locals;
    assert_eq!(locals(&target, "copy").len(), 1);
    assert_eq!(locals(&source, "db").len(), 1);
}

#[tokio::test]
async fn a_selector_chooses() {
    let (source, target) = (
        source().await,
        Peer::start(Options::default()).await.unwrap(),
    );
    let (from, to) = (source.database_url("db"), target.database_url("copy"));
    let selector = r#"{"even":true}"#;
    let output = davenport(&[
        "replicate",
        &from,
        &to,
        "--create-target",
        "--selector",
        selector,
    ])
    .await;
    assert!(
        text(&output.stdout).contains("Copied 50 documents"),
        "{}",
        text(&output.stdout)
    );
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let source = source().await;
    source.set_admin("anna", "s3cr3t");
    let with_password = |url: String| url.replace("http://", "http://anna:s3cr3t@");
    let from = with_password(source.database_url("db"));
    let missing = with_password(source.database_url("missing"));
    for (args, says) in [
        (
            vec![from.as_str(), "db"],
            "TARGET is not the URL of a database",
        ),
        (
            vec!["anna:s3cr3t@localhost/db", from.as_str()],
            "SOURCE is not the URL of a database",
        ),
        (
            vec![from.as_str(), missing.as_str()],
            "db_not_found: could not open http://",
        ),
        (
            vec![from.as_str(), missing.as_str()],
            "--create-target creates a missing target",
        ),
        (
            vec![from.as_str(), missing.as_str(), "--selector", "{"],
            "--selector is not JSON",
        ),
        (
            vec![from.as_str(), missing.as_str(), "--option", "x"],
            "must be FIELD=JSON",
        ),
        (
            vec![
                from.as_str(),
                missing.as_str(),
                "--option",
                "worker_processes=many",
            ],
            "`worker_processes` must be an integer",
        ),
    ] {
        let output = davenport(&[vec!["replicate"], args].concat()).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(says), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
}

#[tokio::test]
async fn the_demo_copies_everything() {
    let output = davenport(&["demo", "--once", "--documents", "50"]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    assert!(told.ends_with("done: 0 differences between source and target\n"));
    // By the worker in Python, where there is one.
    let has_worker = !told.contains("jobs     none");
    let receipt = "receipt  Ada pays 1.00 for order-000000\n";
    assert_eq!(told.contains(receipt), has_worker, "{told}");
}

/// However it ends, and its worker ends with it.
#[tokio::test]
async fn the_demo_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let directory = tempfile::tempdir().unwrap();
        let mut demo = Command::new(env!("CARGO_BIN_EXE_davenport"))
            .args(["demo", "--documents", "1"])
            .env("TMPDIR", directory.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut told = BufReader::new(demo.stdout.take().unwrap()).lines();
        while !(told.next_line().await.unwrap().unwrap()).contains(" documents copied") {}
        send_signal(demo.id().unwrap(), signal).unwrap();
        demo.wait().await.unwrap();
        // The worker has this output, too.
        let (mut told, mut rest) = (told.into_inner(), String::new());
        let ended = told.read_to_string(&mut rest);
        let ended = tokio::time::timeout(Duration::from_mins(1), ended).await;
        ended.expect("the worker is still there").unwrap();
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{signal:?}: {left:?}");
    }
}

/// A missing source is not created, so nothing is said of the target.
#[tokio::test]
async fn advice_is_about_what_is_missing() {
    let source = source().await;
    let (db, none) = (source.database_url("db"), source.database_url("none"));
    let advised = async |from: &str, to: &str| {
        let output = davenport(&["replicate", from, to]).await;
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr).contains("--create-target")
    };
    assert!(advised(&db, &none).await);
    assert!(!advised(&none, &db).await);
}

#[tokio::test]
async fn options_must_be_known() {
    let refused = davenport(&[
        "replicate",
        "http://127.0.0.1:1/a",
        "http://127.0.0.1:1/b",
        "--option",
        "worker_procs=8",
    ])
    .await;
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    let told = text(&refused.stderr);
    assert!(told.contains("worker_procs: no such field"), "{told}");
    assert!(told.contains("worker_processes"), "{told}");
}

/// Whatever the credentials are.
#[tokio::test]
async fn a_server_that_is_not_there_has_refused_nobody() {
    let source = source().await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let plain = source.database_url("db").replace("http://", "https://u:p@");
    for from in [format!("http://u:p@{address}/db"), plain] {
        let to = source.database_url("db");
        let retries = "retries_per_request=0";
        let failed = davenport(&["replicate", &from, &to, "--json", "--option", retries]).await;
        let told = text(&failed.stderr);
        assert!(told.contains("http_request_failed"), "{told}");
    }
}
