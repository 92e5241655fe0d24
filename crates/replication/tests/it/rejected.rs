//! Documents that the target rejects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use peer::{Fault, Faults, On, Options};
use serde_json::{Value, json};

use crate::fixture::{World, counts};

#[tokio::test]
async fn validation_counts_what_it_refuses() {
    let world = World::new().await;
    let validation =
        json!({"_id": "_design/v", "validate_doc_update": peer::sources::VALIDATE_EVEN});
    world.target().put("b", &validation.to_string()).unwrap();
    for n in 1..=6 {
        world.put(&json!({"_id": format!("{n}"), "integer": n}));
    }
    let rev = world.source.put("a", r#"{"_id":"7","integer":7}"#).unwrap();
    world
        .source
        .attach("a", "7", Some(&rev), "x", "text/plain", "hello")
        .unwrap();
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [7, 7, 7, 3, 4]);
    let mut failed: Vec<_> = outcome
        .progress
        .failures
        .iter()
        .map(|failed| failed.id.as_str())
        .collect();
    failed.sort_unstable();
    assert_eq!(failed, ["1", "3", "5", "7"]);
    assert!(
        outcome
            .progress
            .failures
            .iter()
            .all(|failed| failed.rev.is_some() && failed.reason == "only even")
    );
}

#[tokio::test]
async fn design_documents_need_an_administrator() {
    let admin = Some(("adm".to_owned(), "pass".to_owned()));
    let world = World::with(Options {
        admin,
        admin_only: false,
        ..Options::default()
    })
    .await;
    world.source.add_user("joe", "pass", &[]).unwrap();
    world.put_docs(0..5);
    world.put(&json!({"_id": "_design/d"}));
    let as_user = |name: &str, database| {
        world
            .source
            .database_url(database)
            .replace("http://", &format!("http://{name}:pass@"))
    };
    let outcome = world
        .replicate(json!({"source": as_user("adm", "a"), "target": as_user("joe", "b")}))
        .await;
    assert_eq!(counts(&outcome), [6, 6, 6, 5, 1]);
}

/// A validation function may throw any JSON as the reason.
#[tokio::test]
async fn reasons_need_not_be_text() {
    for reason in [json!({"code": 7}), json!(42), json!(["a"]), Value::Null] {
        let world = World::new().await;
        world.put_docs(0..10);
        let row = json!({"id": "doc0003", "rev": "1-x", "error": "forbidden", "reason": reason});
        let refused = Fault::Answer {
            status: 201,
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            body: json!([row]).to_string(),
        };
        let writes = On::post("/b/_bulk_docs");
        world.source.set_faults(Faults::script([(writes, refused)]));
        let outcome = world.replicate(json!({})).await;
        assert_eq!(counts(&outcome), [10, 10, 10, 9, 1]);
        let failed = &outcome.progress.failures[0];
        let expected = match reason {
            Value::Null => String::new(),
            other => other.to_string(),
        };
        assert_eq!((failed.id.as_str(), &failed.reason), ("doc0003", &expected));
    }
}

#[tokio::test]
async fn attachments_of_rejected_documents_do_not_count() {
    let world = World::new().await;
    let validation =
        json!({"_id": "_design/v", "validate_doc_update": peer::sources::VALIDATE_EVEN});
    world.target().put("b", &validation.to_string()).unwrap();
    for n in 1..=6 {
        let attachment = json!({"x": {"content_type": "a/b", "data": BASE64.encode("hello")}});
        let id = n.to_string();
        world.put(&json!({"_id": id, "integer": n, "_attachments": attachment}));
    }
    let outcome = world.replicate(json!({})).await;
    assert_eq!(counts(&outcome), [6, 6, 6, 3, 3]);
    assert_eq!(outcome.progress.stats.attachments_copied, 3);
}
