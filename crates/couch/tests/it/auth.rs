//! Sessions and tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use couch::{Database, Error, Network};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fake::{Fake, Seen, Step, answer, endpoint, impatient, json, network, network_with};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

/// A server that gives out cookies `c1`, `c2`, … and takes the newest only.
async fn with_sessions(max_age: &'static str) -> Fake {
    let logins = AtomicUsize::new(0);
    Fake::new(move |seen| {
        let last = logins.load(Ordering::SeqCst);
        let reply = match (seen.path(), seen.header("cookie")) {
            ("/_session", _) => {
                let cookie = format!("AuthSession=c{}; Version=1;{max_age} HttpOnly", last + 1);
                logins.store(last + 1, Ordering::SeqCst);
                answer(
                    200,
                    &[
                        ("Other", "x"),
                        ("set-cookie", "Foo=1"),
                        ("set-cookie", &cookie),
                    ],
                    b"{}",
                )
            }
            ("/expire", _) => {
                logins.store(last + 1, Ordering::SeqCst);
                json(200, "{}")
            }
            (_, Some(cookie)) if cookie == format!("AuthSession=c{last}") => json(200, INFO),
            _ => json(401, r#"{"error":"unauthorized","reason":"no"}"#),
        };
        vec![Step::Send(reply)]
    })
    .await
}

fn sessions() -> Network {
    network_with(|options| {
        options.auth_session = true;
        options.session_min_update_interval = 0;
    })
}

async fn open(network: &Network, fake: &Fake, auth: Value) -> Result<Database, Error> {
    let endpoint = endpoint(json!({ "url": fake.url("/x/db?q=1"), "auth": auth }));
    network.database(endpoint, impatient()).await
}

fn basic() -> Value {
    json!({ "basic": { "username": "us er", "password": "p&:ä" } })
}

fn tag(error: &Error) -> &'static str {
    match error {
        Error::Auth { tag, .. } => tag,
        other => panic!("{other:?}"),
    }
}

fn logins(fake: &Fake) -> Vec<Seen> {
    fake.seen()
        .into_iter()
        .filter(|seen| seen.path() == "/_session")
        .collect()
}

#[tokio::test]
async fn one_login_serves_all_databases() {
    let fake = with_sessions("").await;
    let network = sessions();
    let first = open(&network, &fake, basic()).await.unwrap();
    let second = open(&network, &fake, basic()).await.unwrap();
    first.info().await.unwrap();
    second.info().await.unwrap();
    let login = &logins(&fake)[0];
    assert_eq!(logins(&fake).len(), 1);
    assert_eq!(
        (login.method.as_str(), login.target.as_str()),
        ("POST", "/_session")
    );
    assert_eq!(login.body, b"name=us+er&password=p%26%3A%C3%A4");
    assert_eq!(login.header("user-agent"), Some(couch::USER_AGENT));
    assert_eq!(
        login.header("content-type"),
        Some("application/x-www-form-urlencoded")
    );
    assert_eq!(login.header("authorization"), None);
    let request = fake.seen().pop().unwrap();
    assert_eq!(request.header("cookie"), Some("AuthSession=c1"));
    assert_eq!(request.header("authorization"), None);

    let other = json!({ "basic": { "username": "us er", "password": "other" } });
    open(&network, &fake, other).await.unwrap();
    assert_eq!(
        logins(&fake).len(),
        2,
        "another password is another session"
    );
}

#[tokio::test]
async fn a_session_that_is_lost_is_renewed() {
    let fake = with_sessions("").await;
    let db = open(&sessions(), &fake, basic()).await.unwrap();
    db.info().await.unwrap();
    // The server restarts and forgets its sessions.
    expire(&fake).await;
    db.info().await.unwrap();
    assert_eq!(logins(&fake).len(), 2);
}

#[tokio::test]
async fn a_young_session_that_is_lost_is_renewed_once() {
    let fake = with_sessions("").await;
    let network = network_with(|options| options.auth_session = true);
    let db = open(&network, &fake, basic()).await.unwrap();
    expire(&fake).await;
    db.info().await.unwrap();
    // A server that refuses what it has just given out is not asked without end.
    expire(&fake).await;
    assert!(matches!(db.info().await, Err(Error::Unauthorized(_))));
    assert_eq!(logins(&fake).len(), 2);
}

async fn expire(fake: &Fake) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(fake.address).await.unwrap();
    stream
        .write_all(b"GET /expire HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[tokio::test]
async fn cookies_are_renewed_in_time_and_by_answers() {
    let fake = with_sessions(" Max-Age=0;").await;
    let db = open(&sessions(), &fake, basic()).await.unwrap();
    db.info().await.unwrap();
    db.info().await.unwrap();
    assert_eq!(
        logins(&fake).len(),
        3,
        "a cookie of no life is renewed each time"
    );

    let fake = Fake::new(|seen| {
        let cookie = seen.header("cookie").unwrap_or("AuthSession=c0").to_owned();
        let next = format!("AuthSession=c{}", cookie.len() * 2);
        vec![Step::Send(answer(
            200,
            &[("Set-Cookie", &next)],
            INFO.as_bytes(),
        ))]
    })
    .await;
    let db = open(&sessions(), &fake, basic()).await.unwrap();
    db.info().await.unwrap();
    db.info().await.unwrap();
    assert_eq!(
        fake.seen()[2].header("cookie"),
        Some("AuthSession=c30"),
        "sent with the first answer"
    );
}

#[tokio::test]
async fn refused_twice_is_refused() {
    let fake = Fake::new(|seen| {
        let login = answer(200, &[("Set-Cookie", "AuthSession=same")], b"{}");
        let forbidden = json(403, r#"{"error":"forbidden","reason":"no"}"#);
        vec![Step::Send(if seen.path() == "/_session" {
            login
        } else {
            forbidden
        })]
    })
    .await;
    let db = open(&sessions(), &fake, basic()).await.unwrap();
    assert!(matches!(db.info().await, Err(Error::Forbidden(_))));
    assert!(fake.seen().len() <= 6, "{:?}", fake.seen());
}

#[tokio::test]
async fn servers_without_sessions_get_basic_credentials() {
    let fake = Fake::answering(&[("/x/db/", json(200, INFO))]).await;
    let network = sessions();
    let db = open(&network, &fake, basic()).await.unwrap();
    db.info().await.unwrap();
    let request = fake.seen().pop().unwrap();
    assert_eq!(
        request.header("authorization"),
        Some("Basic dXMgZXI6cCY6w6Q=")
    );
    assert_eq!(request.header("cookie"), None);
}

#[tokio::test]
async fn servers_that_want_credentials_even_for_sessions() {
    let fake = Fake::new(|seen| {
        let reply = match (seen.path(), seen.header("authorization")) {
            ("/_session", None) => answer(401, &[("WWW-Authenticate", "Basic realm=x")], b"{}"),
            ("/_session", Some(_)) => answer(200, &[("Set-Cookie", "AuthSession=c")], b"{}"),
            (_, None) => json(200, INFO),
            _ => json(400, "{}"),
        };
        vec![Step::Send(reply)]
    })
    .await;
    let db = open(&sessions(), &fake, basic()).await.unwrap();
    db.info().await.unwrap();
    assert_eq!(logins(&fake).len(), 2);
}

#[tokio::test]
async fn logins_that_fail() {
    let reflecting = r#"{"error":"x","reason":"password p&:ä is wrong"}"#;
    for (reply, expected) in [
        (json(401, reflecting), "session_request_unauthorized"),
        (
            answer(401, &[("WWW-Authenticate", "Basic")], b"{}"),
            "session_request_unauthorized",
        ),
        (json(403, reflecting), "session_request_forbidden"),
        (json(200, "{}"), "session_unexpected_result"),
        (json(302, reflecting), "session_unexpected_result"),
        (json(400, reflecting), "session_unexpected_result"),
    ] {
        let fake = Fake::answering(&[("/_session", reply)]).await;
        let Err(error) = open(&sessions(), &fake, basic()).await else {
            panic!("{expected}")
        };
        assert_eq!(tag(&error), expected);
        assert!(!format!("{error} {error:?}").contains("p&:ä"), "{error}");
    }
}

#[tokio::test]
async fn a_failed_login_is_shared_by_all_that_wait_for_it() {
    let refused = json(401, r#"{"error":"unauthorized","reason":"wrong"}"#);
    let fake = Fake::answering(&[("/_session", refused)]).await;
    let network = sessions();
    let failing = async || open(&network, &fake, basic()).await.err().unwrap();
    let (first, second, third) = tokio::join!(failing(), failing(), failing());
    assert_eq!(logins(&fake).len(), 1);
    for error in [&first, &second, &third] {
        assert_eq!(tag(error), "session_request_unauthorized");
        assert_eq!(error.to_string(), first.to_string());
    }
    failing().await;
    assert_eq!(logins(&fake).len(), 2, "a later one tries again");
}

#[tokio::test]
async fn a_login_that_is_given_up_has_not_failed() {
    let (asked, count) = (Arc::new(Notify::new()), AtomicUsize::new(0));
    let asking = Arc::clone(&asked);
    let fake = Fake::new(move |_| {
        asking.notify_one();
        let login = answer(200, &[("Set-Cookie", "AuthSession=c")], b"{}");
        vec![match count.fetch_add(1, Ordering::SeqCst) {
            0 => Step::Stall,
            _ => Step::Send(login),
        }]
    })
    .await;
    let network = sessions();
    let mut first = Box::pin(open(&network, &fake, basic()));
    let second = open(&network, &fake, basic());
    let given_up = async {
        tokio::select! {
            _ = &mut first => panic!("the server does not answer"),
            () = asked.notified() => drop(first),
        }
    };
    let ((), second) = tokio::join!(given_up, second);
    second.unwrap();
    assert_eq!(logins(&fake).len(), 2);
}

/// A server that accepts the first login and responds to later ones with a status. `takes` says whether it accepts the
/// cookie.
async fn with_one_login(takes: &Arc<AtomicBool>, max_age: &str, status: u16) -> Fake {
    let (takes, count) = (Arc::clone(takes), AtomicUsize::new(0));
    let cookie = format!("AuthSession=c{max_age}");
    Fake::new(move |seen| {
        let is_first = || count.fetch_add(1, Ordering::SeqCst) == 0;
        vec![Step::Send(match seen.path() {
            "/_session" if is_first() => answer(200, &[("Set-Cookie", &cookie)], b"{}"),
            "/_session" => json(status, "{}"),
            _ if takes.load(Ordering::SeqCst) => json(200, INFO),
            _ => json(401, "{}"),
        })]
    })
    .await
}

/// Sessions are renewed before every request.
fn short_sessions() -> Network {
    network_with(|options| {
        options.auth_session = true;
        options.session_min_update_interval = 0;
        options.session_refresh_interval_sec = 0;
    })
}

#[tokio::test]
async fn a_session_that_cannot_be_renewed_is_used_until_it_is_refused() {
    let takes = Arc::new(AtomicBool::new(true));
    let fake = with_one_login(&takes, "", 400).await;
    let db = open(&short_sessions(), &fake, basic()).await.unwrap();
    db.info().await.unwrap();
    db.info().await.unwrap();
    assert_eq!(logins(&fake).len(), 2, "not asked at each request");
    takes.store(false, Ordering::SeqCst);
    let error = db.info().await.unwrap_err();
    assert_eq!(tag(&error), "session_unexpected_result");
}

/// With an expired cookie, or one from before a password change, CouchDB treats a request as anonymous.
#[tokio::test]
async fn no_request_is_sent_with_a_session_that_has_ended() {
    for (max_age, status, error) in [
        ("; Max-Age=0", 400, "session_unexpected_result"),
        ("", 401, "session_request_unauthorized"),
        ("", 403, "session_request_forbidden"),
    ] {
        let takes = Arc::new(AtomicBool::new(true));
        let fake = with_one_login(&takes, max_age, status).await;
        let db = open(&short_sessions(), &fake, basic()).await.unwrap();
        assert_eq!(tag(&db.info().await.unwrap_err()), error);
    }
}

/// A token server and a database behind tokens `t1`, `t2`, ….
async fn with_tokens(in_body: bool) -> Fake {
    let count = AtomicUsize::new(0);
    Fake::new(move |seen| {
        let last = count.load(Ordering::SeqCst);
        let reply = match seen.path() {
            "/token" if in_body && seen.header("authorization").is_some() => {
                json(401, r#"{"error":"invalid_client"}"#)
            }
            "/token" => {
                count.store(last + 1, Ordering::SeqCst);
                json(
                    200,
                    format!(r#"{{"access_token":"t{}","expires_in":"3600"}}"#, last + 1),
                )
            }
            _ if seen.header("authorization") == Some(&format!("Bearer t{last}")) => {
                json(200, INFO)
            }
            _ => json(401, "{}"),
        };
        vec![Step::Send(reply)]
    })
    .await
}

#[tokio::test]
async fn client_credentials_in_either_place() {
    for in_body in [false, true] {
        let fake = with_tokens(in_body).await;
        let auth = json!({ "oauth2_client_credentials": {
            "token_url": fake.url("/token"), "client_id": "i d", "client_secret": "s/t",
            "scope": "a b", "audience": "aud",
        } });
        let network = network();
        let first = open(&network, &fake, auth.clone()).await.unwrap();
        let second = open(&network, &fake, auth).await.unwrap();
        first.info().await.unwrap();
        second.info().await.unwrap();
        let asked: Vec<_> = fake
            .seen()
            .into_iter()
            .filter(|seen| seen.path() == "/token")
            .collect();
        assert_eq!(asked.len(), 1 + usize::from(in_body), "tokens are shared");
        assert_eq!(asked[0].header("authorization"), Some("Basic aStkOnMlMkZ0"));
        let body = |seen: &Seen| String::from_utf8(seen.body.clone()).unwrap();
        assert_eq!(
            body(&asked[0]),
            "grant_type=client_credentials&scope=a+b&audience=aud"
        );
        if in_body {
            let expected = "grant_type=client_credentials&client_id=i+d&client_secret=s%2Ft&scope=a+b&audience=aud";
            assert_eq!(
                (asked[1].header("authorization"), body(&asked[1]).as_str()),
                (None, expected)
            );
        }
    }
}

#[tokio::test]
async fn api_keys_and_fixed_tokens() {
    let fake = with_tokens(false).await;
    let auth = json!({ "iam": { "api_key": "k+1", "token_url": fake.url("/token") } });
    let db = open(&network(), &fake, auth).await.unwrap();
    db.info().await.unwrap();
    let expected = "grant_type=urn%3Aibm%3Aparams%3Aoauth%3Agrant-type%3Aapikey&apikey=k%2B1";
    assert_eq!(fake.seen()[0].body, expected.as_bytes());

    let db = open(&network(), &fake, json!({ "bearer": { "token": "t1" } }))
        .await
        .unwrap();
    db.info().await.unwrap();
    let db = open(&network(), &fake, json!({ "bearer": "t2" }))
        .await
        .unwrap();
    assert!(matches!(db.info().await, Err(Error::Unauthorized(_))));

    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tok.jwt"), "t1\n").unwrap();
    let network = network_with(|options| options.jwt_directory = Some(directory.path().to_owned()));
    let db = open(&network, &fake, json!({ "jwt": { "file": "tok.jwt" } }))
        .await
        .unwrap();
    db.info().await.unwrap();
    let nowhere = open(
        &crate::fake::network(),
        &fake,
        json!({ "jwt": { "file": "tok.jwt" } }),
    )
    .await;
    assert!(matches!(nowhere, Err(Error::Config(_))));
}

#[tokio::test]
async fn tokens_that_cannot_be_had() {
    for (reply, expected) in [
        (
            json(400, r#"{"error":"key k-secret unknown"}"#),
            "token_request_refused",
        ),
        (json(200, "{}"), "token_unusable"),
        (json(200, r#"{"access_token":""}"#), "token_unusable"),
        (json(200, "[1]"), "token_unusable"),
    ] {
        let fake = Fake::answering(&[("/token", reply)]).await;
        let auth = json!({ "iam": { "api_key": "k-secret", "token_url": fake.url("/token") } });
        let db = open(&network(), &fake, auth).await.unwrap();
        let error = db.info().await.unwrap_err();
        assert_eq!(tag(&error), expected);
        assert!(!format!("{error} {error:?}").contains("k-secret"));
    }
}

fn asked_for_tokens(fake: &Fake) -> usize {
    let seen = fake.seen();
    seen.iter().filter(|seen| seen.path() == "/token").count()
}

#[tokio::test]
async fn a_failed_request_for_a_token_is_shared_by_all_that_wait_for_it() {
    let fake = Fake::answering(&[("/token", json(400, "{}"))]).await;
    let auth = json!({ "iam": { "api_key": "k", "token_url": fake.url("/token") } });
    let network = network();
    let first = open(&network, &fake, auth.clone()).await.unwrap();
    let second = open(&network, &fake, auth).await.unwrap();
    let (one, other) = tokio::join!(first.info(), second.info());
    assert_eq!(asked_for_tokens(&fake), 1);
    for error in [one.unwrap_err(), other.unwrap_err()] {
        assert_eq!(tag(&error), "token_request_refused");
    }
    assert!(first.info().await.is_err());
    assert_eq!(asked_for_tokens(&fake), 2, "a later one tries again");
}

/// The clock stands still only while it is moved: requests have timeouts.
async fn advance(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_used_until_it_expires() {
    let count = AtomicUsize::new(0);
    let fake = Fake::new(move |seen| {
        let token = r#"{"access_token":"t","expires_in":3600}"#;
        let is_first = || count.fetch_add(1, Ordering::SeqCst) == 0;
        vec![Step::Send(match seen.path() {
            "/token" if is_first() => json(200, token),
            "/token" => json(403, "{}"),
            _ => json(200, INFO),
        })]
    })
    .await;
    let auth = json!({ "iam": { "api_key": "k", "token_url": fake.url("/token") } });
    let db = open(&network(), &fake, auth).await.unwrap();
    db.info().await.unwrap();
    advance(3301).await;
    db.info().await.unwrap();
    db.info().await.unwrap();
    assert_eq!(asked_for_tokens(&fake), 2, "not asked at each request");
    advance(60).await;
    db.info().await.unwrap();
    assert_eq!(asked_for_tokens(&fake), 3);
    advance(240).await;
    let error = db.info().await.unwrap_err();
    assert_eq!(tag(&error), "token_request_refused");
}

#[tokio::test]
async fn unresolved_references_are_refused() {
    let fake = Fake::answering(&[]).await;
    let error = open(&network(), &fake, json!({ "secret_ref": "s" }))
        .await
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "`auth.secret_ref` is not resolved");
    assert_eq!(fake.connections(), 0);
}
