//! Endpoints that hang or fail, among others.

use std::future::pending;

use ::jobs::State;
use futures::future::join_all;

use crate::Fixture;
use crate::endpoint::Endpoint;
use crate::fixture::call;

pub(crate) async fn a_hanging_endpoint_delays_no_other(fixture: Fixture) {
    let hanging = Endpoint::new(|_| pending::<()>()).await;
    let others = join_all((0..99).map(|_| Endpoint::with_status(200))).await;
    // First all calls of the bad one, more than a node may hold.
    let bad: Vec<_> = (0..1_000).map(|nth| call(&hanging.url("/"), nth)).collect();
    fixture.enqueue(&bad).await;
    let good = (0..10).flat_map(|round| {
        others
            .iter()
            .enumerate()
            .map(move |(n, other)| (round, n, other))
    });
    let good: Vec<_> = good
        .map(|(round, n, other)| call(&other.url("/"), 10_000 + 100 * round + n))
        .collect();
    fixture.enqueue(&good).await;
    let _node = fixture.node();
    for other in &others {
        other.received(10).await;
    }
    // All of them, while not one of the bad ones has ended. Those may still be on their way.
    assert_eq!(
        hanging.received(8).await.len(),
        8,
        "no more than `max_in_flight_per_host`"
    );
}

pub(crate) async fn a_failing_endpoint_is_left_alone(fixture: Fixture) {
    let failing = Endpoint::with_status(500).await;
    let _node = fixture.node();
    let calls: Vec<_> = (0..100).map(|nth| call(&failing.url("/"), nth)).collect();
    fixture.enqueue(&calls).await;
    let waits = |shown: &rules::deliver::Shown| {
        shown.state == State::Pending
            && shown
                .reason
                .as_ref()
                .is_some_and(|why| why.starts_with("its endpoint failed"))
    };
    let all = fixture
        .settled(|all| all.iter().filter(|shown| waits(shown)).count() >= 80)
        .await;
    // The calls that were in flight when it had failed often enough, and perhaps a probe.
    let attempts: u32 = all.iter().map(|shown| shown.attempts).sum();
    assert!(attempts <= 5 + 8 + 2, "{attempts}");
}
