//! What is sent, and what is made of the response.

use std::future::pending;

use ::jobs::State;
use axum::http::StatusCode;
use axum::response::Redirect;
use couch::NamedSecret;
use rules::deliver::Shown;
use rules::rule::call::{Call, Hidden, Retry, Sign};
use scheduler::Passwords;
use serde_json::json;
use standardwebhooks::Webhook;

use crate::Fixture;
use crate::endpoint::{Endpoint, Seen};
use crate::fixture::call;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

pub(crate) async fn what_a_receiver_sees(fixture: Fixture) {
    let endpoint = Endpoint::with_status(204).await;
    let _node = fixture.node();
    let put = Call {
        method: "PUT".into(),
        ..call(&endpoint.url("/a%2Fb?x=1&y=%26#fragment"), 1)
    };
    let headers = [
        ("X-Team", "shop"),
        ("Content-Type", "text/x"),
        ("Host", "evil"),
        ("Webhook-Id", "forged"),
        // Of a rule that an earlier version accepted.
        ("Webhook-Replay", "1"),
    ];
    let put = with(put, &headers, None);
    let get = Call {
        method: "GET".into(),
        body: None,
        ..call(&endpoint.url("/get"), 2)
    };
    fixture.enqueue(std::slice::from_ref(&put)).await;
    let seen = endpoint.received(1).await.remove(0);
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("PUT", "/a%2Fb?x=1&y=%26")
    );
    assert_eq!(seen.body, r#"{"a":1}"#);
    let shown = fixture.only(State::Finished, 1).await;
    let address = endpoint.address.to_string();
    for (name, value) in [
        ("x-team", "shop"),
        ("content-type", "text/x"),
        ("host", &address),
        ("webhook-id", &shown.message),
        ("webhook-hop", "1"),
        ("x-couch-db", "shop%2Feu"),
        ("x-couch-doc-id", "doc%201"),
        ("x-couch-seq", "1-x"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert!(seen.header("user-agent").unwrap().starts_with("Davenport/"));
    for name in ["webhook-signature", "webhook-replay", "authorization"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    fixture.enqueue(&[get]).await;
    let seen = endpoint.received(2).await.remove(1);
    assert_eq!((seen.method.as_str(), seen.body.len()), ("GET", 0));
    assert_eq!(seen.header("content-type"), None);
}

/// A call with headers and a signature.
fn with(mut call: Call, headers: &[(&str, &str)], sign: Option<Sign>) -> Call {
    let target = call.target.as_mut().unwrap();
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    (target.headers, target.sign) = (headers.iter().map(text).collect(), sign);
    call
}

/// A call that is not repeated.
fn once(url: &str) -> Call {
    let retry = Retry {
        limit: Some(0),
        ..Retry::default()
    };
    Call {
        retry,
        ..call(url, 1)
    }
}

/// Whether another library accepts a call.
fn verify(secret: &str, seen: &Seen) -> bool {
    Webhook::new(secret)
        .unwrap()
        .verify(&seen.body, &seen.headers)
        .is_ok()
}

pub(crate) async fn signatures_are_verified_by_another_library(mut fixture: Fixture) {
    let endpoint = Endpoint::with_status(200).await;
    let secret = json!({"origins": [endpoint.url("")], "signing": [OLD, NEW]});
    let secret = NamedSecret::parse(secret.as_object().unwrap()).unwrap();
    fixture.secrets.insert("both".into(), secret);
    let _node = fixture.node();
    let url = endpoint.url("/");
    let with_ref = |nth, name: &str| {
        let sign = Sign::SecretRef(name.into());
        with(call(&url, nth), &[], Some(sign))
    };
    let own = with(call(&url, 1), &[], Some(Sign::Secret(Hidden(OLD.into()))));
    let bodyless = Call {
        method: "GET".into(),
        body: None,
        doc_id: "2".into(),
        ..own.clone()
    };
    fixture.enqueue(&[own, bodyless, with_ref(3, "both")]).await;
    for seen in endpoint.received(3).await {
        assert!(verify(OLD, &seen), "{seen:?}");
        let both = seen.header("x-couch-seq") == Some("3-x");
        assert_eq!(verify(NEW, &seen), both);
        let mut forged = seen.clone();
        forged.body = "{}".into();
        assert!(!verify(OLD, &forged));
    }
    // It may be configured later.
    fixture.enqueue(&[with_ref(4, "missing")]).await;
    let missing = |shown: &&Shown| shown.seq == "4-x" && shown.attempts > 0;
    let all = fixture
        .settled(|all| all.iter().any(|shown| missing(&shown)))
        .await;
    let reason = all
        .iter()
        .find(missing)
        .unwrap()
        .last
        .clone()
        .unwrap()
        .error
        .unwrap();
    assert!(reason.contains("`[secrets.missing]`"), "{reason}");
    assert_eq!(endpoint.seen().len(), 3);
}

pub(crate) async fn passwords_are_sent_and_not_shown(fixture: Fixture) {
    // It repeats what it gets.
    let endpoint = Endpoint::new(|seen: Seen| async move {
        (
            StatusCode::IM_A_TEAPOT,
            seen.header("authorization").unwrap_or_default().to_owned(),
        )
    })
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let passwords = json!({"127.0.0.1": {"bob": "pässword"}});
    std::fs::write(file.path(), passwords.to_string()).unwrap();
    let _node = fixture.node();
    let url = format!("http://bob@{}/?q=hunter2", endpoint.address);
    // A reload of the file applies to later calls.
    fixture.passwords.set(Passwords::load(file.path()).unwrap());
    fixture.enqueue(&[once(&url)]).await;
    let shown = fixture.only(State::Dead, 1).await;
    let seen = endpoint.seen().remove(0);
    assert_eq!(
        seen.header("authorization"),
        Some("Basic Ym9iOnDDpHNzd29yZA==")
    );
    assert_eq!(seen.path, "/?q=hunter2");
    assert_eq!(shown.last.as_ref().unwrap().body, "Basic ***");
    assert_eq!(shown.url, endpoint.url("/"));
    assert!(!format!("{shown:?}").contains("hunter2"));
    let id = ::jobs::JobId::try_from(shown.id.as_str()).unwrap();
    let (_, data) = fixture
        .jobs
        .get(fixture.deliveries.job_type(), &id)
        .await
        .unwrap()
        .unwrap();
    let data = String::from_utf8_lossy(&data);
    assert!(
        ["ssword", "hunter2", "bob@"]
            .iter()
            .all(|secret| !data.contains(secret)),
        "{data}"
    );
}

pub(crate) async fn credentials_of_rules_are_not_shown(fixture: Fixture) {
    // It repeats what it gets, once where the excerpt ends.
    let endpoint = Endpoint::new(|seen: Seen| async move {
        let value = seen.header("authorization").unwrap();
        let (token, accepted) = (&value["Bearer ".len()..], seen.header("accept").unwrap());
        let body = format!("{} {value} {token} {accepted}", seen.path);
        (StatusCode::IM_A_TEAPOT, format!("{body:_<1020}{value}"))
    })
    .await;
    let _node = fixture.node();
    let call = once(&endpoint.url("/?token=hunter%2B22&shop=eu"));
    let headers = [
        ("Authorization", "Bearer opensesame"),
        ("Accept", "application/json"),
    ];
    fixture.enqueue(&[with(call, &headers, None)]).await;
    let shown = fixture.only(State::Dead, 1).await;
    let body = shown.last.unwrap().body;
    let expected = "/?token=***&shop=eu *** *** application/json__";
    assert!(body.starts_with(expected), "{body}");
    assert!(body.ends_with("__***"), "{body}");
}

pub(crate) async fn redirects_are_not_followed(fixture: Fixture) {
    let endpoint = Endpoint::new(|_| async { Redirect::temporary("/elsewhere") }).await;
    let _node = fixture.node();
    fixture.enqueue(&[once(&endpoint.url("/"))]).await;
    let shown = fixture.only(State::Dead, 1).await;
    assert_eq!(shown.last.unwrap().status, Some(307));
    assert_eq!(endpoint.seen().len(), 1);
}

pub(crate) async fn long_responses_are_cut(fixture: Fixture) {
    let endpoint = Endpoint::new(|_| async { "x".repeat(10 << 20) }).await;
    let _node = fixture.node();
    fixture.enqueue(&[call(&endpoint.url("/"), 1)]).await;
    let shown = fixture.only(State::Finished, 1).await;
    assert_eq!(shown.last.unwrap().body, "x".repeat(1_024));
}

pub(crate) async fn loops_end(fixture: Fixture) {
    let endpoint = Endpoint::with_status(200).await;
    let _node = fixture.node();
    let hop = |nth: usize, hops: u32| Call {
        hops,
        ..with(call(&endpoint.url("/"), nth), &[("Webhook-Hop", "9")], None)
    };
    fixture.enqueue(&[hop(1, 15), hop(2, 16), hop(3, 0)]).await;
    let all = fixture
        .settled(|all| all.len() == 3 && all.iter().all(|shown| shown.state.is_over()))
        .await;
    let dead: Vec<_> = all
        .iter()
        .filter(|shown| shown.state == State::Dead)
        .collect();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].seq, "2-x");
    assert!(dead[0].reason.as_ref().unwrap().contains("16 in a row"));
    let mut hops: Vec<_> = endpoint
        .seen()
        .iter()
        .map(|seen| seen.header("webhook-hop").unwrap().to_owned())
        .collect();
    hops.sort();
    assert_eq!(hops, ["1", "16"]);
}

pub(crate) async fn egress_is_checked(mut fixture: Fixture) {
    let endpoint = Endpoint::with_status(200).await;
    fixture.egress.deny = vec!["loopback".into()];
    let _node = fixture.node();
    fixture.enqueue(&[call(&endpoint.url("/"), 1)]).await;
    let refused = |all: &[Shown]| all[0].attempts > 0;
    let reason = fixture
        .settled(refused)
        .await
        .remove(0)
        .last
        .unwrap()
        .error
        .unwrap();
    assert!(
        reason.starts_with("egress to 127.0.0.1 is not allowed"),
        "{reason}"
    );
    assert!(endpoint.seen().is_empty());
}

pub(crate) async fn silence_ends(fixture: Fixture) {
    let endpoint = Endpoint::new(|_| pending::<()>()).await;
    let _node = fixture.node();
    let impatient = Call {
        timeout_sec: Some(0.05),
        ..once(&endpoint.url("/"))
    };
    fixture.enqueue(&[impatient]).await;
    let shown = fixture.only(State::Dead, 1).await;
    assert_eq!(shown.reason.as_deref(), Some("not done within 50 ms"));
}
