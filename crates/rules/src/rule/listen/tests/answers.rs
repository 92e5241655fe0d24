//! What listeners make of the answers to calls that block.

use peer::{Fault, Faults, On};

use super::super::run::after;
use super::*;

#[tokio::test]
async fn a_call_that_is_not_wanted_becomes_a_delivery_at_once() {
    let mut fixture = Fixture::new().await;
    fixture.answers.lock().unwrap().push_back(made(410, None));
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1", "2"]);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    assert_eq!(next(&mut fixture.enqueued).await, "1");
    let is_over = |job: Option<(&JobInfo, Place)>| {
        let status = |place: &Place| place.last_call.as_ref()?.status;
        job.is_some_and(|(info, place)| {
            info.state == State::Finished && status(&place) == Some(200)
        })
    };
    fixture.job("r", is_over).await;
}

/// The failures of a change are not those of the change that comes next.
#[tokio::test]
async fn another_change_has_all_its_retries() {
    let mut fixture = Fixture::new().await;
    fixture.gate.forget_permits(1_000);
    fixture
        .answers
        .lock()
        .unwrap()
        .extend([refused(), refused(), refused()]);
    let retry = json!({"delay_sec": 0.001, "limit": 1});
    let members = json!({"since": 0, "retry": retry, "if": {"type": "^msg$"}});
    fixture.rule(on_change(&members)).await;
    let first = json!({"_id": "m1", "type": "msg"}).to_string();
    let rev = fixture.peer.put("a", &first).unwrap().to_string();
    fixture.put(&["m2"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "m1");
    let left_out = json!({"_id": "m1", "_rev": rev, "type": "other"});
    fixture.peer.put("a", &left_out.to_string()).unwrap();
    fixture.gate.add_permits(1_000);
    for expected in ["m2", "m2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    assert_eq!(next(&mut fixture.enqueued).await, "m2");
    fixture.finished("r").await;
    assert_eq!(fixture.shown().await.failures, 0);
}

#[tokio::test]
async fn receivers_can_ask_for_a_day_at_most() {
    let mut fixture = Fixture::new().await;
    let (day, year) = (Duration::from_hours(24), Duration::from_hours(24 * 365));
    fixture
        .answers
        .lock()
        .unwrap()
        .push_back(made(503, Some(year)));
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1"]);
    let before_ms = fixture.rules.replications().jobs().clock().now_ms();
    fixture.signal(Event::Updated, None).await;
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| info.state == State::Pending && place.failures == 1)
    };
    fixture.job("r", waits).await;
    let shown = fixture.shown().await;
    let now_ms = fixture.rules.replications().jobs().clock().now_ms();
    let due_ms = shown.next_ms.unwrap();
    assert!(due_ms >= after(before_ms, day) && due_ms <= after(now_ms, day));
    let last = shown.last_call.unwrap();
    assert_eq!((last.status, &*last.body), (Some(503), "text"));
}

/// A change that comes meanwhile does not lead to a look at the database.
#[tokio::test]
async fn an_endpoint_that_is_to_be_left_alone_is_no_failure() {
    let mut fixture = Fixture::new().await;
    let later = Answer::Later(Duration::from_mins(10), "busy".to_owned());
    fixture.answers.lock().unwrap().push_back(later);
    fixture.called(on_change(&json!({"since": 0}))).await;
    let rests = |runs: u32| {
        move |job: Option<(&JobInfo, Place)>| {
            job.is_some_and(|(info, place)| {
                let is_pending = info.state == State::Pending && place.failures == 0;
                is_pending && info.attempts >= runs && info.due_ms == place.rests_ms
            })
        }
    };
    fixture.job("r", rests(1)).await;
    let end = fixture.shown().await.last.unwrap().end.unwrap();
    assert_eq!(end.reason.as_deref(), Some("busy"));
    let looked = fixture.peer.count("GET", "/a/_changes");
    fixture.signal(Event::Updated, None).await;
    fixture.job("r", rests(2)).await;
    assert_eq!(fixture.peer.count("GET", "/a/_changes"), looked);
    assert!(fixture.sent.try_recv().is_err());
}

/// An answer that no CouchDB gives says nothing about the database: it is asked again, and read on from the same place.
#[tokio::test]
async fn a_stray_404_repeats_nothing() {
    let mut fixture = Fixture::new().await;
    fixture.called(on_change(&json!({"since": 0}))).await;
    fixture.finished("r").await;
    let stray = Fault::Answer {
        status: 404,
        headers: Vec::new(),
        body: "<h1>404</h1>".to_owned(),
    };
    let faults = Faults::script([(On::get("/a/_changes").first(1), stray)]);
    fixture.peer.set_faults(faults);
    fixture.put(&["2"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "2");
    assert_eq!(fixture.peer.injected().len(), 1);
}

/// However often calls were refused before.
#[tokio::test]
async fn a_database_that_cannot_be_read_is_read_again_within_a_minute() {
    let mut fixture = Fixture::new().await;
    (fixture.answers.lock().unwrap()).extend(std::iter::repeat_with(refused).take(6));
    let stray = Fault::Answer {
        status: 404,
        headers: Vec::new(),
        body: "<h1>404</h1>".to_owned(),
    };
    let faults = Faults::script([(On::get("/a/_changes").nth(7), stray)]);
    fixture.peer.set_faults(faults);
    fixture.called(on_change(&json!({"since": 0}))).await;
    let clock = fixture.rules.replications().jobs().clock().clone();
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| {
            let is_unread = place.failures == 6 && info.stalls == 7;
            let wait_ms = info.due_ms - clock.now_ms();
            assert!(!is_unread || wait_ms <= 60_000, "{wait_ms}");
            info.state == State::Pending && is_unread
        })
    };
    fixture.job("r", waits).await;
    assert_eq!(fixture.peer.injected().len(), 1);
}

/// It does not keep the rule from later changes.
#[tokio::test]
async fn a_call_that_is_too_large_to_store_becomes_a_dead_letter() {
    let mut fixture = Fixture::new().await;
    let whole = json!({"since": 0, "block": false, "params": "$change", "method": "POST"});
    fixture.rule(on_change(&whole)).await;
    let large = json!({"_id": "1", "text": "\"".repeat(3_000_000)});
    fixture.peer.put("a", &large.to_string()).unwrap();
    fixture.put(&["2"]);
    fixture.signal(Event::Updated, None).await;
    let (mut left_out, mut whole) = (None, None);
    while left_out.is_none() || whole.is_none() {
        let call = tokio::time::timeout(PATIENCE, fixture.enqueued.recv()).await;
        let call = call.expect("no call comes").unwrap();
        let place = if call.doc_id == "1" {
            &mut left_out
        } else {
            &mut whole
        };
        *place = Some(call);
    }
    let (left_out, whole) = (left_out.unwrap(), whole.unwrap());
    assert!(left_out.left_out > 12_000_000 && left_out.body.is_none());
    assert!(whole.left_out == 0 && whole.body.is_some());
}

/// Neither is a look at what has changed since.
#[tokio::test]
async fn retries_and_interrupted_runs_do_not_wait_for_the_next_look() {
    let mut fixture = Fixture::new().await;
    fixture.answers.lock().unwrap().push_back(refused());
    let rule = |url: &str| {
        let pace = json!({"min_interval_sec": 600});
        on_change(&json!({"since": 0, "url": url, "trigger": pace}))
    };
    fixture.rule(rule("http://h/${change.id}")).await;
    fixture.put(&["1", "2", "3"]);
    fixture.gate.forget_permits(1_000);
    fixture.signal(Event::Updated, None).await;
    for expected in ["1", "1"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
        fixture.gate.add_permits(1);
    }
    assert_eq!(next(&mut fixture.sent).await, "2");
    fixture.rule(rule("http://h/new/${change.id}")).await;
    fixture.gate.add_permits(1_000);
    assert_eq!(next(&mut fixture.sent).await, "new/3");
    fixture.finished("r").await;
    fixture.put(&["4"]);
    fixture.signal(Event::Updated, None).await;
    let waits = |job: Option<(&JobInfo, Place)>| {
        job.is_some_and(|(info, place)| {
            info.state == State::Pending && info.due_ms == place.began_ms + 600_000
        })
    };
    fixture.job("r", waits).await;
}

#[tokio::test]
async fn a_rule_is_triggered_during_its_back_off() {
    let mut fixture = Fixture::new().await;
    let left_alone = Answer::Later(Duration::from_mins(10), "busy".to_owned());
    (fixture.answers.lock().unwrap()).extend([refused(), refused(), left_alone]);
    let members =
        json!({"since": 0, "retry": {"delay_sec": 600}, "trigger": {"min_interval_sec": 600}});
    fixture.rule(on_change(&members)).await;
    fixture.put(&["1", "2"]);
    fixture.signal(Event::Updated, None).await;
    for failures in [1, 2, 2] {
        assert_eq!(next(&mut fixture.sent).await, "1");
        let waits = |job: Option<(&JobInfo, Place)>| {
            job.is_some_and(|(info, place)| {
                info.state == State::Pending && place.failures == failures
            })
        };
        fixture.job("r", waits).await;
        assert_eq!(fixture.trigger().await, 1);
    }
    for expected in ["1", "2"] {
        assert_eq!(next(&mut fixture.sent).await, expected);
    }
    fixture.finished("r").await;
}
