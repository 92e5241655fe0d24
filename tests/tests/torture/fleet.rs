//! A frontend and three replication nodes on one store, and a client that looks for leaked credentials.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use e2e::{ADMIN, Node, PATIENCE, Signal, Start};
use reqwest::{Client as Http, Method, StatusCode};
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// Seconds that a node may be silent.
pub(crate) const JOB_TIMEOUT_S: u64 = 5;
const NAMES: [&str; 3] = ["a", "b", "c"];
const LOOK_PAUSE: Duration = Duration::from_millis(100);
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Short intervals.
const OPTIONS: [&str; 10] = [
    "replicator.interval_sec=1",
    "replicator.min_run_time_sec=1",
    "replicator.min_backoff_penalty_sec=2",
    "replicator.max_backoff_penalty_sec=4",
    "replicator.checkpoint_interval=1000",
    "replicator.park_after_sec=2",
    // Nodes are killed so often that any job would become a suspect.
    "replicator.set_aside_after=0",
    "replicator.connection_timeout=10000",
    "replicator.request_timeout=20000",
    "couch_jobs.activity_monitor_max_jitter_msec=1000",
];

pub(crate) struct Fleet {
    directory: tempfile::TempDir,
    store: Option<String>,
    frontend: Option<Node>,
    address: String,
    nodes: Vec<Option<Node>>,
    /// The logs of nodes that have exited.
    logs: String,
}

impl Fleet {
    pub(crate) async fn start(store: Option<&str>) -> anyhow::Result<Self> {
        let mut fleet = Self {
            directory: tempfile::tempdir()?,
            store: store.map(str::to_owned),
            frontend: None,
            address: "127.0.0.1:0".to_owned(),
            nodes: NAMES.map(|_| None).into(),
            logs: String::new(),
        };
        fleet.heal().await?;
        Ok(fleet)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    /// A client of the frontend, which may be down.
    pub(crate) fn client(&self, secrets: Vec<String>) -> Client {
        Client {
            http: Http::builder().timeout(REQUEST_MAX).build().unwrap(),
            url: format!("http://{}", self.address),
            secrets,
            leaks: Mutex::default(),
        }
    }

    fn program(&self, program: &'static str) -> Start<'static> {
        let timeout = format!("couch_jobs.job_timeout_sec={JOB_TIMEOUT_S}");
        let start = Start::node(program, self.directory());
        let mut start = start.args(&["--set", &timeout]);
        if let Some(store) = &self.store {
            start = start.on(store, self.directory());
        }
        OPTIONS
            .iter()
            .fold(start, |start, option| start.args(&["--set", option]))
    }

    /// Starts everything that is down, and resumes what was paused.
    pub(crate) async fn heal(&mut self) -> anyhow::Result<()> {
        for node in self.nodes.iter().flatten().chain(&self.frontend) {
            node.signal(Signal::CONT)?;
        }
        self.start_frontend().await?;
        for at in 0..self.size() {
            self.start_node(at).await?;
        }
        Ok(())
    }

    pub(crate) async fn start_frontend(&mut self) -> anyhow::Result<()> {
        if self.frontend.is_none() {
            let start = self.program("davenport-api-frontend").admin();
            let node = start.args(&["--listen", &self.address]).start().await?;
            let address = node.url.strip_prefix("http://").context("its address")?;
            address.clone_into(&mut self.address);
            self.frontend = Some(node);
        }
        Ok(())
    }

    pub(crate) async fn start_node(&mut self, at: usize) -> anyhow::Result<()> {
        if self.nodes[at].is_none() {
            let start = self.program("davenport-replication").named(NAMES[at]);
            self.nodes[at] = Some(start.start().await?);
        }
        Ok(())
    }

    pub(crate) async fn kill_frontend(&mut self) -> anyhow::Result<()> {
        if let Some(node) = self.frontend.take() {
            self.logs += &node.log();
            node.kill().await?;
        }
        Ok(())
    }

    pub(crate) async fn kill_node(&mut self, at: usize) -> anyhow::Result<()> {
        if let Some(node) = self.nodes[at].take() {
            self.logs += &node.log();
            node.kill().await?;
        }
        Ok(())
    }

    /// Pauses a running node for this long.
    pub(crate) fn pause_node(&self, at: usize, pause: Duration) -> anyhow::Result<()> {
        if let Some(node) = &self.nodes[at] {
            e2e::pause(node.pid()?, pause)?;
        }
        Ok(())
    }

    /// Stops a node in order.
    pub(crate) async fn stop_node(&mut self, at: usize) -> anyhow::Result<()> {
        if let Some(node) = self.nodes[at].take() {
            // It may be paused.
            node.signal(Signal::CONT)?;
            self.logs += &node.stop().await?.1;
        }
        Ok(())
    }

    pub(crate) async fn stop_frontend(&mut self) -> anyhow::Result<()> {
        if let Some(node) = self.frontend.take() {
            self.logs += &node.stop().await?.1;
        }
        Ok(())
    }

    /// Stops all in order; returns their complete logs.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<String> {
        self.stop_frontend().await?;
        for at in 0..self.size() {
            self.stop_node(at).await?;
        }
        Ok(std::mem::take(&mut self.logs))
    }
}

/// An administrator whose requests are retried until there is a response.
pub(crate) struct Client {
    http: Http,
    url: String,
    secrets: Vec<String>,
    leaks: Mutex<Vec<String>>,
}

impl Client {
    /// The paths of responses with credentials.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let leaks = self.leaks.lock().unwrap_or_else(PoisonError::into_inner);
        leaks.clone()
    }

    /// Sends one request; `None` without a complete response.
    pub(crate) async fn try_send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(StatusCode, String)> {
        let request = self
            .http
            .request(method.clone(), format!("{}{path}", self.url))
            .basic_auth(ADMIN.0, Some(ADMIN.1));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status(), format!("{:?}", response.headers()));
        let text = response.text().await.ok()?;
        // The owner of a document gets its credentials.
        let own = *method == Method::GET && path.starts_with("/_replicator/");
        let seen = |secret: &String| text.contains(secret) || headers.contains(secret);
        if !own && self.secrets.iter().any(seen) {
            let mut leaks = self.leaks.lock().unwrap_or_else(PoisonError::into_inner);
            leaks.push(format!("{method} {path}: {text}"));
        }
        Some((status, text))
    }

    /// Repeats a request until the response satisfies a condition.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        such: impl Fn(StatusCode, &Value) -> bool,
    ) -> Value {
        let until = Instant::now() + PATIENCE * 2;
        let mut last = String::from("no answer at all");
        while Instant::now() < until {
            if let Some((status, text)) = self.try_send(&method, path, body).await {
                let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
                if such(status, &json) {
                    return json;
                }
                last = format!("{status} {json:#}");
            }
            sleep(LOOK_PAUSE).await;
        }
        panic!("{method} {path}: {last}");
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let done = |status: StatusCode, _: &Value| status.is_success();
        self.send(Method::GET, path, None, done).await
    }

    pub(crate) async fn create(&self, path: &str) {
        let done = |status: StatusCode, _: &Value| status.is_success() || status == 412;
        self.send(Method::PUT, path, None, done).await;
    }
}
