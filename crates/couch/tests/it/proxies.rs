//! Proxies, as they are spoken to.

use std::sync::Arc;

use couch::{Database, Endpoint, Error, Failure, Network, Schemes};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fake::{Fake, Step, answer, impatient, json, network, read_request};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

async fn through(network: &Network, url: &str, proxy: &str) -> Database {
    let endpoint = Endpoint::parse(&json!(url), Some(proxy), &Schemes::default()).unwrap();
    network.database(endpoint, impatient()).await.unwrap()
}

/// A proxy that reports what it was asked for and passes connections on to `to`.
pub(crate) struct Tunnels {
    pub(crate) port: u16,
    pub(crate) asked: mpsc::Receiver<String>,
    _tasks: JoinSet<()>,
}

impl Tunnels {
    pub(crate) async fn connect(to: u16, reply: &'static str) -> Self {
        Self::start(
            to,
            move |mut stream: TcpStream, asked: mpsc::Sender<String>| async move {
                let seen = read_request(&mut stream, 0, false).await?;
                let user = seen
                    .header("proxy-authorization")
                    .unwrap_or("nobody")
                    .to_owned();
                let host = seen.header("host").unwrap().to_owned();
                asked
                    .send(format!("{} {} {host} {user}", seen.method, seen.target))
                    .await
                    .unwrap();
                stream.write_all(reply.as_bytes()).await.unwrap();
                Some(stream)
            },
        )
        .await
    }

    async fn socks(to: u16, password: Option<&'static str>, reply: u8) -> Self {
        Self::start(
            to,
            move |mut stream: TcpStream, asked: mpsc::Sender<String>| async move {
                let mut hello = [0; 2];
                stream.read_exact(&mut hello).await.unwrap();
                let mut methods = vec![0; usize::from(hello[1])];
                stream.read_exact(&mut methods).await.unwrap();
                let mut user = "nobody".to_owned();
                if let Some(password) = password {
                    assert!(methods.contains(&2));
                    stream.write_all(&[5, 2]).await.unwrap();
                    assert_eq!(stream.read_u8().await.unwrap(), 1);
                    user = text(&mut stream).await;
                    let right = text(&mut stream).await == password;
                    stream.write_all(&[1, u8::from(!right)]).await.unwrap();
                } else {
                    stream.write_all(&[5, 0]).await.unwrap();
                }
                let mut head = [0; 4];
                stream.read_exact(&mut head).await.ok()?;
                let host = match head[3] {
                    1 => {
                        let mut ip = [0; 4];
                        stream.read_exact(&mut ip).await.unwrap();
                        std::net::Ipv4Addr::from(ip).to_string()
                    }
                    3 => text(&mut stream).await,
                    4 => {
                        let mut ip = [0; 16];
                        stream.read_exact(&mut ip).await.unwrap();
                        std::net::Ipv6Addr::from(ip).to_string()
                    }
                    other => panic!("{other}"),
                };
                let port = stream.read_u16().await.unwrap();
                asked.send(format!("{host} {port} {user}")).await.unwrap();
                stream
                    .write_all(&[5, reply, 0, 1, 0, 0, 0, 0, 0, 0])
                    .await
                    .unwrap();
                Some(stream)
            },
        )
        .await
    }

    async fn start<F>(
        to: u16,
        shake: impl Fn(TcpStream, mpsc::Sender<String>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<TcpStream>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, asked) = mpsc::channel(16);
        let shake = Arc::new(shake);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut tunnels = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (shake, sender) = (Arc::clone(&shake), sender.clone());
                tunnels.spawn(async move {
                    let Some(mut stream) = shake(stream, sender).await else {
                        return;
                    };
                    let mut onward = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut onward).await;
                });
            }
        });
        Self {
            port,
            asked,
            _tasks: tasks,
        }
    }
}

async fn text(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; usize::from(stream.read_u8().await.unwrap())];
    stream.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn http_through_a_proxy_names_the_whole_address() {
    let proxy = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let at = proxy.address;
    for (spelled, credentials) in [
        (format!("http://{at}"), None),
        (format!("http://us:p@ss@{at}/"), Some("Basic dXM6cEBzcw==")),
    ] {
        let db = through(&network(), "http://u:p@db.invalid:5984/db", &spelled).await;
        db.info().await.unwrap();
        let seen = proxy.seen().pop().unwrap();
        assert_eq!(seen.target, "http://db.invalid:5984/db/");
        assert_eq!(seen.header("host"), Some("db.invalid:5984"));
        assert_eq!(seen.header("proxy-authorization"), credentials);
        assert_eq!(seen.header("authorization"), Some("Basic dTpw"));
    }
    let refusing = Fake::new(|_| vec![Step::Send(answer(407, &[], b""))]).await;
    let db = through(&network(), "http://db.invalid/db", &refusing.url("")).await;
    assert_eq!(db.info().await.unwrap_err().status(), Some(407));
}

#[tokio::test]
async fn logins_go_through_the_proxy_as_well() {
    let proxy = Fake::new(|seen| {
        let session = seen.target.ends_with("/_session");
        let cookie = answer(200, &[("Set-Cookie", "AuthSession=c")], b"{}");
        vec![Step::Send(if session { cookie } else { json(200, INFO) })]
    })
    .await;
    let network = crate::fake::network_with(|options| options.auth_session = true);
    let spelled = format!("http://us:pw@{}", proxy.address);
    through(&network, "http://u:p@db.invalid/db", &spelled)
        .await
        .info()
        .await
        .unwrap();
    let targets: Vec<_> = proxy.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(
        targets,
        ["http://db.invalid/_session", "http://db.invalid/db/"]
    );
    assert!(
        proxy
            .seen()
            .iter()
            .all(|seen| seen.header("proxy-authorization").is_some())
    );
}

#[tokio::test]
async fn socks_proxies_resolve_names() {
    let fake = Fake::new(|_| vec![Step::Send(json(200, INFO))]).await;
    let to = fake.address.port();
    for (url, asked) in [
        ("http://db.invalid:5984/db", "db.invalid 5984 nobody"),
        ("http://db.invalid/db", "db.invalid 80 nobody"),
        ("http://10.1.2.3:1/db", "10.1.2.3 1 nobody"),
        ("http://[fd00::1]:1/db", "fd00::1 1 nobody"),
    ] {
        let mut proxy = Tunnels::socks(to, None, 0).await;
        let db = through(
            &network(),
            url,
            &format!("socks5://127.0.0.1:{}", proxy.port),
        )
        .await;
        db.info().await.unwrap();
        assert_eq!(proxy.asked.recv().await.unwrap(), asked);
    }
    assert_eq!(fake.seen()[0].target, "/db/");

    let mut proxy = Tunnels::socks(to, Some("p@w"), 0).await;
    let at = format!("socks5://us:p@w@127.0.0.1:{}", proxy.port);
    through(&network(), "http://db.invalid:1/db", &at)
        .await
        .info()
        .await
        .unwrap();
    assert_eq!(proxy.asked.recv().await.unwrap(), "db.invalid 1 us");
}

#[tokio::test]
async fn socks_proxies_that_refuse() {
    for (spelled, password, reply) in [
        ("socks5://us:wrong@127.0.0.1", Some("right"), 0),
        ("socks5://127.0.0.1", None, 2),
    ] {
        let proxy = Tunnels::socks(1, password, reply).await;
        let at = format!("{spelled}:{}", proxy.port);
        let error = through(&network(), "http://db.invalid/db", &at)
            .await
            .info()
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::Failed {
                    cause: Failure::Proxy(_),
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
}

#[tokio::test]
async fn tunnels_that_are_refused() {
    for (reply, said) in [
        (
            "HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\n\r\n",
            "407 from",
        ),
        ("HTTP/1.1 502 Bad\r\n\r\n", "502 from"),
        ("potato\r\n\r\n", "does not speak HTTP"),
    ] {
        let proxy = Tunnels::connect(1, reply).await;
        let at = format!("http://us:secret@127.0.0.1:{}", proxy.port);
        let error = through(&network(), "https://db.invalid/db", &at)
            .await
            .info()
            .await
            .unwrap_err();
        let Error::Failed {
            cause: Failure::Proxy(found),
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert!(found.contains(said), "{found}");
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
    }
}
