//! Where requests may not go, whatever leads them there.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use couch::{
    Database, EgressOptions, Endpoint, Error, Network, NetworkOptions, Policy, Reach, Resolver,
    Schemes,
};
use serde_json::json;

use crate::fake::{Fake, Step, answer, impatient, json, network_with};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

fn rules(allow: &[&str], deny: &[&str]) -> EgressOptions {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    EgressOptions {
        allow: owned(allow),
        deny: owned(deny),
        own: Vec::new(),
    }
}

async fn open(network: &Network, url: &str) -> Database {
    network
        .database(Endpoint::from_url(url).unwrap(), impatient())
        .await
        .unwrap()
}

async fn is_denied(network: &Network, url: &str) -> bool {
    match open(network, url).await.info().await {
        Err(Error::Egress { .. }) => true,
        Ok(_) => false,
        Err(other) => panic!("{url}: {other:?}"),
    }
}

/// Answers names from a list, the n-th question by the n-th answer, and counts them.
fn resolver(answers: &[&str]) -> (Resolver, Arc<AtomicUsize>) {
    let answers: Vec<Vec<IpAddr>> = answers
        .iter()
        .map(|ips| {
            ips.split_whitespace()
                .map(|ip| ip.parse().unwrap())
                .collect()
        })
        .collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let resolve = move |_: String| {
        let at = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        let found = answers[at].clone();
        Box::pin(std::future::ready(Ok(found))) as _
    };
    (Resolver::Custom(Arc::new(resolve)), asked)
}

#[tokio::test]
async fn by_default_nothing_local_is_reached() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let port = fake.address.port();
    let options = NetworkOptions {
        auth_session: false,
        ..NetworkOptions::default()
    };
    let network = Network::new(options, [1; 32]).unwrap();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "0",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "10.0.0.1",
    ] {
        assert!(
            is_denied(&network, &format!("http://{host}:{port}/db")).await,
            "{host}"
        );
        assert!(
            is_denied(&network, &format!("https://{host}:{port}/db")).await,
            "{host}"
        );
    }
    assert_eq!(fake.connections(), 0);
}

#[tokio::test]
async fn names_are_resolved_once_and_all_addresses_count() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let url = format!("http://db.example:{}/db", fake.address.port());
    let with = |answers: &[&str]| {
        let (resolver, asked) = resolver(answers);
        let network = network_with(|options| {
            options.egress = rules(&["*"], &["127.0.0.2", "::1"]);
            options.resolver = resolver;
        });
        (network, asked)
    };
    // A resolver that changes its mind after the check: the checked address is connected to.
    let (network, asked) = with(&["127.0.0.1", "127.0.0.2"]);
    assert!(!is_denied(&network, &url).await);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    for answers in [
        "127.0.0.2",
        "127.0.0.1 127.0.0.2",
        "127.0.0.1 ::1",
        "127.0.0.1 ::ffff:127.0.0.2",
    ] {
        let (network, _) = with(&[answers]);
        assert!(is_denied(&network, &url).await, "{answers}");
    }
    assert_eq!(fake.connections(), 1);

    let (network, asked) = with(&[""]);
    let error = open(&network, &url).await.info().await.unwrap_err();
    assert!(
        matches!(&error, Error::Unresolvable { host } if host == "db.example"),
        "{error:?}"
    );
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_next_address_is_tried() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let (resolver, _) = resolver(&["127.0.0.9 ::1 127.0.0.1"]);
    let network = network_with(|options| options.resolver = resolver);
    let url = format!("http://db.example:{}/db", fake.address.port());
    open(&network, &url).await.info().await.unwrap();
}

#[tokio::test]
async fn denied_names_are_not_even_resolved() {
    let (resolver, asked) = resolver(&["127.0.0.1"]);
    let network = network_with(|options| {
        options.egress = rules(&["*"], &["*.internal", "evil.example:5984"]);
        options.resolver = resolver;
    });
    for url in [
        "http://db.internal/x",
        "http://DB.Internal:1/x",
        "http://evil.example:5984/x",
    ] {
        assert!(is_denied(&network, url).await, "{url}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn redirects_are_checked_as_well() {
    for location in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]:1/",
        "http://0xa9fea9fe/",
    ] {
        let fake =
            Fake::new(move |_| vec![Step::Send(answer(302, &[("Location", location)], b""))]).await;
        let allowed = format!("127.0.0.1:{}", fake.address.port());
        let network = network_with(|options| options.egress = rules(&[&allowed], &[]));
        assert!(is_denied(&network, &fake.url("/db")).await, "{location}");
    }
}

#[tokio::test]
async fn proxies_and_token_servers_are_checked_as_well() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let port = fake.address.port();
    let network = network_with(|options| options.egress = rules(&[], &["loopback"]));
    for scheme in ["http", "https", "socks5"] {
        let proxy = format!("{scheme}://127.0.0.1:{port}");
        let endpoint = Endpoint::parse(
            &json!("http://8.8.8.8/db"),
            Some(&proxy),
            &Schemes::default(),
        )
        .unwrap();
        let db = network.database(endpoint, impatient()).await.unwrap();
        assert!(
            matches!(db.info().await, Err(Error::Egress { .. })),
            "{scheme}"
        );
    }
    let auth = json!({ "iam": { "api_key": "k", "token_url": fake.url("/token") } });
    let endpoint = crate::fake::endpoint(json!({ "url": "http://8.8.8.8/db", "auth": auth }));
    let db = network.database(endpoint, impatient()).await.unwrap();
    assert!(matches!(db.info().await, Err(Error::Egress { .. })));

    // What a proxy would reach for us is checked, too.
    let allowed = format!("127.0.0.1:{port}");
    let network = network_with(|options| options.egress = rules(&[&allowed], &[]));
    let proxy = format!("http://127.0.0.1:{port}");
    let endpoint = Endpoint::parse(
        &json!("http://10.0.0.1/db"),
        Some(&proxy),
        &Schemes::default(),
    )
    .unwrap();
    let db = network.database(endpoint, impatient()).await.unwrap();
    assert!(matches!(db.info().await, Err(Error::Egress { .. })));
    assert_eq!(fake.connections(), 0);
}

fn administrators(endpoint: &str, proxy: Option<&str>) -> Endpoint {
    let endpoint = Endpoint::parse(&json!(endpoint), proxy, &Schemes::default());
    endpoint.unwrap().reaching(Reach::Private)
}

#[tokio::test]
async fn administrators_reach_private_hosts_of_endpoints_and_nothing_else() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let network = network_with(|options| options.egress = EgressOptions::default());
    let info = async |endpoint: Endpoint| {
        let db = network.database(endpoint, impatient()).await?;
        db.info().await
    };
    let denied = |done: Result<_, Error>| matches!(done, Err(Error::Egress { .. }));
    info(administrators(&fake.url("/db"), None)).await.unwrap();
    // A connection that is kept open is not one for others.
    assert!(is_denied(&network, &fake.url("/db")).await);
    assert_eq!(fake.connections(), 1);

    let elsewhere = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let location = elsewhere.url("/db");
    let redirecting =
        Fake::new(move |_| vec![Step::Send(answer(302, &[("Location", &location)], b""))]).await;
    assert!(denied(
        info(administrators(&redirecting.url("/db"), None)).await
    ));
    let proxy = format!("http://{}", elsewhere.address);
    assert!(denied(
        info(administrators(&fake.url("/db"), Some(&proxy))).await
    ));
    let auth = json!({ "iam": { "api_key": "k", "token_url": elsewhere.url("/token") } });
    let endpoint = crate::fake::endpoint(json!({ "url": fake.url("/db"), "auth": auth }));
    assert!(denied(info(endpoint.reaching(Reach::Private)).await));
    assert_eq!(elsewhere.connections(), 0);
}

#[test]
fn literal_addresses_are_known_before_a_connection() {
    let options = NetworkOptions {
        egress: rules(&[], &["10.9.0.0/16", "*.evil.example"]),
        connect_to: "10.0.0.1:5984:8.8.8.8:5984".to_owned(),
        ..NetworkOptions::default()
    };
    let policy = Policy::new(&options).unwrap();
    let refuses = |endpoint: &Endpoint| policy.check(endpoint).is_err();
    for (url, member, administrator) in [
        ("http://8.8.8.8/db", false, false),
        ("http://db.example/db", false, false),
        ("http://localhost:5984/db", false, false),
        ("http://127.0.0.1:5984/db", true, false),
        ("http://[fd00::1]:5984/db", true, false),
        ("http://2130706433/db", true, false),
        ("http://10.9.0.1/db", true, true),
        ("http://169.254.169.254/db", true, true),
        ("http://a.evil.example/db", true, true),
        ("http://10.0.0.1:5984/db", false, false),
    ] {
        assert_eq!(refuses(&Endpoint::from_url(url).unwrap()), member, "{url}");
        assert_eq!(refuses(&administrators(url, None)), administrator, "{url}");
    }
    assert!(refuses(&administrators(
        "http://8.8.8.8/db",
        Some("http://10.0.0.2:1")
    )));
}

#[tokio::test]
async fn sessions_are_checked_as_well() {
    let network = network_with(|options| {
        options.egress = rules(&[], &[]);
        options.auth_session = true;
    });
    let endpoint = Endpoint::from_url("http://u:p@127.0.0.1:1/db").unwrap();
    assert!(matches!(
        network.database(endpoint, impatient()).await,
        Err(Error::Egress { .. })
    ));
}

#[tokio::test]
async fn connections_go_where_connect_to_says() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let port = fake.address.port();
    let to = format!("*.example.com:5984:127.0.0.1:{port}, other.org:80:127.0.0.1:1");
    let network = network_with(|options| options.connect_to = to.clone());
    open(&network, "http://db.example.com:5984/db")
        .await
        .info()
        .await
        .unwrap();
    assert_eq!(fake.only().header("host"), Some("db.example.com:5984"));

    // The target of an override is an address like any other.
    let network = network_with(|options| {
        options.connect_to = to;
        options.egress = rules(&[], &["loopback"]);
    });
    assert!(is_denied(&network, "http://db.example.com:5984/db").await);
}
