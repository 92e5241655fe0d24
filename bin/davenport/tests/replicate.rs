//! `davenport replicate` and `davenport demo`, as a new user tries them.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::Output;

use peer::{Options, Peer};
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
    assert_eq!(
        text(&output.stdout),
        "done: 100 revisions checked, 100 missing, 100 documents written, 0 not taken\n"
    );
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
        text(&output.stdout).contains("50 documents written"),
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
        (vec![from.as_str(), "db"], "local_endpoints_not_supported"),
        (
            vec![from.as_str(), missing.as_str()],
            "db_not_found: could not open http://",
        ),
        (
            vec![from.as_str(), missing.as_str(), "--selector", "{"],
            "--selector is not JSON",
        ),
        (
            vec![from.as_str(), missing.as_str(), "--option", "x"],
            "write FIELD=JSON",
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
    assert!(text(&output.stdout).ends_with("done: 0 differences between source and target\n"));
}
