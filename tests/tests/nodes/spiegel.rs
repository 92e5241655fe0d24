//! The import of Spiegel's rules.

use peer::{Options, Peer};
use serde_json::{Value, json};

use crate::commands::{Commands, run};

/// A server with Spiegel's database.
async fn spiegel() -> Peer {
    let peer = Peer::start(Options::default()).await.unwrap();
    peer.set_admin("boss", "b0ss");
    peer.create_database("spiegel").unwrap();
    for doc in [
        json!({"_id": "copy", "type": "replicator", "source": "http://u@s.example:5984/a", "target": "http://v@t.example/b",
            "dirty": true, "updated_at": 1, "locked_at": null}),
        json!({"_id": "hook", "type": "on_change", "url": "http://bob@h.example/x", "params": {"n": 1}}),
        json!({"_id": "order", "type": "on_change", "url": "http://h.example/y", "block": true}),
        json!({"_id": "bad", "type": "on_change", "url": "http://h.example/z", "if": {"a": "("}}),
        json!({"_id": "spiegel_cl_a", "type": "change_listener", "db_name": "a", "last_seq": "7-x"}),
        json!({"_id": "global_lastSeq", "type": "global", "lastSeq": "9-x"}),
        json!({"_id": "_design/on_changes", "views": {}}),
    ] {
        peer.put("spiegel", &doc.to_string()).unwrap();
    }
    // More than a page.
    let listeners = (0..450)
        .map(|n| format!(r#"{{"_id":"spiegel_cl_{n}","type":"change_listener","db_name":"{n}"}}"#));
    peer.put_all("spiegel", listeners).unwrap();
    peer
}

fn url_of(spiegel: &Peer) -> String {
    let url = format!("{}/spiegel", spiegel.url().trim_end_matches('/'));
    url.replace("http://", "http://boss:b0ss@")
}

#[tokio::test]
async fn a_dry_run_tells_what_becomes_of_spiegels_documents() {
    let peer = spiegel().await;
    let from = url_of(&peer);
    // It needs no service.
    let import = ["import", "spiegel", "--from", &from];
    let (code, out, error) = run("http://127.0.0.1:1", &import).await;
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(error.contains("nothing was written"), "{error}");
    for line in [
        "accepted: copy\n",
        "accepted: order\n",
        "changed: hook: `block`: false, as Spiegel behaved without it\n",
        "rejected: bad: `if.a`: ",
        "3 accepted, 1 of them changed; 1 rejected; ignored: 453 documents, 451 change_listener, 1 design documents, 1 global\n",
        "  http://s.example:5984 (1 rule)\n",
        "  h.example:80 (2 rules)\n",
        "  bob@h.example:80\n  u@s.example:5984\n  v@t.example:80\n",
        "rules begin with the present state of each database",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let (code, _, error) = run("", &["import", "spiegel", "--from", &peer.url()]).await;
    assert_eq!(code, Some(2));
    assert!(error.contains("--from: write "), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"h": {"u": 12345}}"#).unwrap();
    let bad = ["--passwords", file.path().to_str().unwrap()];
    let (code, _, error) = run("", &[&import[..], &bad].concat()).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("are not of the form") && !error.contains("12345"),
        "{error}"
    );
}

#[tokio::test]
async fn spiegels_rules_are_imported_once() {
    let peer = spiegel().await;
    let from = url_of(&peer);
    let import = ["import", "spiegel", "--from", &from];
    let commands = Commands::start("").await;
    let passwords = commands.file(
        "passwords",
        r#"{"s.example": {"u": "p w"}, "h.example": {"bob": "x"}}"#,
    );
    let apply = [
        &import[..],
        &["--apply", "--passwords", &passwords, "--json"],
    ]
    .concat();
    let (code, out, error) = commands.run(&apply).await;
    assert_eq!(code, Some(1), "{error}");
    let lines = |out: &str| -> Vec<Value> {
        let lines = out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let summary = json!({
        "applied": true, "accepted": 3, "changed": 2, "rejected": 1,
        "ignored": {"change_listener": 451, "design documents": 1, "global": 1}, "written": 3,
        "servers": {"http://s.example:5984": 1}, "hosts": {"h.example:80": 2},
        "missing_passwords": [{"host": "t.example:80", "user": "v"}],
    });
    assert_eq!(lines(&out).last(), Some(&summary), "{error}");
    assert!(!out.contains("p%20w"), "{out}");
    let root = commands.node.root();
    let (_, copy) = root.get("/spiegel/copy").await.unwrap();
    let rev = copy["_rev"].clone();
    let expected = json!({"_id": "copy", "_rev": rev, "type": "replicator",
        "source": "http://u:p%20w@s.example:5984/a", "target": "http://v@t.example/b"});
    assert_eq!(copy, expected);
    let (_, hook) = root.get("/spiegel/hook").await.unwrap();
    assert_eq!(hook["block"], false);
    let list = commands
        .succeed(&["rules", "list", "--db", "spiegel"])
        .await;
    assert_eq!(list.lines().count(), 4, "{list}");

    // Again, nothing changes; a rule that has changed in Spiegel is written.
    let (_, out, _) = commands.run(&apply).await;
    assert_eq!(lines(&out).last().unwrap()["written"], 0);
    let order = peer.get("spiegel", "order").unwrap().unwrap();
    let order = json!({"_id": "order", "_rev": order["_rev"], "type": "on_change", "url": "http://h.example/new",
        "block": true});
    peer.put("spiegel", &order.to_string()).unwrap();
    let (_, out, _) = commands.run(&apply).await;
    assert_eq!(lines(&out).last().unwrap()["written"], 1);
    let (_, order) = root.get("/spiegel/order").await.unwrap();
    assert_eq!(order["url"], "http://h.example/new");
    let (_, copy) = root.get("/spiegel/copy").await.unwrap();
    assert_eq!(copy["_rev"], rev);

    commands.node.stop().await.unwrap();
}
