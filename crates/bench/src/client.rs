//! The HTTP client of all benchmarks. It is cheap, so that the server is what is measured.

use anyhow::{Context, bail, ensure};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use memchr::memmem;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use url::{Host, Url};
use wire::client;

/// A server with credentials. Every request uses a new connection, because some servers close idle ones just when they
/// are reused; [`Client::connect`] keeps one.
#[derive(Clone)]
pub(crate) struct Client {
    root: Url,
}

impl Client {
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let root = Url::parse(url)
            .ok()
            .filter(|url| url.scheme() == "http" && url.has_host());
        let Some(mut root) = root else {
            bail!(
                "--server must be the URL of a CouchDB, such as http://admin:password@127.0.0.1:5984"
            );
        };
        root.set_path("/");
        Ok(Self { root })
    }

    /// The port, if the server is on this machine.
    pub(crate) fn local_port(&self) -> Option<u16> {
        let is_local = match self.root.host()? {
            Host::Ipv4(address) => address.is_loopback(),
            Host::Ipv6(address) => address.is_loopback(),
            Host::Domain(name) => name == "localhost",
        };
        is_local.then(|| self.root.port_or_known_default())?
    }

    /// The URL of a database, with credentials.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("{}{database}", self.root)
    }

    /// A connection for many requests.
    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        Ok(Connection(client::Connection::open(&self.root).await?))
    }

    /// Whether the server has a replicator.
    pub(crate) async fn has_replicator(&self) -> anyhow::Result<bool> {
        let (status, _) = self.send(Method::GET, "", "").await?;
        ensure!(status.is_success(), "the server responded {status}");
        // With a replicator, a body without a source is a bad request.
        let (status, _) = self.send(Method::POST, "_replicate", "{}").await?;
        Ok(!matches!(
            status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        ))
    }

    pub(crate) async fn create(&self, database: &str) -> anyhow::Result<()> {
        self.expect(Method::PUT, database, "").await.map(drop)
    }

    pub(crate) async fn delete(&self, database: &str) -> anyhow::Result<()> {
        self.expect(Method::DELETE, database, "").await.map(drop)
    }

    pub(crate) async fn bulk_docs(&self, database: &str, body: &str) -> anyhow::Result<()> {
        let path = format!("{database}/_bulk_docs");
        let refused = self.expect(Method::POST, &path, body).await?;
        ensure!(
            refused.as_array().is_some_and(Vec::is_empty),
            "the server rejected documents: {refused}"
        );
        Ok(())
    }

    /// The number of documents and of deleted ones.
    pub(crate) async fn counts(&self, database: &str) -> anyhow::Result<(u64, u64)> {
        let info = self.get(database).await?;
        let count = |name: &str| {
            info[name]
                .as_u64()
                .with_context(|| format!("the server's response has no {name}"))
        };
        Ok((count("doc_count")?, count("doc_del_count")?))
    }

    /// Writes new documents.
    pub(crate) async fn write(&self, database: &str, documents: &[Value]) -> anyhow::Result<()> {
        let path = format!("{database}/_bulk_docs");
        let body = json!({"docs": documents}).to_string();
        let answer = self.expect(Method::POST, &path, &body).await?;
        let mut rows = answer.as_array().into_iter().flatten();
        let refused = rows.find(|row| row.get("error").is_some());
        ensure!(
            refused.is_none(),
            "the server rejected a document: {refused:?}"
        );
        Ok(())
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.expect(Method::GET, path, "").await
    }

    /// Replicates with the server's replicator, and waits until it is done.
    pub(crate) async fn replicate(&self, document: &Value) -> anyhow::Result<()> {
        let body = document.to_string();
        let answer = self.expect(Method::POST, "_replicate", &body).await?;
        ensure!(answer["ok"] == json!(true), "the server responded {answer}");
        Ok(())
    }

    pub(crate) async fn expect(
        &self,
        method: Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<Value> {
        let what = format!("{method} {path}");
        let (status, answer) = self.send(method, path, body).await?;
        ensure!(status.is_success(), "{what}: {status}: {answer}");
        Ok(answer)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let mut connection = self.connect().await?;
        let path = format!("/{path}");
        let (status, answer) = connection.0.ask(method, &path, body.to_owned()).await?;
        let text = || Value::String(String::from_utf8_lossy(&answer).into_owned());
        Ok((
            status,
            serde_json::from_slice(&answer).unwrap_or_else(|_| text()),
        ))
    }
}

pub(crate) struct Connection(client::Connection);

impl Connection {
    /// Writes a new document.
    pub(crate) async fn put(&mut self, path: &str, body: String) -> anyhow::Result<()> {
        let (status, answer) = self.0.ask(Method::PUT, path, body).await?;
        let answer = String::from_utf8_lossy(&answer);
        ensure!(
            status == StatusCode::CREATED,
            "PUT {path}: {status}: {answer}"
        );
        Ok(())
    }

    pub(crate) async fn post(&mut self, path: &str, body: String) -> anyhow::Result<()> {
        self.post_for::<IgnoredAny>(path, body).await.map(drop)
    }

    pub(crate) async fn post_for<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: String,
    ) -> anyhow::Result<T> {
        let (status, answer) = self.0.ask(Method::POST, path, body).await?;
        let text = String::from_utf8_lossy(&answer);
        ensure!(status.is_success(), "POST {path}: {status}: {text}");
        Ok(serde_json::from_slice(&answer)?)
    }

    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let (status, answer) = self.0.ask(Method::GET, path, String::new()).await?;
        let text = String::from_utf8_lossy(&answer);
        ensure!(status == StatusCode::OK, "GET {path}: {status}: {text}");
        Ok(serde_json::from_slice(&answer)?)
    }

    /// A response that is read in pieces.
    pub(crate) async fn follow(&mut self, path: &str) -> anyhow::Result<Followed> {
        let (_, body) = self.0.send(Method::GET, path, String::new()).await?;
        Ok(Followed {
            body,
            read: Vec::new(),
        })
    }
}

/// The response of a feed.
pub(crate) struct Followed {
    body: Incoming,
    read: Vec<u8>,
}

impl Followed {
    /// Reads until the server has sent this word.
    pub(crate) async fn read_until(&mut self, word: &str) -> anyhow::Result<()> {
        while memmem::find(&self.read, word.as_bytes()).is_none() {
            let Some(frame) = self.body.frame().await else {
                bail!("the feed ended without {word}");
            };
            let frame = frame.context("cannot read the feed")?;
            self.read
                .extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_server_is() {
        let port = |url: &str| Client::new(url).unwrap().local_port();
        assert_eq!(port("http://a:b@127.0.0.1:5984/"), Some(5984));
        assert_eq!(port("http://localhost"), Some(80));
        assert_eq!(port("http://[::1]:7"), Some(7));
        assert_eq!(port("http://db.example.com:5984"), None);
        assert!(Client::new("db").is_err());
        let client = Client::new("http://a:b@127.0.0.1:5984/x").unwrap();
        assert_eq!(client.url("db"), "http://a:b@127.0.0.1:5984/db");
    }
}
