//! A frontend, over HTTP: what all commands that talk to a service share.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use document::json::Json;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Certificate, Client, Method, RequestBuilder};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use url::Url;

use super::{output, unusable};

const NOT_JSON: &str = "the response is not JSON; check that --url is a Davenport frontend";
/// Documents per request.
const PAGE: usize = 200;

#[derive(Debug, Args)]
pub(super) struct ServiceFlags {
    /// URL of a frontend
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "DAVENPORT_URL",
        default_value = "http://127.0.0.1:5985"
    )]
    url: String,
    /// Administrator's name and password
    #[arg(
        long,
        global = true,
        value_name = "NAME:PASSWORD",
        env = "DAVENPORT_USER",
        hide_env_values = true
    )]
    user: Option<String>,
    /// PEM file with the certificate authorities to trust, instead of the system's
    #[arg(
        long,
        alias = "ca",
        global = true,
        value_name = "FILE",
        env = "DAVENPORT_CACERT"
    )]
    cacert: Option<PathBuf>,
    /// Print the JSON returned by the service
    #[arg(long, global = true)]
    json: bool,
}

pub(super) struct Service {
    client: Client,
    pub(super) url: String,
    user: Option<(String, String)>,
    pub(super) json: bool,
}

/// An error response of the service.
#[derive(Debug, thiserror::Error)]
#[error("{status} {error}: {reason}{hint}")]
pub(super) struct Refusal {
    pub(super) status: u16,
    error: String,
    reason: String,
    hint: &'static str,
}

impl Refusal {
    /// Whether a job is missing, not its type.
    fn is_of_job(&self) -> bool {
        let is_of_user = self.reason.starts_with("there is no such job");
        self.status == 404 && (is_of_user || self.reason == "missing")
    }

    /// Whether a document is missing, not its database.
    pub(super) fn is_of_document(&self) -> bool {
        self.status == 404 && matches!(&*self.reason, "missing" | "deleted")
    }
}

/// The error for a job that is missing: it names the job, and the command that lists others.
pub(super) fn of_job(error: anyhow::Error, id: &str, list: &str) -> anyhow::Error {
    let refusal = error.downcast_ref::<Refusal>();
    if refusal.is_some_and(Refusal::is_of_job) {
        return anyhow::anyhow!("there is no job {id}; `{list}` shows the ids of jobs");
    }
    error
}

/// Rows of `_all_docs`.
#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) rows: Vec<Row>,
}

#[derive(Deserialize)]
pub(super) struct Row {
    pub(super) key: String,
    doc: Option<Box<RawValue>>,
}

impl Page {
    /// The parameters of the page behind this document.
    pub(super) fn after(last: Option<&str>) -> Vec<(&'static str, String)> {
        let mut query = vec![
            ("include_docs", "true".to_owned()),
            ("limit", PAGE.to_string()),
        ];
        if let Some(last) = last {
            query.push(("startkey", json!(last).to_string()));
            query.push(("skip", "1".to_owned()));
        }
        query
    }

    /// The last id of a page that others may follow.
    pub(super) fn last(&self) -> Option<String> {
        let is_full = self.rows.len() == PAGE;
        let last = self.rows.last().filter(|_| is_full);
        last.map(|row| row.key.clone())
    }
}

impl Row {
    /// The document, unless it was deleted.
    pub(super) fn document(&self) -> anyhow::Result<Option<Json>> {
        let text = self.doc.as_ref().map(|doc| doc.get());
        let text = text.filter(|text| *text != "null");
        Ok(text.map(Json::parse).transpose()?)
    }
}

impl Service {
    pub(super) fn new(flags: &ServiceFlags) -> anyhow::Result<Self> {
        let user = flags.user.as_deref().map(|user| {
            let parts = user.split_once(':');
            let (name, password) = parts.ok_or_else(|| unusable("--user: write NAME:PASSWORD"))?;
            Ok::<_, anyhow::Error>((name.to_owned(), password.to_owned()))
        });
        let url = Url::parse(&flags.url).ok();
        if !url.is_some_and(|url| matches!(url.scheme(), "http" | "https")) {
            return Err(unusable(
                "--url: write http://HOST:PORT or https://HOST:PORT",
            ));
        }
        Ok(Self {
            client: client(flags.cacert.as_deref())?,
            url: flags.url.trim_end_matches('/').to_owned(),
            user: user.transpose()?,
            json: flags.json,
        })
    }

    pub(super) fn done(&self, answer: &Value, what: &str, id: &str) {
        if self.json {
            output::line(&answer.to_string());
        } else {
            output::line(&format!("{what} {id}"));
        }
    }

    pub(super) async fn send(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        answer(self.request(method, path)?).await
    }

    pub(super) async fn send_body(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<Value> {
        answer(self.request(method, path)?.body(body)).await
    }

    /// A document, with its numbers as they are.
    pub(super) async fn document(&self, db: &str, id: &str) -> anyhow::Result<Json> {
        let path = format!("/{}/{}", escaped(db), escaped(id));
        Json::parse(&text(self.request(Method::GET, &path)?).await?).context(NOT_JSON)
    }

    /// All documents of a database by their ids.
    pub(super) async fn documents(&self, db: &str) -> anyhow::Result<Vec<(String, Json)>> {
        let (mut documents, mut last) = (Vec::new(), None);
        loop {
            let path = format!("/{}/_all_docs", escaped(db));
            let request = self.request(Method::GET, &path)?;
            let page = page(request.query(&Page::after(last.as_deref()))).await?;
            for row in &page.rows {
                let document = row.document()?;
                documents.extend(document.map(|document| (row.key.clone(), document)));
            }
            last = page.last();
            if last.is_none() {
                return Ok(documents);
            }
        }
    }

    /// Refuses ids that a URL cannot have: without them, the request would be about something else.
    pub(super) fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let mut segments = path.split('/').skip(1);
        if segments.any(|segment| matches!(segment, "" | "%2E" | "%2E%2E")) {
            return Err(unusable("an id or a name is empty, `.` or `..`"));
        }
        let json = "application/json";
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .header("accept", json)
            .header("content-type", json);
        Ok(match &self.user {
            Some((name, password)) => request.basic_auth(name, Some(password)),
            None => request,
        })
    }
}

fn client(cacert: Option<&Path>) -> anyhow::Result<Client> {
    let Some(file) = cacert else {
        return Ok(Client::new());
    };
    let unusable = |why: &dyn Display| unusable(&format!("--cacert: {}: {why}", file.display()));
    let pem = std::fs::read(file).map_err(|error| unusable(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
    if certificates.is_empty() {
        return Err(unusable(&"there is no certificate in it"));
    }
    let client = Client::builder().tls_certs_only(certificates).build();
    client.map_err(|error| unusable(&error))
}

pub(super) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The response to a request, or the service's error.
pub(super) async fn answer(request: RequestBuilder) -> anyhow::Result<Value> {
    serde_json::from_str(&text(request).await?).context(NOT_JSON)
}

pub(super) async fn page(request: RequestBuilder) -> anyhow::Result<Page> {
    serde_json::from_str(&text(request).await?).context(NOT_JSON)
}

async fn text(request: RequestBuilder) -> anyhow::Result<String> {
    let response = request
        .send()
        .await
        .context("cannot reach the service; check --url or DAVENPORT_URL")?;
    let status = response.status();
    let text = response.text().await.unwrap_or_default();
    if status.is_success() {
        return Ok(text);
    }
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    if !json["error"].is_string() {
        bail!("{status}: {NOT_JSON}");
    }
    let part = |name: &str| json[name].as_str().unwrap_or("?").to_owned();
    let hint = match status.as_u16() {
        401 => "; set --user or DAVENPORT_USER to an administrator",
        _ => "",
    };
    Err(anyhow::Error::new(Refusal {
        status: status.as_u16(),
        error: part("error"),
        reason: match hint {
            "" => part("reason"),
            _ => part("reason").trim_end_matches('.').to_owned(),
        },
        hint,
    }))
}
