//! The listener that speaks TLS.

use std::sync::Arc;
use std::time::Duration;

use api::Options;
use jobs::Clock;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::fixture::{Fixture, Setting};

struct Listening {
    address: std::net::SocketAddr,
    roots: RootCertStore,
    _served: AbortOnDropHandle<()>,
}

impl Listening {
    async fn start() -> Self {
        let names = vec!["localhost".to_owned()];
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let setting = Setting {
            clock: Some(Clock::system()),
            ..Setting::default()
        };
        let options = Options {
            head_timeout_sec: 1,
            ..Options::default()
        };
        let fixture = Fixture::with(options, setting).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        let service = fixture.service.clone();
        let served = service.run_tls(listener, tls, CancellationToken::new());
        Self {
            address,
            roots,
            _served: AbortOnDropHandle::new(tokio::spawn(served)),
        }
    }

    async fn talk(&self, request: &str) -> String {
        let config = ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }
}

#[tokio::test]
async fn cookies_of_an_encrypted_connection_are_for_such_alone() {
    let service = Listening::start().await;
    let answer = service
        .talk(
            "POST /_session HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: 25\r\n\r\n\
             name=root&password=s3cret",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cookie = answer.lines().find(|line| line.starts_with("set-cookie"));
    assert!(cookie.unwrap().ends_with("; Secure"), "{answer}");
}

#[tokio::test]
async fn http2_is_agreed_on() {
    let service = Listening::start().await;
    let mut config = ClientConfig::builder()
        .with_root_certificates(service.roots.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(service.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let stream = stream.await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let shaken = hyper::client::conn::http2::handshake::<_, _, axum::body::Body>(executor, io);
    let (mut sender, connection) = shaken.await.unwrap();
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = http::Request::get("https://localhost/_up");
    let request = request.body(axum::body::Body::empty()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    drop(connection);
}

#[tokio::test]
async fn who_does_not_speak_tls_is_hung_up_on() {
    let service = Listening::start().await;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let plain = b"GET /_up HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(plain).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let ended = tokio::time::timeout(Duration::from_secs(30), read).await;
    assert!(ended.is_ok(), "the connection stays open");
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 200"));
}
