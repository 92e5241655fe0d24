//! Rules with slow calls, and others.

use super::*;

/// All listeners are busy with one rule that has a long backlog.
#[tokio::test]
async fn a_slow_endpoint_keeps_no_other_waiting() {
    let mut fixture = Fixture::new().await;
    fixture.slowness_ms.store(100, Ordering::Relaxed);
    let slow = json!({"_id": "slow", "since": 0, "db_name": "^slow"});
    let healthy =
        json!({"_id": "healthy", "since": 0, "db_name": "^a$", "url": "http://other/${change.id}"});
    let enqueues = json!({"_id": "enqueues", "since": 0, "db_name": "^a$", "url": "http://h/a", "block": false});
    for rule in [slow, healthy, enqueues] {
        fixture.rule(on_change(&rule)).await;
    }
    for nth in 0..20 {
        let db = format!("slow{nth}");
        fixture.peer.create_database(&db).unwrap();
        for doc in 0..50 {
            let doc = json!({"_id": format!("{doc}")});
            fixture.peer.put(&db, &doc.to_string()).unwrap();
        }
        fixture.signal_in(&db, Event::Updated, None).await;
    }
    for _ in 0..4 {
        assert!(!next(&mut fixture.sent).await.starts_with("http://other"));
    }
    fixture.put(&["1"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.enqueued).await, "a");
    let mut before = 4;
    while !next(&mut fixture.sent).await.starts_with("http://other") {
        before += 1;
    }
    // Two turns of four listeners, with up to twenty calls each.
    assert!(before < 200, "{before}");
}
