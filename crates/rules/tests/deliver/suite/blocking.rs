//! Calls that listeners make for rules that block.

use std::future::pending;
use std::time::Duration;

use ::jobs::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use futures::StreamExt as _;
use metrics_exporter_prometheus::PrometheusBuilder;
use rules::rule::call::Outcome;
use rules::rule::{Answer, Sender as _};
use tokio::task::JoinSet;

use crate::Fixture;
use crate::endpoint::{Endpoint, Seen};
use crate::fixture::call;

/// Listeners of a node.
const LISTENING: usize = 32;
const HOUR: Duration = Duration::from_hours(1);

pub(crate) async fn a_hanging_endpoint_keeps_no_listener(fixture: Fixture) {
    let hanging = Endpoint::new(|_| pending::<()>()).await;
    let healthy = Endpoint::with_status(200).await;
    let node = fixture.node();
    let bad = (0..1_000).map(|nth| call(&hanging.url("/"), nth));
    let good = (0..100).map(|nth| call(&healthy.url("/"), 10_000 + nth));
    let all: Vec<_> = bad.chain(good).collect();
    let calls = node.calls.clone();
    let mut listeners = JoinSet::new();
    listeners.spawn(async move {
        let listen = |call| {
            let calls = calls.clone();
            async move { calls.send(&call, 0).await }
        };
        let answers = futures::stream::iter(all).map(listen);
        answers
            .buffer_unordered(LISTENING)
            .for_each(|_| std::future::ready(()))
            .await;
    });
    healthy.received(100).await;
    // All of them, while not one of the bad ones has ended.
    assert_eq!(
        hanging.seen().len(),
        8,
        "no more than `max_in_flight_per_host`"
    );
}

pub(crate) async fn an_endpoint_that_asks_is_left_alone_by_all(fixture: Fixture) {
    let endpoint =
        Endpoint::new(|_| async { (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "3600")]) })
            .await;
    let node = fixture.node();
    let answer = node.calls.send(&call(&endpoint.url("/"), 1), 0).await;
    let Answer::Made(Outcome::Failed(asked), attempt) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((asked, attempt.status), (Some(HOUR), Some(503)));
    let answer = node.calls.send(&call(&endpoint.url("/"), 2), 0).await;
    let Answer::Later(wait, why) = answer else {
        panic!("{answer:?}");
    };
    assert!(wait > HOUR.mul_f64(0.9), "{wait:?}");
    assert_eq!(why, "its endpoint failed 1 times in a row");
    fixture.enqueue(&[call(&endpoint.url("/"), 3)]).await;
    let postponed = |shown: &rules::deliver::Shown| {
        shown.state == State::Pending && shown.reason.as_deref() == Some(&*why)
    };
    fixture.settled(|all| all.iter().any(postponed)).await;
    assert_eq!(endpoint.seen().len(), 1);
}

pub(crate) async fn calls_of_listeners_are_counted(fixture: Fixture) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let endpoint = Endpoint::new(|seen: Seen| async move {
        [StatusCode::NOT_FOUND, StatusCode::GONE, StatusCode::OK][seen.nth]
    })
    .await;
    let node = fixture.node();
    let mut outcomes = Vec::new();
    for failures in 0..3 {
        let answer = node
            .calls
            .send(&call(&endpoint.url("/"), 1), failures)
            .await;
        let Answer::Made(outcome, _) = answer else {
            panic!("{answer:?}");
        };
        outcomes.push(outcome);
    }
    assert_eq!(
        outcomes,
        [Outcome::Failed(None), Outcome::Dead, Outcome::Delivered]
    );
    let text = recorder.handle().render();
    for line in [
        // Of the call that the receiver does not want, the delivery that it becomes is the dead letter.
        r#"davenport_webhook_deliveries_total{outcome="failed"} 2"#,
        r#"davenport_webhook_deliveries_total{outcome="delivered"} 1"#,
        "davenport_webhook_seconds_count 3",
        "davenport_webhook_attempts_sum 3",
        "davenport_webhook_in_flight 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
