//! Authentication through the whole service: tokens, proxies, and passwords that are rehashed.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Options;
use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::hmac;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt as _;
use http::Method;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use crate::fixture::{Fixture, Setting};

/// Later than the fixture's clock.
const LATER: u64 = 1_700_000_600;

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

#[tokio::test]
async fn tokens_of_all_kinds_are_believed_by_their_key_alone() {
    let ec = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let rsa_public = rsa.public_key().as_der().unwrap();
    let rsa_public = pem("PUBLIC KEY", rsa_public.as_ref());
    let rsa_private =
        aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&rsa);
    let rsa_private = pem("PRIVATE KEY", rsa_private.unwrap().as_ref());
    let secret = b"0123456789abcdef0123456789abcdef";
    let setting = Setting {
        jwt_keys: BTreeMap::from([
            ("hmac:_default".to_owned(), BASE64_STANDARD.encode(secret)),
            ("rsa:r".to_owned(), rsa_public.clone()),
            ("ec:e".to_owned(), ec.public_key_pem()),
        ]),
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    let hs = EncodingKey::from_secret(secret);
    let rs = EncodingKey::from_rsa_pem(rsa_private.as_bytes()).unwrap();
    let es = EncodingKey::from_ec_pem(ec.serialize_pem().as_bytes()).unwrap();
    let token = |algorithm, kid: Option<&str>, key: &EncodingKey, claims: &Value| {
        let mut header = Header::new(algorithm);
        header.kid = kid.map(str::to_owned);
        encode(&header, claims, key).unwrap()
    };
    let ask = async |path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        fixture
            .anonymous()
            .with("authorization", &bearer)
            .get(path)
            .await
    };
    let admin = json!({"sub": "anna", "exp": LATER, "_couchdb.roles": ["_admin"]});
    for token in [
        token(Algorithm::HS256, None, &hs, &admin),
        token(Algorithm::RS256, Some("r"), &rs, &admin),
        token(Algorithm::ES256, Some("e"), &es, &admin),
    ] {
        let session = ask("/_session", &token).await.gives(200);
        let expected = json!({"name": "anna", "roles": ["_admin"]});
        assert_eq!(session["userCtx"], expected);
        assert_eq!(session["info"]["authenticated"], "jwt");
        ask("/_scheduler/jobs", &token).await.gives(200);
    }
    let plain = json!({"sub": "berta", "exp": LATER});
    let refused = ask(
        "/_scheduler/jobs",
        &token(Algorithm::ES256, Some("e"), &es, &plain),
    )
    .await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
    let stale = json!({"sub": "anna", "exp": 1_600_000_000, "_couchdb.roles": ["_admin"]});
    let confused = EncodingKey::from_secret(rsa_public.as_bytes());
    for token in [
        token(Algorithm::RS256, Some("r"), &rs, &stale),
        // Without a time to end.
        token(Algorithm::RS256, Some("r"), &rs, &json!({"sub": "anna"})),
        // The public key taken for a secret.
        token(Algorithm::HS256, Some("r"), &confused, &admin),
        // A key of another kind.
        token(Algorithm::RS256, None, &rs, &admin),
        token(Algorithm::ES256, Some("r"), &es, &admin),
    ] {
        let refused = ask("/_scheduler/jobs", &token).await;
        assert!(
            refused.status.is_client_error(),
            "{token}: {}",
            refused.text
        );
        assert_eq!(ask("/_up", &token).await.status.as_u16(), 200);
    }
}

#[tokio::test]
async fn a_trusted_proxy_says_who_calls() {
    let setting = Setting {
        proxy_secrets: vec![b"the proxy's secret".to_vec()],
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"the proxy's secret");
    let token = hmac::sign(&key, b"anna");
    let token = token.as_ref().iter().map(|byte| format!("{byte:02x}"));
    let vouched = fixture
        .anonymous()
        .with("x-auth-couchdb-username", "anna")
        .with("x-auth-couchdb-roles", "people,_admin")
        .with("x-auth-couchdb-token", &token.collect::<String>());
    let session = vouched.get("/_session").await.gives(200);
    let expected = json!({"name": "anna", "roles": ["people", "_admin"]});
    assert_eq!(session["userCtx"], expected);
    assert_eq!(session["info"]["authenticated"], "proxy");
    vouched.get("/_scheduler/jobs").await.gives(200);
    for bad in [
        vouched.clone().with("x-auth-couchdb-username", "root"),
        vouched.clone().with("x-auth-couchdb-token", ""),
    ] {
        let refused = bad.get("/_scheduler/jobs").await;
        refused.refuses(401, "unauthorized", "You are not a server admin.");
    }
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_fail_each_for_themselves() {
    let guess = async |options: Options| {
        let fixture = Fixture::with(options, Setting::default()).await;
        for n in 0..30 {
            let eve = fixture.user(&format!("user{n}"), "guess");
            let eve = eve.with("x-forwarded-for", "198.51.100.7, 192.0.2.1");
            eve.get("/_session").await;
        }
        let anna = fixture.user("anna", "wrong");
        let anna = anna.with("x-forwarded-for", "198.51.100.7, 192.0.2.2");
        anna.get("/_session").await.status.as_u16()
    };
    let trusting = Options {
        trusted_proxies: vec!["10.0.0.0/8".to_owned()],
        ..Options::default()
    };
    assert_eq!(guess(trusting).await, 401);
    assert_eq!(guess(Options::default()).await, 429);
}

#[tokio::test]
async fn guesses_elsewhere_keep_no_user_out() {
    let options = Options {
        trusted_proxies: vec!["10.0.0.0/8".to_owned()],
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let log_in = async |address, password| {
        let login = json!({"name": "root", "password": password});
        let user = fixture.anonymous().with("x-forwarded-for", address);
        let answer = user.post("/_session", &login).await;
        answer.status.as_u16()
    };
    // Each failure doubles the wait, so it becomes longer than a guess takes, however slow the machine is.
    let (mut guesses, mut waits) = (0, false);
    while !waits && guesses < 100 {
        guesses += 1;
        let waited = log_in("198.51.100.7", "guess").await;
        waits = waited == 429 && log_in("198.51.100.7", "s3cret").await == 429;
    }
    assert!(waits && guesses > 6, "{guesses}");
    assert_eq!(log_in("198.51.100.8", "s3cret").await, 200);
}

#[tokio::test]
async fn a_weak_hash_is_made_anew_at_login() {
    let setting = Setting {
        upgrade_hashes: true,
        ..Setting::default()
    };
    let fixture = Fixture::with(Options::default(), setting).await;
    fixture.add_user("anna", "a", &["people"]).await;
    let path = "/_users/org.couchdb.user:anna";
    let before = fixture.root().get(path).await.gives(200);
    assert_eq!(before["iterations"], 10);
    let wrong = fixture.user("anna", "b").get("/_session").await;
    wrong.refuses(401, "unauthorized", "Name or password is incorrect.");
    assert_eq!(fixture.root().get(path).await.json(), before);
    let login = json!({"name": "anna", "password": "a"});
    let session = fixture.anonymous().post("/_session", &login).await;
    session.gives(200);
    let after = fixture.root().get(path).await.gives(200);
    assert_eq!(after["iterations"], 600_000);
    assert_ne!(after["salt"], before["salt"]);
    assert_eq!(after["roles"], json!(["people"]));
    assert!(after["_rev"].as_str().unwrap().starts_with("2-"));
    // The session is that of the new hash, and the password is the old one.
    let resumed = fixture
        .anonymous()
        .with("cookie", session.cookie())
        .get("/_session")
        .await;
    assert_eq!(resumed.json()["userCtx"]["name"], "anna");
    fixture.user("anna", "a").get("/_session").await.gives(200);
    assert_eq!(fixture.root().get(path).await.json(), after);
}

/// Feeds of `_replicator` for an administrator, and the events that end them.
async fn feed_ends(ends: impl AsyncFnOnce(&Fixture)) {
    let fixture = Fixture::new().await;
    fixture.add_user("anna", "a", &[]).await;
    let security = json!({"admins": {"names": ["anna"]}, "members": {"names": ["anna"]}});
    let root = fixture.root();
    root.put("/_replicator/_security", &security)
        .await
        .gives(200);
    let anna = fixture.user("anna", "a");
    let feed = "/_replicator/_changes?feed=continuous&heartbeat=60000";
    let feed = anna.open(Method::GET, feed, "").await;
    let mut feed = feed.into_body().into_data_stream();
    let doc = crate::fixture::replication();
    root.put("/_replicator/one", &doc).await.gives(201);
    let mut told = async || {
        while let Some(piece) = feed.next().await {
            let piece = piece.unwrap();
            if !piece.trim_ascii().is_empty() {
                return serde_json::from_slice::<Value>(&piece).unwrap();
            }
        }
        Value::Null
    };
    assert_eq!(told().await["id"], "one");
    ends(&fixture).await;
    // What was permitted a moment ago is.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    root.put("/_replicator/two", &doc).await.gives(201);
    let last = told().await;
    assert!(last["last_seq"].is_string(), "{last}");
    assert_eq!(told().await, Value::Null);
}

#[tokio::test]
async fn a_feed_ends_when_its_reader_may_no_longer_read() {
    feed_ends(async |fixture| {
        let security = json!({"admins": {"names": []}, "members": {"names": ["anna"]}});
        let put = fixture.root();
        let put = put.put("/_replicator/_security", &security);
        put.await.gives(200);
    })
    .await;
}

#[tokio::test]
async fn a_feed_ends_when_its_reader_is_deleted() {
    feed_ends(async |fixture| {
        let path = "/_users/org.couchdb.user:anna";
        let rev = fixture.root().get(path).await.json()["_rev"]
            .as_str()
            .unwrap()
            .to_owned();
        let deleted = fixture.root().delete(&format!("{path}?rev={rev}")).await;
        deleted.gives(200);
    })
    .await;
}
