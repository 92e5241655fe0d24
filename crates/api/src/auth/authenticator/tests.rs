use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use serde_json::json;

use super::{Authenticator, Method, Proven, User, Users};
use crate::auth::cookie::Sessions;
use crate::auth::jwt::Jwt;
use crate::auth::password::PasswordHash;
use crate::auth::throttle::Throttle;
use crate::auth::verifier::Verifier;
use crate::auth::{AuthError, WRONG};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NOW: u64 = 1_700_000_000;

fn authenticator() -> Authenticator {
    let admin = PasswordHash::make("s3cret:with:colons", [1; 16], 10);
    Authenticator {
        admins: BTreeMap::from([("root".to_owned(), admin)]).into(),
        sessions: Sessions::new(
            vec![b"a secret of the tests".to_vec()],
            Duration::from_mins(10),
        ),
        jwt: Jwt::new(&BTreeMap::new(), Vec::new(), "roles").unwrap(),
        proxy_secrets: Vec::new(),
        verifier: Verifier::new([9; 32]),
        throttle: Throttle::new([8; 32]),
        upgrade_hashes: false,
    }
}

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

/// A source with at most one user.
struct Only(&'static str);

impl Users for Only {
    type Error = AuthError;

    async fn find(&self, name: &str) -> Result<Option<User>, AuthError> {
        Ok((name == self.0).then(|| User {
            password: Some(PasswordHash::make("pässword", [2; 16], 10)),
            roles: vec!["writers".to_owned()],
        }))
    }

    async fn strengthen(&self, _: &str, _: &PasswordHash, _: &str) {
        panic!("it was not asked for");
    }
}

const ANNA: Only = Only("anna");

fn header(name: &'static str, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(
        http::HeaderName::from_static(name),
        HeaderValue::from_str(value).unwrap(),
    )])
}

fn basic(pair: &str) -> HeaderMap {
    header("authorization", &format!("Basic {}", STANDARD.encode(pair)))
}

async fn proven(headers: &HeaderMap) -> Result<Proven, AuthError> {
    authenticator()
        .authenticate(headers, HERE, NOW, &ANNA)
        .await
}

#[tokio::test]
async fn names_and_passwords() {
    let root = proven(&basic("root:s3cret:with:colons")).await.unwrap();
    assert!(root.identity.is_admin());
    assert_eq!(root.method, Method::Password);
    let anna = proven(&basic("anna:pässword")).await.unwrap();
    assert_eq!(anna.identity.roles, ["writers"]);
    for wrong in [
        "anna:",
        "anna:x",
        "nobody:x",
        ":x",
        "root:s3cret",
        "no colon",
    ] {
        assert_eq!(proven(&basic(wrong)).await.unwrap_err(), WRONG, "{wrong}");
    }
    assert_eq!(proven(&basic(":")).await.unwrap().method, Method::None);
    assert_eq!(
        proven(&header("authorization", "Basic !!!"))
            .await
            .unwrap_err(),
        WRONG
    );
    assert_eq!(proven(&HeaderMap::new()).await.unwrap().identity.name, None);
}

#[tokio::test]
async fn sessions_are_for_those_who_exist() {
    let auth = authenticator();
    let cookie = auth
        .issue_cookie("anna", NOW, &ANNA)
        .await
        .unwrap()
        .unwrap();
    let headers = header("cookie", &format!("a=b; AuthSession={cookie}; c=d"));
    let fresh = auth
        .authenticate(&headers, HERE, NOW + 1, &ANNA)
        .await
        .unwrap();
    assert_eq!((fresh.method, fresh.cookie), (Method::Cookie, None));
    let late = auth
        .authenticate(&headers, HERE, NOW + 120, &ANNA)
        .await
        .unwrap();
    assert!(late.cookie.is_some_and(|renewed| renewed != cookie));
    let over = auth
        .authenticate(&headers, HERE, NOW + 600, &ANNA)
        .await
        .unwrap();
    assert_eq!(over.method, Method::None);
    let gone = Only("");
    assert_eq!(
        auth.authenticate(&headers, HERE, NOW, &gone)
            .await
            .unwrap()
            .method,
        Method::None
    );
    assert_eq!(auth.issue_cookie("nobody", NOW, &gone).await.unwrap(), None);
    let junk = header("cookie", "AuthSession=junk");
    assert!(matches!(
        auth.authenticate(&junk, HERE, NOW, &ANNA).await,
        Err(AuthError::BadRequest(_))
    ));
}

#[tokio::test]
async fn nobody_is_vouched_for_or_believed_without_a_key() {
    let mut headers = header("x-auth-couchdb-username", "root");
    headers.insert("x-auth-couchdb-roles", HeaderValue::from_static("_admin"));
    assert_eq!(proven(&headers).await.unwrap().method, Method::None);
    let token = header("authorization", "Bearer a.b.c");
    assert_eq!(proven(&token).await.unwrap().method, Method::None);
}

#[tokio::test(start_paused = true)]
async fn guessing_is_slowed_down_and_locks_nobody_out() {
    let auth = authenticator();
    let root = "s3cret:with:colons";
    auth.login("root", root, ip(9), &ANNA).await.unwrap();
    for _ in 0..6 {
        let _ = auth.login("anna", "x", ip(1), &ANNA).await;
        let _ = auth.login("root", "x", ip(3), &ANNA).await;
    }
    let right = auth.login("anna", "pässword", ip(1), &ANNA).await;
    assert!(matches!(right, Err(AuthError::Throttled { .. })));
    auth.login("anna", "pässword", ip(2), &ANNA).await.unwrap();
    auth.login("root", root, ip(9), &ANNA).await.unwrap();
}

#[test]
fn a_user_document_makes_no_administrator() {
    let user = User::from_document(&json!({"roles": ["writers", "_admin", 7]}));
    assert_eq!(user.roles, ["writers"]);
}
