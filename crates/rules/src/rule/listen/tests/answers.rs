//! What listeners make of the answers to calls that block.

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
    fixture.rule(on_change(&json!({"since": 0}))).await;
    fixture.put(&["1"]);
    fixture.signal(Event::Updated, None).await;
    assert_eq!(next(&mut fixture.sent).await, "1");
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
