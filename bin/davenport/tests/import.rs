//! `davenport import replicator`, as an operator uses it to migrate a cluster.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::path::Path;
use std::process::Output;

use peer::{Options, Peer};
use serde_json::{Value, json};
use tokio::process::Command;

/// The program, on a store in this directory.
async fn import(directory: &Path, from: &str, user: &str, args: &[&str]) -> Output {
    let store = format!("lmdb:{}", directory.join("data").display());
    Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["import", "replicator", "--json", "--store", &store])
        .args(["--from", from])
        .args(args)
        .env("DAVENPORT_USER", user)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(output: &Output) -> Vec<Value> {
    let lines = text(&output.stdout);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn cluster() -> Peer {
    let cluster = Peer::start(Options::default()).await.unwrap();
    cluster.set_admin("boss", "b0ss");
    cluster.create_database("_replicator").unwrap();
    cluster.create_database("other/_replicator").unwrap();
    cluster.create_database("data").unwrap();
    let (source, target) = ("http://u:p@s.example/a", "http://t.example/b");
    for doc in [
        json!({"_id": "runs", "source": source, "target": target, "owner": "anna", "continuous": true}),
        json!({"_id": "done", "source": source, "target": target, "owner": "anna",
            "_replication_state": "completed"}),
        json!({"_id": "old", "source": source, "target": target}),
        json!({"_id": "local", "source": "data", "target": target, "owner": "anna"}),
        json!({"_id": "named", "source": {"url": "data"}, "target": target, "owner": "boss"}),
        json!({"_id": "_design/vdu", "validate_doc_update": "function() {}"}),
    ] {
        cluster.put("_replicator", &doc.to_string()).unwrap();
    }
    cluster
}

#[tokio::test]
async fn a_cluster_moves_over_once_and_again() {
    let (cluster, directory) = (cluster().await, tempfile::tempdir().unwrap());
    let (dir, url) = (directory.path(), cluster.url());
    let dry = import(dir, &url, "boss:b0ss", &[]).await;
    assert!(dry.status.success(), "{}", text(&dry.stderr));
    assert!(text(&dry.stderr).contains("nothing was written"));
    let refused = json!([
        {"id": "_design/vdu", "reason": "it has `validate_doc_update`, and functions are not run here"},
        {"id": "local", "reason": "it names a database instead of a URL; only its owner can supply the credentials, by importing or writing \
                                   the document"},
    ]);
    let sorted = |mut line: Value| {
        let refused = line["refused"].as_array_mut().unwrap();
        refused.sort_by_key(|row| row["id"].to_string());
        line
    };
    let empty = json!({
        "database": "other/_replicator", "applied": false, "run": 0, "ended": 0, "deleted": 0,
        "designs": 0, "present": 0, "ownerless": 0, "refused": [],
    });
    let expected = json!({
        "database": "_replicator", "applied": false, "run": 3, "ended": 1, "deleted": 0,
        "designs": 0, "present": 0, "ownerless": 1, "refused": refused,
    });
    let said: Vec<_> = lines(&dry).into_iter().map(sorted).collect();
    assert_eq!(said, [expected.clone(), empty]);
    // Checkpoints would be lost.
    let other = import(dir, &url, "boss:b0ss", &["--apply"]).await;
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
    let told = text(&other.stderr);
    let uuid = told
        .split("uuid = \"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let uuid = format!("couchdb.uuid={uuid}");
    let apply = ["--apply", "--set", &uuid];
    let applied = import(dir, &url, "boss:b0ss", &apply).await;
    assert_eq!(applied.status.code(), Some(1), "two documents are left out");
    let mut expected = expected;
    expected["applied"] = true.into();
    assert_eq!(sorted(lines(&applied)[0].clone()), expected);
    // The next import brings later changes.
    let rev = cluster.get("_replicator", "runs").unwrap().unwrap()["_rev"].clone();
    let changed = json!({"_id": "runs", "_rev": rev, "source": "http://s.example/c",
        "target": "http://t.example/b", "owner": "anna"});
    cluster.put("_replicator", &changed.to_string()).unwrap();
    let gone = cluster.get("_replicator", "old").unwrap().unwrap();
    let gone = json!({"_id": "old", "_rev": gone["_rev"], "_deleted": true});
    cluster.put("_replicator", &gone.to_string()).unwrap();
    let again = lines(&import(dir, &url, "boss:b0ss", &apply).await);
    let counts =
        ["run", "ended", "deleted", "present"].map(|name| again[0][name].as_u64().unwrap());
    assert_eq!(counts, [1, 0, 1, 2]);
    let twice = lines(&import(dir, &url, "boss:b0ss", &apply).await);
    assert_eq!(
        (&twice[0]["run"], &twice[0]["present"]),
        (&json!(0), &json!(4))
    );
}

#[tokio::test]
async fn who_cannot_see_credentials_imports_nothing() {
    let (cluster, directory) = (cluster().await, tempfile::tempdir().unwrap());
    cluster.add_user("anna", "a", &[]).unwrap();
    let (dir, url) = (directory.path(), cluster.url());
    for (user, told) in [
        ("anna:a", "anna is not an administrator of the cluster"),
        ("boss:guess", "Name or password is incorrect."),
    ] {
        let refused = import(dir, &url, user, &[]).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            text(&refused.stderr).contains(told),
            "{}",
            text(&refused.stderr)
        );
    }
    let nowhere = import(dir, "", "boss:b0ss", &[]).await;
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(
        text(&nowhere.stderr).contains("--from"),
        "{}",
        text(&nowhere.stderr)
    );
}

#[tokio::test]
async fn blocked_hosts_come_with_the_line_that_allows_them() {
    let (cluster, directory) = (cluster().await, tempfile::tempdir().unwrap());
    for (id, owner, source) in [
        ("own", "boss", "http://10.1.1.1:5984/a"),
        ("metadata", "boss", "http://169.254.169.254/a"),
        ("theirs", "anna", "http://10.1.1.1:5984/a"),
        ("denied", "anna", "http://10.2.2.2/a"),
    ] {
        let doc =
            json!({"_id": id, "source": source, "target": "http://8.8.8.8/b", "owner": owner});
        cluster.put("_replicator", &doc.to_string()).unwrap();
    }
    let rules = [
        "--set",
        "network.egress.deny=10.2.0.0/16",
        "--set",
        "network.egress.allow=8.8.8.8",
    ];
    let (dir, url) = (directory.path(), cluster.url());
    let dry = import(dir, &url, "boss:b0ss", &rules).await;
    let lines = lines(&dry);
    let blocked = lines.iter().filter(|line| line.get("blocked").is_some());
    let blocked: Vec<_> = blocked
        .map(|line| (line["blocked"].as_str().unwrap(), &line["endpoints"]))
        .collect();
    let one = &json!(1);
    assert_eq!(
        blocked,
        [
            ("10.1.1.1:5984", one),
            ("10.2.2.2:80", one),
            ("169.254.169.254:80", one)
        ]
    );
    let store = format!("lmdb:{}", dir.join("data").display());
    let shown = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["import", "replicator", "--store", &store, "--from", &url])
        .args(rules)
        .env("DAVENPORT_USER", "boss:b0ss")
        .output();
    let shown = text(&shown.await.unwrap().stdout);
    let line = r#"network.egress.allow = ["8.8.8.8","10.1.1.1:5984","169.254.169.254:80"]"#;
    assert_eq!(shown.lines().last(), Some(line), "{shown}");
    // It is as it is to be used.
    let file = dir.join("davenport.toml");
    std::fs::write(&file, line).unwrap();
    let file = file.display().to_string();
    let checked = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args([
            "serve",
            "--admin",
            "a:b",
            "--store",
            &store,
            "--check-config",
            "--config",
            &file,
        ])
        .output();
    let checked = checked.await.unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}

#[tokio::test]
async fn a_configuration_of_couchdb_is_converted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("local.ini");
    let ini = "[replicator]\nmax_jobs = 7\n[replicator.shares]\n_replicator = 50\n[chttpd]\nport = 5984\n";
    std::fs::write(&file, ini).unwrap();
    let davenport = || Command::new(env!("CARGO_BIN_EXE_davenport"));
    let converted = davenport().args(["import", "config"]).arg(&file).output();
    let converted = converted.await.unwrap();
    assert!(converted.status.success(), "{}", text(&converted.stderr));
    let told = text(&converted.stdout);
    assert!(
        told.contains("[replicator.shares]\n_replicator = 50\n"),
        "{told}"
    );
    // A node takes it as it is.
    let toml = directory.path().join("davenport.toml");
    std::fs::write(&toml, told).unwrap();
    let checked = davenport()
        .args(["serve", "--admin", "a:b", "--check-config", "--config"])
        .arg(&toml)
        .output();
    let checked = checked.await.unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}

#[tokio::test]
async fn a_running_couchdb_tells_its_configuration() {
    let Some(couch) = testkit::CouchDb::find() else {
        return;
    };
    let (name, password) = (&couch.admin.0, &couch.admin.1);
    let converted = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(["import", "config", &couch.plain_url])
        .env("DAVENPORT_USER", format!("{name}:{password}"))
        .output();
    let converted = converted.await.unwrap();
    assert!(converted.status.success(), "{}", text(&converted.stderr));
    let told = text(&converted.stdout);
    assert!(told.contains("[couchdb]\nuuid = "), "{told}");
}
