//! The server that is measured, as its user sees it: plain requests without limits of time.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use url::{Host, Url};

#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    root: Url,
}

impl Client {
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let root = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(mut root) = root else {
            bail!("--server is the URL of a CouchDB, as http://admin:password@127.0.0.1:5984");
        };
        root.set_path("/");
        let http = reqwest::Client::builder()
            .no_proxy()
            // Some servers close idle connections at the moment they are used again.
            .pool_max_idle_per_host(0)
            .connect_timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self { http, root })
    }

    /// The port, when the server is on this machine.
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

    /// Whether the server replicates by itself.
    pub(crate) async fn has_replicator(&self) -> anyhow::Result<bool> {
        let (status, _) = self.send(Method::GET, "", None).await?;
        ensure!(status.is_success(), "the server answers {status}");
        // Without a source it is a bad request; without a replicator there is nothing to ask.
        let (status, _) = self
            .send(Method::POST, "_replicate", Some("{}".to_owned()))
            .await?;
        Ok(!matches!(
            status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        ))
    }

    pub(crate) async fn create(&self, database: &str) -> anyhow::Result<()> {
        self.expect(Method::PUT, database, None).await.map(drop)
    }

    pub(crate) async fn delete(&self, database: &str) -> anyhow::Result<()> {
        self.expect(Method::DELETE, database, None).await.map(drop)
    }

    pub(crate) async fn bulk_docs(&self, database: &str, body: String) -> anyhow::Result<()> {
        let path = format!("{database}/_bulk_docs");
        let refused = self.expect(Method::POST, &path, Some(body)).await?;
        ensure!(
            refused.as_array().is_some_and(Vec::is_empty),
            "documents were refused: {refused}"
        );
        Ok(())
    }

    /// How many documents there are, and how many deleted ones.
    pub(crate) async fn counts(&self, database: &str) -> anyhow::Result<(u64, u64)> {
        let info = self.expect(Method::GET, database, None).await?;
        let count = |name: &str| {
            info[name]
                .as_u64()
                .context("the server counts no documents")
        };
        Ok((count("doc_count")?, count("doc_del_count")?))
    }

    /// Writes new documents.
    pub(crate) async fn write(&self, database: &str, documents: &[Value]) -> anyhow::Result<()> {
        let path = format!("{database}/_bulk_docs");
        let body = json!({"docs": documents}).to_string();
        let answer = self.expect(Method::POST, &path, Some(body)).await?;
        let refused = answer.as_array().into_iter().flatten();
        let refused = refused.into_iter().find(|row| row.get("error").is_some());
        ensure!(refused.is_none(), "a document was refused: {refused:?}");
        Ok(())
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.expect(Method::GET, path, None).await
    }

    /// Has the server replicate, and waits until it is done.
    pub(crate) async fn replicate(&self, document: &Value) -> anyhow::Result<()> {
        let answer = self
            .expect(Method::POST, "_replicate", Some(document.to_string()))
            .await?;
        ensure!(answer["ok"] == json!(true), "the server answers {answer}");
        Ok(())
    }

    pub(crate) async fn expect(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
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
        body: Option<String>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let mut url = self.root.clone();
        // Credentials go into a header, so that no error shows them.
        let (name, password) = (url.username().to_owned(), url.password().map(str::to_owned));
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let mut request = self.http.request(method, url.join(path)?);
        if !name.is_empty() {
            request = request.basic_auth(name, password);
        }
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        let response = request.send().await.context("ask the server")?;
        let status = response.status();
        let text = response.text().await.context("read the server's answer")?;
        Ok((
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        ))
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
