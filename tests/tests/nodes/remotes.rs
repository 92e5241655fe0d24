//! Remotes of a node, over HTTP and by command.

use e2e::{ADMIN, Node, Start};
use peer::{Options, Peer};
use serde_json::{Value, json};
use tempfile::TempDir;

async fn run(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let start = Start::new("davenport", &[&["remotes"], args].concat());
    let start = start
        .variable("DAVENPORT_URL", &node.url)
        .variable("DAVENPORT_USER", &format!("{}:{}", ADMIN.0, ADMIN.1));
    start.output().await.unwrap()
}

/// A node with a remote, whose delay is long.
async fn with_remote() -> (Node, Peer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        admin: Some(("bob".to_owned(), "s3cret".to_owned())),
        ..Options::default()
    };
    let peer = Peer::start(options).await.unwrap();
    for name in ["app_a", "app_b", "other"] {
        peer.create_database(name).unwrap();
        peer.put(name, r#"{"_id":"x"}"#).unwrap();
    }
    let file = directory.path().join("davenport.toml");
    let server = peer.url().replace("://", "://bob:s3cret@");
    let config = format!("[sources.couch]\nurl = \"{server}\"\n");
    std::fs::write(&file, config).unwrap();
    let start = Start::node("davenport", directory.path()).admin();
    let start = start.args(&["--config", &file.display().to_string()]);
    let node = start.start().await.unwrap();
    let root = node.root();
    let followed = |all: &Value| all["sources"][0]["followed"] == true;
    root.until("/_sources", followed).await.unwrap();
    root.put("/_rules", &json!({})).await.unwrap();
    let urls = ["eu1", "eu2"].map(|to| format!("{server}/{to}_${{name}}"));
    let remote = json!({
        "type": "remote", "source": format!("{server}/${{name}}"), "databases": ["app_*"], "create_missing": true,
        "url": urls,
        "replication_delay_sec": 600,
    });
    let (status, answer) = root.put("/_rules/eu", &remote).await.unwrap();
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = root.put("/_rules/a%2Fb", &remote).await.unwrap();
    assert_eq!(status, 403, "{answer}");
    (node, peer, directory)
}

#[tokio::test]
async fn remotes_are_listed_shown_and_started() {
    let (node, peer, _directory) = with_remote().await;
    let root = node.root();
    // Without --now nothing would end.
    let (code, out, error) = run(
        &node,
        &["start", "eu", "--now", "--wait", "--timeout", "60"],
    )
    .await;
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(out.contains("4 completed, 0 failed"), "{out}");
    for target in ["eu1_app_a", "eu2_app_a", "eu1_app_b", "eu2_app_b"] {
        assert!(peer.get(target, "x").unwrap().is_some(), "{target}");
    }
    let (_, out, _) = run(&node, &["list"]).await;
    let line: Vec<_> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        line[..9],
        ["eu", "yes", "yes", "4", "0", "0", "0", "4", "0"],
        "{out}"
    );
    assert!(!out.contains("s3cret"), "{out}");
    peer.put("app_a", r#"{"_id":"y"}"#).unwrap();
    let delayed = |remote: &Value| remote["waiting_for"]["delay"] == 2;
    let shown = root
        .until("/_remotes/eu?state=waiting", delayed)
        .await
        .unwrap();
    let jobs = shown["jobs"].as_array().unwrap();
    assert_eq!(
        (jobs.len(), &jobs[0]["database"], &jobs[0]["reason"]),
        (2, &json!("app_a"), &json!("delay"))
    );
    assert!(
        jobs[0]["waits_for"]
            .as_str()
            .unwrap()
            .starts_with("its delay, until "),
        "{shown:#}"
    );
    assert_eq!(
        (&shown["looked_up"], &shown["threads"]),
        (&json!(true), &json!(4))
    );
    for target in ["eu1", "/eu1_${name}"] {
        let args = ["start", "--database", "app_a", "--target", target, "--now"];
        let (code, out, _) = run(&node, &args).await;
        let line = out.lines().nth(1).map(str::split_whitespace);
        assert_eq!(
            (code, line.map(Iterator::collect)),
            (Some(0), Some(vec!["eu", "1"])),
            "{target}"
        );
    }
    let one =
        |remote: &Value| remote["waiting_for"]["delay"] == 1 && remote["states"]["asleep"] == 3;
    root.until("/_remotes/eu", one).await.unwrap();
    let (_, out, _) = run(&node, &["show", "eu", "--state", "waiting"]).await;
    assert!(
        out.contains("eu2_app_a") && !out.contains("eu1_app_a") && !out.contains("s3cret"),
        "{out}"
    );
    node.stop().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_started_is_said() {
    let (node, _peer, _directory) = with_remote().await;
    let root = node.root();
    for (body, told) in [
        (json!({}), "give either `databases`"),
        (
            json!({"all": true, "databases": ["a"]}),
            "give either `databases`",
        ),
        (json!({"all": "yes"}), "`all` must be true or false"),
        (
            json!({"databases": ["^("]}),
            "`databases[0]`: the regular expression",
        ),
        (
            json!({"all": true, "timeout_sec": 1e9}),
            "`timeout_sec` must be from 0 to 3600",
        ),
        (json!({"all": true, "remote": "eu"}), "`remote` is unknown"),
        (
            json!({"all": true, "remotes": []}),
            "`remotes` must be a list",
        ),
        (
            json!({"all": true, "remotes": ["us"]}),
            "there is no remote `us`",
        ),
    ] {
        let (status, answer) = root.post("/_remotes/_start", &body).await.unwrap();
        let reason = answer["reason"].as_str().unwrap_or_default();
        assert!(
            status.is_client_error() && reason.contains(told),
            "{body}: {answer}"
        );
    }
    root.post("/_rules/eu/_pause", &json!({})).await.unwrap();
    let (code, _, error) = run(&node, &["start", "eu"]).await;
    assert!(
        code == Some(1) && error.contains("paused; resume it first"),
        "{error}"
    );
    let (code, out, _) = run(&node, &["start", "--all"]).await;
    assert_eq!((code, &*out), (Some(0), "nothing to start\n"));
    node.stop().await.unwrap();
}
