//! TLS: who is believed, and what is offered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use couch::{Database, Endpoint, Error, Failure, Network, Schemes};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::fake::{Fake, Step, impatient, network, network_with};
use crate::proxies::Tunnels;

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

/// Gives each authority a name: those of one name are told apart by their signatures only.
static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Leaf {
    cert: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("authority {}", AUTHORITIES.fetch_add(1, Ordering::SeqCst));
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn leaf(&self, name: &str) -> Leaf {
        self.leaf_with(name, |_| {})
    }

    fn leaf_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Leaf {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A TLS server that reports server name, HTTP version and whether there was a client certificate.
struct Secure {
    port: u16,
    seen: mpsc::Receiver<String>,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Secure {
    async fn new(leaf: &Leaf, clients: Option<&Authority>, alpn: &[&str]) -> Self {
        Self::answering(leaf, clients, alpn, None).await
    }

    async fn answering(
        leaf: &Leaf,
        clients: Option<&Authority>,
        alpn: &[&str],
        location: Option<String>,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots
                    .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap())
                    .unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build()
                        .unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = alpn
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, seen) = mpsc::channel(16);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, sender, location) =
                    (acceptor.clone(), sender.clone(), location.clone());
                let count = Arc::clone(&count);
                serving.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    count.fetch_add(1, Ordering::SeqCst);
                    let session = stream.get_ref().1;
                    let name = session.server_name().unwrap_or("none").to_owned();
                    let client = session.peer_certificates().map_or("anonymous", |_| "known");
                    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
                        let host = request
                            .headers()
                            .get("host")
                            .map(|host| host.to_str().unwrap());
                        let host =
                            host.or(request.uri().authority().map(http::uri::Authority::as_str));
                        let said = format!(
                            "{name} {:?} {client} {}",
                            request.version(),
                            host.unwrap_or_default()
                        );
                        let (sender, location) = (sender.clone(), location.clone());
                        async move {
                            sender.send(said).await.unwrap();
                            let mut reply =
                                http::Response::new(Full::new(Bytes::from_static(INFO.as_bytes())));
                            if let Some(location) = location {
                                *reply.status_mut() = http::StatusCode::FOUND;
                                reply
                                    .headers_mut()
                                    .insert("location", location.parse().unwrap());
                            }
                            Ok::<_, std::convert::Infallible>(reply)
                        }
                    });
                    let builder =
                        hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            port,
            seen,
            connections,
            _tasks: tasks,
        }
    }
}

async fn open(network: &Network, url: &str, tls: Value) -> Database {
    let endpoint = crate::fake::endpoint(json!({ "url": url, "tls": tls }));
    network.database(endpoint, impatient()).await.unwrap()
}

fn tag(error: &Error) -> &'static str {
    match error {
        Error::Failed {
            attempts: 1,
            cause: Failure::Tls { tag, .. },
            ..
        } => tag,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn private_authorities() {
    let (ours, other) = (Authority::new(), Authority::new());
    let mut server = Secure::new(&ours.leaf("localhost"), None, &["http/1.1"]).await;
    let url = format!("https://localhost:{}/db", server.port);
    open(&network(), &url, json!({ "ca": ours.pem() }))
        .await
        .info()
        .await
        .unwrap();
    let said = server.seen.recv().await.unwrap();
    assert_eq!(
        said,
        format!("localhost HTTP/1.1 anonymous localhost:{}", server.port)
    );

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, other.pem() + &ours.pem()).unwrap();
    let trusting = network_with(|options| options.ssl_trusted_certificates_file = Some(file));
    open(&trusting, &url, json!({})).await.info().await.unwrap();

    for tls in [
        json!({}),
        json!({ "ca": other.pem() }),
        json!({ "verify": true }),
    ] {
        let error = open(&network(), &url, tls).await.info().await.unwrap_err();
        assert_eq!(tag(&error), "unknown_ca");
    }
    let error = open(&trusting, &url, json!({ "ca": other.pem() }))
        .await
        .info()
        .await
        .unwrap_err();
    assert_eq!(
        tag(&error),
        "unknown_ca",
        "the endpoint's authority replaces the node's"
    );
}

#[tokio::test]
async fn names_and_dates_are_checked() {
    let ours = Authority::new();
    let tls = json!({ "ca": ours.pem() });
    let server = Secure::new(&ours.leaf("other.example"), None, &[]).await;
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{}/db", server.port);
        let error = open(&network(), &url, tls.clone())
            .await
            .info()
            .await
            .unwrap_err();
        assert_eq!(tag(&error), "hostname_mismatch");
    }
    let old = ours.leaf_with("localhost", |params| {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    let server = Secure::new(&old, None, &[]).await;
    let url = format!("https://localhost:{}/db", server.port);
    let error = open(&network(), &url, tls).await.info().await.unwrap_err();
    assert_eq!(tag(&error), "certificate_expired");

    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}/db",
        plain.local_addr().unwrap().port()
    );
    let db = open(&network(), &url, json!({})).await;
    let answering = async {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        stream
    };
    let (error, _stream) = tokio::join!(db.info(), answering);
    assert_eq!(tag(&error.unwrap_err()), "no_tls");
}

#[tokio::test]
async fn verification_is_switched_off_for_one_endpoint_only() {
    let server = Secure::new(&Authority::new().leaf("other.example"), None, &[]).await;
    let url = format!("https://localhost:{}/db", server.port);
    let network = network();
    open(&network, &url, json!({ "verify": false }))
        .await
        .info()
        .await
        .unwrap();
    let error = open(&network, &url, json!({}))
        .await
        .info()
        .await
        .unwrap_err();
    assert_eq!(
        tag(&error),
        "unknown_ca",
        "and its connection is not shared"
    );

    let careless = network_with(|options| options.verify_ssl_certificates = false);
    open(&careless, &url, json!({})).await.info().await.unwrap();
    let error = open(&careless, &url, json!({ "verify": true }))
        .await
        .info()
        .await
        .unwrap_err();
    assert_eq!(tag(&error), "unknown_ca");
}

#[tokio::test]
async fn client_certificates() {
    let (ours, clients) = (Authority::new(), Authority::new());
    let mut server = Secure::new(&ours.leaf("localhost"), Some(&clients), &["http/1.1"]).await;
    let url = format!("https://localhost:{}/db", server.port);
    let client = clients.leaf("client");
    let tls = json!({ "ca": ours.pem(), "cert": client.cert, "key": client.key });
    open(&network(), &url, tls).await.info().await.unwrap();
    assert!(server.seen.recv().await.unwrap().contains(" known "));
    open(&network(), &url, json!({ "ca": ours.pem() }))
        .await
        .info()
        .await
        .unwrap();
    assert!(server.seen.recv().await.unwrap().contains(" anonymous "));

    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("c"), directory.path().join("k"));
    std::fs::write(&cert, &client.cert).unwrap();
    std::fs::write(&key, &client.key).unwrap();
    let network = network_with(|options| {
        options.cert_file = Some(cert);
        options.key_file = Some(key);
    });
    open(&network, &url, json!({ "ca": ours.pem() }))
        .await
        .info()
        .await
        .unwrap();
    assert!(server.seen.recv().await.unwrap().contains(" known "));
}

#[tokio::test]
async fn client_certificates_do_not_follow_redirects() {
    let (ours, clients) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, ours.pem()).unwrap();
    let network = network_with(|options| options.ssl_trusted_certificates_file = Some(file));
    let mut other = Secure::new(&ours.leaf("localhost"), Some(&clients), &["http/1.1"]).await;
    let location = Some(format!("https://localhost:{}/db", other.port));
    let mut server = Secure::answering(
        &ours.leaf("localhost"),
        Some(&clients),
        &["http/1.1"],
        location,
    )
    .await;
    let client = clients.leaf("client");
    let url = format!("https://localhost:{}/db", server.port);
    let tls = json!({ "cert": client.cert, "key": client.key });
    open(&network, &url, tls).await.info().await.unwrap();
    assert!(server.seen.recv().await.unwrap().contains(" known "));
    assert!(other.seen.recv().await.unwrap().contains(" anonymous "));
}

#[tokio::test]
async fn unusable_certificates_are_said_to_be() {
    let authority = Authority::new();
    let leaf = authority.leaf("x");
    let fake = Fake::new(|_| vec![Step::Close]).await;
    let url = format!("https://localhost:{}/db", fake.address.port());
    for (tls, said) in [
        (
            json!({ "ca": "potato" }),
            "`tls.ca` has no PEM certificates",
        ),
        (
            json!({ "cert": leaf.cert, "key": "hunter2" }),
            "client key is not an unencrypted PEM key",
        ),
        (
            json!({ "cert": "potato", "key": leaf.key }),
            "client certificate has no PEM certificates",
        ),
    ] {
        let error = open(&network(), &url, tls).await.info().await.unwrap_err();
        assert_eq!(error.to_string(), said);
    }
}

#[tokio::test]
async fn http2_where_it_is_offered() {
    let ours = Authority::new();
    let tls = json!({ "ca": ours.pem() });
    let mut server = Secure::new(&ours.leaf("localhost"), None, &["h2", "http/1.1"]).await;
    let url = format!("https://localhost:{}/db", server.port);
    let network = network();
    let db = open(&network, &url, tls.clone()).await;
    db.info().await.unwrap();
    assert!(server.seen.recv().await.unwrap().contains("HTTP/2.0"));
    let mut asking = JoinSet::new();
    for _ in 0..10 {
        let db = db.clone();
        asking.spawn(async move { db.info().await.unwrap() });
    }
    for _ in 0..10 {
        asking.join_next().await.unwrap().unwrap();
        let said = server.seen.recv().await.unwrap();
        assert_eq!(
            said,
            format!("localhost HTTP/2.0 anonymous localhost:{}", server.port)
        );
    }
    assert_eq!(
        server.connections.load(Ordering::SeqCst),
        1,
        "all on one connection"
    );

    let without = network_with(|options| options.http2 = false);
    open(&without, &url, tls).await.info().await.unwrap();
    assert!(server.seen.recv().await.unwrap().contains("HTTP/1.1"));
}

#[tokio::test]
async fn overridden_addresses_keep_the_name() {
    let ours = Authority::new();
    let mut server = Secure::new(&ours.leaf("db.example.com"), None, &["http/1.1"]).await;
    let network = network_with(|options| {
        options.connect_to = format!("*.example.com:6984:127.0.0.1:{}", server.port);
    });
    let url = "https://db.example.com:6984/db";
    open(&network, url, json!({ "ca": ours.pem() }))
        .await
        .info()
        .await
        .unwrap();
    let said = server.seen.recv().await.unwrap();
    assert_eq!(
        said,
        "db.example.com HTTP/1.1 anonymous db.example.com:6984"
    );
}

#[tokio::test]
async fn tunnels_through_proxies() {
    let ours = Authority::new();
    let mut server = Secure::new(&ours.leaf("db.invalid"), None, &["http/1.1"]).await;
    let mut proxy =
        Tunnels::connect(server.port, "HTTP/1.1 200 Connection established\r\n\r\n").await;
    let value = json!({ "url": "https://db.invalid/db", "tls": { "ca": ours.pem() } });
    let spelled = format!("http://us:pw@127.0.0.1:{}", proxy.port);
    let endpoint = Endpoint::parse(&value, Some(&spelled), &Schemes::default()).unwrap();
    let db = network().database(endpoint, impatient()).await.unwrap();
    db.info().await.unwrap();
    let asked = proxy.asked.recv().await.unwrap();
    assert_eq!(
        asked,
        "CONNECT db.invalid:443 db.invalid:443 Basic dXM6cHc="
    );
    assert_eq!(
        server.seen.recv().await.unwrap(),
        "db.invalid HTTP/1.1 anonymous db.invalid"
    );
}

#[tokio::test]
async fn proxies_behind_tls() {
    let ours = Authority::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, ours.pem()).unwrap();
    let mut proxy = Secure::new(&ours.leaf("localhost"), None, &["h2", "http/1.1"]).await;
    let network = network_with(|options| options.ssl_trusted_certificates_file = Some(file));
    let spelled = format!("https://localhost:{}", proxy.port);
    let endpoint = Endpoint::parse(
        &json!("http://db.invalid/db"),
        Some(&spelled),
        &Schemes::default(),
    )
    .unwrap();
    network
        .database(endpoint, impatient())
        .await
        .unwrap()
        .info()
        .await
        .unwrap();
    assert_eq!(
        proxy.seen.recv().await.unwrap(),
        "localhost HTTP/1.1 anonymous db.invalid"
    );
}

/// As `openssl req -x509` makes it: it says of itself that it is an authority.
#[tokio::test]
async fn a_self_signed_certificate_is_trusted_by_itself() {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap().pem();
    let leaf = Leaf {
        cert: cert.clone(),
        key: key.serialize_pem(),
    };
    let server = Secure::new(&leaf, None, &[]).await;
    let info = async |host: &str, ca: String| {
        let url = format!("https://{host}:{}/db", server.port);
        open(&network(), &url, json!({"ca": ca})).await.info().await
    };
    info("127.0.0.1", cert.clone()).await.unwrap();
    let error = info("localhost", cert).await.unwrap_err();
    assert_eq!(tag(&error), "hostname_mismatch");
    let error = info("127.0.0.1", Authority::new().pem()).await.unwrap_err();
    assert!(
        ["unknown_ca", "bad_certificate"].contains(&tag(&error)),
        "{error}"
    );
}

/// One that waits for the end of the request that it takes the handshake for.
#[tokio::test(start_paused = true)]
async fn a_silent_port_without_tls_is_found_out_soon() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://127.0.0.1:{}/db",
        plain.local_addr().unwrap().port()
    );
    let db = open(&network(), &url, json!({})).await;
    let began = tokio::time::Instant::now();
    let (error, _stream) = tokio::join!(db.info(), plain.accept());
    assert_eq!(tag(&error.unwrap_err()), "no_tls");
    assert!(began.elapsed() < std::time::Duration::from_secs(15));
}
