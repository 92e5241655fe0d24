//! Deliveries as jobs.

use std::sync::Arc;

use ::jobs::State;
use axum::http::StatusCode;
use rules::deliver::{Filter, Shown};
use rules::rule::call::Call;
use tokio::sync::Semaphore;

use crate::Fixture;
use crate::endpoint::{Endpoint, Seen};
use crate::fixture::call;

/// An endpoint that answers when it is told to.
async fn gated(status: StatusCode) -> (Endpoint, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let endpoint = Endpoint::new(move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            status
        }
    });
    (endpoint.await, go)
}

pub(crate) async fn the_same_change_is_one_job(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::OK).await;
    let one = call(&endpoint.url("/"), 1);
    fixture
        .enqueue(&[one.clone(), one.clone(), call(&endpoint.url("/"), 2)])
        .await;
    fixture.enqueue(std::slice::from_ref(&one)).await;
    assert_eq!(fixture.all().await.len(), 2);
    let _node = fixture.node();
    endpoint.received(2).await;
    // While it runs, too.
    fixture.enqueue(std::slice::from_ref(&one)).await;
    go.add_permits(10);
    fixture
        .settled(|all| all.iter().all(|shown| shown.state == State::Finished))
        .await;
    assert_eq!(endpoint.seen().len(), 2);
    // A rule that was rewound sends it again, under the same id.
    fixture.enqueue(&[one]).await;
    let seen = endpoint.received(3).await;
    assert!(
        seen[..2]
            .iter()
            .any(|before| before.header("webhook-id") == seen[2].header("webhook-id"))
    );
}

pub(crate) async fn equal_debounced_calls_are_two(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::OK).await;
    let nth = |nth| Call {
        debounce: true,
        ..call(&endpoint.url("/"), nth)
    };
    let _node = fixture.node();
    fixture.enqueue(&[nth(0)]).await;
    endpoint.received(1).await;
    for hundred in 0..10 {
        let calls: Vec<_> = (1..=100).map(|n| nth(100 * hundred + n)).collect();
        fixture.enqueue(&calls).await;
    }
    assert_eq!(fixture.all().await.len(), 1);
    go.add_permits(10);
    let shown = fixture.only(State::Finished, 1).await;
    let seen = endpoint.seen();
    assert_eq!(seen.len(), 2);
    // The last state is delivered, and a receiver does not take it for the first.
    assert_eq!(seen[1].header("x-couch-seq"), Some("1000-x"));
    assert_eq!(shown.seq, "1000-x");
    assert_ne!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
}

/// A debounced call that was too large to be stored has lost what distinguished it from others.
pub(crate) async fn documents_with_too_large_calls_have_dead_letters(fixture: Fixture) {
    let endpoint = Endpoint::with_status(200).await;
    let nth = |nth| Call {
        debounce: true,
        body: None,
        left_out: 9_000_000,
        ..call(&endpoint.url("/"), nth)
    };
    let of = |source: &str, db: &str| Call {
        source: source.into(),
        db: db.into(),
        ..nth(1)
    };
    let later = Call {
        rev: "2-b".into(),
        ..nth(1)
    };
    let calls = [nth(1), nth(2), of("other", "shop/eu"), of("upstream", "b")];
    fixture.enqueue(&calls).await;
    fixture.enqueue(&[later]).await;
    let _node = fixture.node();
    let dead = (fixture)
        .settled(|all| all.len() == 4 && all.iter().all(|shown| shown.state == State::Dead))
        .await;
    let mut dead: Vec<_> = (dead.iter())
        .map(|shown| [&*shown.source, &shown.db, &shown.doc_id, &shown.rev])
        .collect();
    dead.sort_unstable();
    let expected = [
        ["other", "shop/eu", "doc 1", "1-a"],
        ["upstream", "b", "doc 1", "1-a"],
        ["upstream", "shop/eu", "doc 1", "2-b"],
        ["upstream", "shop/eu", "doc 2", "1-a"],
    ];
    assert_eq!(dead, expected);
}

pub(crate) async fn a_back_off_is_not_cut_short(fixture: Fixture) {
    let endpoint = Endpoint::with_status(404).await;
    let nth = |nth| Call {
        debounce: true,
        retry: rules::rule::call::Retry::default(),
        ..call(&endpoint.url("/"), nth)
    };
    let _node = fixture.node();
    fixture.enqueue(&[nth(1)]).await;
    let before = fixture.only(State::Pending, 1).await;
    fixture.enqueue(&[nth(2)]).await;
    let after = fixture.only(State::Pending, 1).await;
    assert_eq!((after.due_ms, after.failures), (before.due_ms, 1));
    assert_eq!(after.seq, "2-x");
}

pub(crate) async fn changes_during_a_call_do_not_cut_its_back_off_short(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::NOT_FOUND).await;
    let nth = |nth| Call {
        debounce: true,
        retry: rules::rule::call::Retry {
            delay_sec: 2.0,
            limit: Some(1),
            ..rules::rule::call::Retry::default()
        },
        ..call(&endpoint.url("/"), nth)
    };
    let _node = fixture.node();
    fixture.enqueue(&[nth(1)]).await;
    endpoint.received(1).await;
    fixture.enqueue(&[nth(2)]).await;
    go.add_permits(10);
    let waits = fixture.only(State::Pending, 1).await;
    assert_eq!((&*waits.seq, waits.failures), ("2-x", 1));
    let made_ms = waits.last.unwrap().at_ms;
    assert!(waits.due_ms >= Some(made_ms + 1_600), "{:?}", waits.due_ms);
    let dead = fixture.only(State::Dead, 2).await;
    assert_eq!((&*dead.seq, endpoint.seen().len()), ("2-x", 2));
}

pub(crate) async fn a_call_behind_one_that_is_given_up_begins_anew(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::NOT_FOUND).await;
    let nth = |nth| Call {
        debounce: true,
        retry: rules::rule::call::Retry {
            delay_sec: 0.01,
            limit: Some(1),
            ..rules::rule::call::Retry::default()
        },
        ..call(&endpoint.url("/"), nth)
    };
    let _node = fixture.node();
    fixture.enqueue(&[nth(1)]).await;
    go.add_permits(1);
    endpoint.received(2).await;
    fixture.enqueue(&[nth(2)]).await;
    go.add_permits(10);
    let dead = fixture.only(State::Dead, 2).await;
    assert_eq!((&*dead.seq, endpoint.seen().len()), ("2-x", 4));
}

/// A call that is not made because it ends a loop does not take the place of one that is.
pub(crate) async fn a_looping_call_replaces_no_other(fixture: Fixture) {
    let endpoint = Endpoint::with_status(200).await;
    let nth = |rule: &str, nth, hops| Call {
        rule: rule.into(),
        debounce: true,
        hops,
        ..call(&endpoint.url("/"), nth)
    };
    fixture.enqueue(&[nth("one", 1, 3)]).await;
    fixture.enqueue(&[nth("one", 2, 16)]).await;
    fixture
        .enqueue(&[nth("two", 3, 0), nth("two", 4, 16)])
        .await;
    let _node = fixture.node();
    fixture
        .settled(|all| all.len() == 2 && all.iter().all(|shown| shown.state == State::Finished))
        .await;
    let mut seen: Vec<_> = (endpoint.seen().iter())
        .map(|seen| {
            ["x-couch-seq", "webhook-hop"].map(|name| seen.header(name).unwrap().to_owned())
        })
        .collect();
    seen.sort();
    assert_eq!(seen, [["2-x", "4"], ["4-x", "1"]]);
}

/// Nor if both wait for a call that is being made.
pub(crate) async fn a_looping_call_replaces_none_behind_a_running_one(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::OK).await;
    let nth = |nth, hops| Call {
        debounce: true,
        hops,
        ..call(&endpoint.url("/"), nth)
    };
    let _node = fixture.node();
    fixture.enqueue(&[nth(0, 3)]).await;
    endpoint.received(1).await;
    fixture.enqueue(&[nth(1, 0)]).await;
    fixture.enqueue(&[nth(2, 16)]).await;
    go.add_permits(10);
    fixture.only(State::Finished, 1).await;
    let seen = endpoint.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].header("x-couch-seq"), Some("2-x"));
    assert_eq!(seen[1].header("webhook-hop"), Some("1"));
}

/// The call of a rule that was deleted is not tried again, so that of its successor follows.
pub(crate) async fn a_new_rule_of_the_same_id_makes_its_call(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::NOT_FOUND).await;
    let of = |generation: &str| Call {
        generation: Some(generation.to_owned()),
        body: Some(generation.to_owned()),
        ..call(&endpoint.url("/"), 1)
    };
    let _node = fixture.node();
    fixture.enqueue(&[of("1")]).await;
    endpoint.received(1).await;
    fixture.enqueue(&[of("1"), of("2")]).await;
    go.add_permits(2);
    assert_eq!(endpoint.received(2).await[1].body, "2");
}

/// An edited rule makes no second call of one that waits: it replaces it.
pub(crate) async fn an_edited_rule_replaces_calls_that_wait(fixture: Fixture) {
    let endpoint = Endpoint::with_status(200).await;
    for version in ["1", "2"] {
        let call = Call {
            body: Some(version.to_owned()),
            ..call(&endpoint.url("/"), 1)
        };
        fixture.enqueue(&[call]).await;
    }
    let _node = fixture.node();
    fixture.only(State::Finished, 1).await;
    let bodies: Vec<_> = endpoint.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, ["2"]);
}

pub(crate) async fn a_killed_node_repeats_its_call(fixture: Fixture) {
    let endpoint = Endpoint::new(|seen: Seen| async move {
        if seen.nth < 20 {
            std::future::pending::<()>().await;
        }
    })
    .await;
    fixture.recover_soon().await;
    let calls: Vec<_> = (0..20).map(|nth| call(&endpoint.url("/"), nth)).collect();
    let mut wide = fixture;
    wide.options.max_in_flight_per_host = 20;
    wide.enqueue(&calls).await;
    let node = wide.node();
    endpoint.received(20).await;
    drop(node);
    let _other = wide.node();
    wide.settled(|all| all.iter().all(|shown| shown.state == State::Finished))
        .await;
    let mut ids: Vec<_> = endpoint
        .seen()
        .iter()
        .map(|seen| seen.header("webhook-id").unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 40);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 20);
}

pub(crate) async fn a_stopped_node_ends_its_calls(fixture: Fixture) {
    let (endpoint, go) = gated(StatusCode::OK).await;
    let calls: Vec<_> = (0..100).map(|nth| call(&endpoint.url("/"), nth)).collect();
    fixture.enqueue(&calls).await;
    let node = fixture.node();
    endpoint.received(8).await;
    let stopping = tokio::spawn(node.stop());
    let put_back = |shown: &&Shown| shown.state == State::Pending;
    fixture
        .settled(|all| all.iter().filter(put_back).count() == 92)
        .await;
    go.add_permits(8);
    stopping.await.unwrap();
    let all = fixture.all().await;
    let done = all
        .iter()
        .filter(|shown| shown.state == State::Finished)
        .count();
    assert_eq!((done, endpoint.seen().len()), (8, 8));
    assert!(all.iter().filter(put_back).all(|shown| shown.attempts == 0));
}

pub(crate) async fn deliveries_are_listed(fixture: Fixture) {
    let endpoint = Endpoint::new(|seen: Seen| async move {
        let is_bad = seen.path == "/bad";
        if is_bad {
            StatusCode::GONE
        } else {
            StatusCode::OK
        }
    })
    .await;
    let calls = (0..30).map(|nth| {
        let path = if nth % 3 == 0 { "/bad" } else { "/good" };
        Call {
            rule: format!("rule {}", nth % 2),
            ..call(&endpoint.url(path), nth)
        }
    });
    fixture.enqueue(&calls.collect::<Vec<_>>()).await;
    let _node = fixture.node();
    fixture
        .settled(|all| all.iter().all(|shown| shown.state.is_over()))
        .await;
    for (rule, state, expected) in [
        (None, None, 30),
        (Some("rule 0"), None, 15),
        (None, Some(State::Dead), 10),
        (Some("rule 1"), Some(State::Dead), 5),
        (Some("rule 1"), Some(State::Finished), 10),
        (Some("rule 2"), None, 0),
        (None, Some(State::Running), 0),
    ] {
        let filter = Filter {
            rule: rule.map(str::to_owned),
            state,
            ..Filter::default()
        };
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = fixture
                .deliveries
                .list(&filter, cursor.as_ref(), 4)
                .await
                .unwrap();
            assert!(page.deliveries.len() <= 4);
            found.extend(page.deliveries.into_iter().map(|shown| shown.id));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        found.sort();
        found.dedup();
        assert_eq!(found.len(), expected, "{filter:?}");
    }
    assert!(
        fixture
            .deliveries
            .show("msg_unknown")
            .await
            .unwrap()
            .is_none()
    );
}
