//! One script's talk with one server, in a database of its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use crate::answers::Answer;
use crate::differences::{DIFFERENCES, SPARED};
use crate::servers::{Kind, Server};

/// No answer takes longer than this.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Session {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    /// Name of the script's database, which exists.
    pub(crate) db: String,
    script: String,
    admin: Option<(String, String)>,
    client: Client,
    steps: RefCell<BTreeSet<String>>,
    different: RefCell<Vec<(String, String)>>,
}

impl Session {
    pub(crate) async fn begin(server: &Server, script: &str) -> Self {
        let client = Client::builder()
            .timeout(TIMEOUT)
            .no_gzip()
            // CouchDB closes an idle connection at times just when it is used again.
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        let session = Self {
            kind: server.kind,
            url: server.url.clone(),
            db: format!("suite_{script}_{}", std::process::id()),
            script: script.to_owned(),
            admin: server.admin.clone(),
            client,
            steps: RefCell::default(),
            different: RefCell::default(),
        };
        session.delete("").await;
        session.put("", None).await;
        session
    }

    /// Deletes the database and tells what was not as expected and not as listed.
    pub(crate) async fn end(self) -> Vec<String> {
        self.check(
            "the server survives",
            &json!(self.get("/").await.status),
            &json!(200),
        );
        self.delete("").await;
        let mine: Vec<&str> = (DIFFERENCES.iter())
            .filter(|entry| entry.server == self.kind)
            .flat_map(|entry| entry.steps)
            .copied()
            .filter(|step| step.split('/').next() == Some(&self.script))
            .collect();
        let listed = |step: &str| mine.contains(&step);
        let different = self.different.into_inner();
        let mut failures: Vec<String> = (different.iter())
            .filter(|(step, _)| !listed(step))
            .map(|(step, what)| format!("{step}: {what}"))
            .collect();
        let taken = self.steps.into_inner();
        let same = taken.iter();
        let same = same.filter(|step| different.iter().all(|(other, _)| other != *step));
        failures.extend(
            same.filter(|step| listed(step))
                .map(|step| format!("{step}: no longer differs")),
        );
        let unknown = mine.iter().filter(|step| !taken.contains(**step));
        failures.extend(unknown.map(|step| format!("{step}: listed, but there is no such step")));
        failures.dedup();
        failures
    }

    /// Notes whether a step's outcome is as expected.
    pub(crate) fn check(&self, step: &str, actual: &Value, expected: &Value) {
        let step = format!("{}/{step}", self.script);
        assert!(
            self.steps.borrow_mut().insert(step.clone()),
            "{step} is checked once only"
        );
        if actual != expected {
            let what = format!("\n    expected {expected}\n    got      {actual}");
            self.different.borrow_mut().push((step, what));
        }
    }

    /// Whether the server is spared a step, which it cannot take.
    pub(crate) fn spares(&self, step: &str) -> bool {
        let step = format!("{}/{step}", self.script);
        SPARED
            .iter()
            .any(|spared| spared.server == self.kind && spared.step == step)
    }

    /// A request as administrator; a path without a slash at its front is within the database.
    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let request = self.anonymous(method, path);
        match &self.admin {
            Some((name, password)) => request.basic_auth(name, Some(password)),
            None => request,
        }
    }

    /// The same without a name.
    pub(crate) fn anonymous(&self, method: &str, path: &str) -> RequestBuilder {
        let url = match path.strip_prefix('/') {
            Some(path) => format!("{}/{path}", self.url),
            None if path.is_empty() || path.starts_with('?') => {
                format!("{}/{}{path}", self.url, self.db)
            }
            None => format!("{}/{}/{path}", self.url, self.db),
        };
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        self.client
            .request(method, url)
            .header("Accept", "application/json")
    }

    /// A request as administrator that takes another type of answer.
    pub(crate) fn accepting(
        &self,
        method: &str,
        path: &str,
        accept: &'static str,
    ) -> RequestBuilder {
        let accept = [(ACCEPT, HeaderValue::from_static(accept))];
        self.request(method, path)
            .headers(accept.into_iter().collect())
    }

    pub(crate) fn admin(&self) -> (&str, &str) {
        let admin = self
            .admin
            .as_ref()
            .expect("scripts about rights are for servers that know rights");
        (&admin.0, &admin.1)
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let request = self.request(method, path);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        Answer::read(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None).await
    }

    pub(crate) async fn put(&self, path: &str, body: Option<&Value>) -> Answer {
        self.send("PUT", path, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None).await
    }
}
