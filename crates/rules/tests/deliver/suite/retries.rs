//! Failed calls, and replays.

use std::sync::Arc;

use ::jobs::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use rules::deliver::{Filter, Shown};
use rules::rule::call::{Call, Retry};
use tokio::sync::Semaphore;

use crate::Fixture;
use crate::endpoint::{Endpoint, Seen};
use crate::fixture::call;

fn limited(limit: u32) -> Retry {
    Retry {
        delay_sec: 0.001,
        limit: Some(limit),
        ..Retry::default()
    }
}

pub(crate) async fn a_failed_call_is_repeated(fixture: Fixture) {
    let endpoint = Endpoint::new(|seen: Seen| async move {
        match seen.nth {
            0 => (StatusCode::INTERNAL_SERVER_ERROR, "oh"),
            1 => (StatusCode::BAD_REQUEST, "no"),
            _ => (StatusCode::CREATED, "yes"),
        }
    })
    .await;
    let _node = fixture.node();
    fixture.enqueue(&[call(&endpoint.url("/"), 1)]).await;
    let shown = fixture.only(State::Finished, 3).await;
    let seen = endpoint.seen();
    assert_eq!(seen.len(), 3);
    for one in &seen {
        assert_eq!(one.header("webhook-id"), Some(&*shown.message));
        assert_eq!(one.header("webhook-replay"), None);
    }
    let last = shown.last.unwrap();
    assert_eq!(
        (last.status, last.body.as_str(), shown.failures),
        (Some(201), "yes", 0)
    );
    let (_, runs) = fixture.deliveries.show(&shown.id).await.unwrap().unwrap();
    let reasons: Vec<_> = runs
        .iter()
        .map(|run| run.reason.as_ref().unwrap().split(' ').next().unwrap())
        .collect();
    assert_eq!(reasons, ["500", "400", "201"]);
    assert!(
        runs.iter()
            .all(|run| run.node == "node" && run.ended_ms >= Some(run.started_ms))
    );
}

pub(crate) async fn calls_can_be_limited(fixture: Fixture) {
    let endpoint = Endpoint::with_status(404).await;
    let _node = fixture.node();
    fixture
        .enqueue(&[Call {
            retry: limited(2),
            ..call(&endpoint.url("/"), 1)
        }])
        .await;
    let shown = fixture.only(State::Dead, 3).await;
    assert_eq!(endpoint.seen().len(), 3);
    assert!(shown.reason.unwrap().starts_with("404 in "));
}

pub(crate) async fn calls_of_a_paused_rule_do_not_return_together(fixture: Fixture) {
    let calls: Vec<_> = (0..20)
        .map(|nth| Call {
            rule: "paused".into(),
            ..call("http://h/", nth)
        })
        .collect();
    fixture.enqueue(&calls).await;
    let _node = fixture.node();
    let waits = |all: &[Shown]| {
        all.iter()
            .all(|shown| shown.reason.as_deref() == Some("paused"))
    };
    let waiting = fixture.settled(waits).await;
    let now_ms = fixture.jobs.clock().now_ms();
    let mut due: Vec<_> = waiting.iter().map(|shown| shown.due_ms.unwrap()).collect();
    due.sort_unstable();
    assert!(due[19] <= now_ms + 60_000, "{due:?}");
    assert!(due[19] - due[0] > 3_000, "{due:?}");
}

pub(crate) async fn gone_is_dead(fixture: Fixture) {
    let endpoint = Endpoint::with_status(410).await;
    let _node = fixture.node();
    let deleted = Call {
        rule: "deleted".into(),
        ..call(&endpoint.url("/"), 2)
    };
    fixture
        .enqueue(&[call(&endpoint.url("/"), 1), deleted])
        .await;
    fixture
        .settled(|all| all.len() == 2 && all.iter().all(|shown| shown.state == State::Dead))
        .await;
    assert_eq!(endpoint.seen().len(), 1);
}

pub(crate) async fn receivers_can_ask_for_a_delay(fixture: Fixture) {
    let endpoint =
        Endpoint::new(|_| async { (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "3600")]) })
            .await;
    let _node = fixture.node();
    fixture.enqueue(&[call(&endpoint.url("/"), 1)]).await;
    let shown = fixture.only(State::Pending, 1).await;
    let last = shown.last.unwrap();
    assert!(shown.due_ms.unwrap() >= last.at_ms + 3_600_000);
    // Others of the endpoint wait, too.
    fixture.enqueue(&[call(&endpoint.url("/"), 2)]).await;
    let waits = |shown: &&Shown| shown.seq == "2-x" && shown.due_ms > Some(last.at_ms);
    let all = fixture
        .settled(|all| all.iter().any(|shown| waits(&shown)))
        .await;
    let other = all.iter().find(waits).unwrap();
    assert!(other.due_ms.unwrap() >= last.at_ms + 3_500_000);
    assert_eq!(other.attempts, 0);
    assert_eq!(
        other.reason.as_deref(),
        Some("its endpoint failed 1 times in a row")
    );
}

pub(crate) async fn dead_letters_are_replayed(fixture: Fixture) {
    let well = Arc::new(Semaphore::new(0));
    let asked = Arc::clone(&well);
    let endpoint = Endpoint::new(move |_| {
        let status = if asked.available_permits() > 0 {
            200
        } else {
            404
        };
        async move { StatusCode::from_u16(status).unwrap() }
    })
    .await;
    let _node = fixture.node();
    let calls = |rule: &str, from: usize| {
        let one = |nth| Call {
            rule: rule.into(),
            retry: limited(0),
            ..call(&endpoint.url("/"), nth)
        };
        (from..from + 150).map(one).collect::<Vec<_>>()
    };
    fixture.enqueue(&calls("one", 0)).await;
    fixture.enqueue(&calls("two", 200)).await;
    let dead = fixture
        .settled(|all| all.len() == 300 && all.iter().all(|shown| shown.state == State::Dead))
        .await;
    well.add_permits(1);
    let one = dead.iter().find(|shown| shown.rule == "two").unwrap();
    assert!(fixture.deliveries.replay(&one.id).await.unwrap());
    assert!(!fixture.deliveries.replay("msg_unknown").await.unwrap());
    let seen = endpoint.received(301).await.pop().unwrap();
    assert_eq!(seen.header("webhook-id"), Some(&*one.message));
    assert_eq!(seen.header("webhook-replay"), Some("1"));
    let filter = Filter {
        rule: Some("one".into()),
        ..Filter::default()
    };
    assert_eq!(fixture.deliveries.replay_all(&filter).await.unwrap(), 150);
    let is_done = |state| move |shown: &&Shown| shown.state == state;
    let all = fixture
        .settled(|all| all.iter().filter(is_done(State::Finished)).count() == 151)
        .await;
    let left: Vec<_> = all.iter().filter(is_done(State::Dead)).collect();
    assert!(left.len() == 149 && left.iter().all(|shown| shown.rule == "two"));
    // What was delivered can be replayed, too.
    let filter = Filter {
        rule: Some("one".into()),
        state: Some(State::Finished),
        ..Filter::default()
    };
    assert_eq!(fixture.deliveries.replay_all(&filter).await.unwrap(), 150);
    assert_eq!(endpoint.received(601).await.len(), 601);
}

pub(crate) async fn a_changed_call_is_made_after_the_running_one(fixture: Fixture) {
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let endpoint = Endpoint::new(move |_| {
        let gate = Arc::clone(&gate);
        async move { gate.acquire().await.unwrap().forget() }
    })
    .await;
    let _node = fixture.node();
    fixture.enqueue(&[call(&endpoint.url("/"), 1)]).await;
    endpoint.received(1).await;
    let shown = fixture.only(State::Running, 0).await;
    assert!(fixture.deliveries.replay(&shown.id).await.unwrap());
    go.add_permits(2);
    let seen = endpoint.received(2).await;
    assert_eq!(seen[0].header("webhook-replay"), None);
    assert_eq!(seen[1].header("webhook-replay"), Some("1"));
}
