//! Invariants after all faults have ended.

use std::collections::BTreeMap;
use std::path::Path;

use e2e::PATIENCE;
use futures::stream::{self, StreamExt as _};
use peer::{Contents, Difference, Refusal, compare};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

use crate::fleet::Client;
use crate::servers::Servers;
use crate::work::{Replication, Work};

/// Databases read concurrently.
const COMPARED_AT_A_TIME: usize = 8;
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Checks everything after all faults have ended.
pub(crate) struct Judge<'a> {
    pub(crate) work: &'a Work,
    pub(crate) servers: &'a Servers,
    pub(crate) client: &'a Client,
    /// Ids of the continuous replications without a document, by name.
    pub(crate) transient: BTreeMap<String, String>,
}

impl Judge<'_> {
    /// Every replication document has completed, or is continuous and runs.
    pub(crate) async fn settled(&self) {
        let begun = Instant::now();
        for replication in (self.work.replications.iter()).filter(|one| !one.transient) {
            let path = format!("/_scheduler/docs/_replicator/{}", replication.name);
            let state = if replication.continuous {
                "running"
            } else {
                "completed"
            };
            let such =
                |status: StatusCode, row: &Value| status.is_success() && row["state"] == state;
            self.client.send(Method::GET, &path, None, such).await;
        }
        println!("settled after {:?}", begun.elapsed());
    }

    /// Every target has the selected documents of its source.
    pub(crate) async fn equal(&self) {
        let begun = Instant::now();
        let compared = self.work.replications.iter();
        let compared = compared.map(|replication| self.one_is_equal(replication));
        let compared = stream::iter(compared).buffer_unordered(COMPARED_AT_A_TIME);
        compared.collect::<()>().await;
        println!("equal after {:?}", begun.elapsed());
    }

    async fn one_is_equal(&self, replication: &Replication) {
        let (work, servers) = (self.work, self.servers);
        let (from, to) = (
            &servers.all[replication.source],
            &servers.all[replication.target],
        );
        let source = from.url.database(&work.source(replication));
        let target = to.url.database(&work.target(replication));
        // PouchDB does not keep the generation that an attachment came with.
        let pouchdb = from.is_pouchdb || to.is_pouchdb;
        let until = Instant::now() + PATIENCE;
        loop {
            let runs = self.runs(replication).await;
            let differences = differences(replication, &source, &target, pouchdb).await;
            if runs && differences.as_ref().is_ok_and(Vec::is_empty) {
                return;
            }
            // Continuous replications may not have seen the last change yet.
            let may_come = replication.continuous || differences.is_err();
            assert!(
                may_come && Instant::now() < until,
                "{replication:?}: {differences:?}"
            );
            sleep(LOOK_PAUSE).await;
        }
    }

    /// A continuous replication without a document runs, or has failed with a reason and is requested again.
    async fn runs(&self, replication: &Replication) -> bool {
        let Some(id) = self.transient.get(&replication.name) else {
            return true;
        };
        let job = self.client.get(&format!("/_scheduler/jobs/{id}")).await;
        if job["state"] != "failed" {
            return true;
        }
        println!("{replication:?} failed: {:#}", job["history"][0]);
        assert_ne!(job["info"]["error"], Value::Null, "{job:#}");
        let urls = self.servers.urls();
        self.work.ask_for(replication, self.client, &urls).await;
        false
    }

    /// Documents of completed replications were changed exactly once, those of running ones never.
    pub(crate) async fn terminal_states(&self) {
        let client = self.client;
        let mut running = self.transient.len();
        for replication in (self.work.replications.iter()).filter(|one| !one.transient) {
            let path = format!("/_replicator/{}", replication.name);
            let document = client.get(&path).await;
            let rev = document["_rev"].as_str().unwrap();
            if replication.continuous {
                running += 1;
                assert!(rev.starts_with("1-"), "{document:#}");
                assert_eq!(document["_replication_state"], Value::Null, "{document:#}");
            } else {
                assert!(rev.starts_with("2-"), "{document:#}");
                assert_eq!(document["_replication_state"], "completed", "{document:#}");
            }
        }
        let until = Instant::now() + PATIENCE;
        loop {
            for replication in &self.work.replications {
                self.runs(replication).await;
            }
            let jobs = client.get("/_scheduler/jobs?limit=10000").await;
            let jobs: Vec<&Value> = jobs["jobs"].as_array().unwrap().iter().collect();
            if jobs.len() == running {
                break;
            }
            assert!(Instant::now() < until, "not {running}: {jobs:#?}");
            sleep(LOOK_PAUSE).await;
        }
        for path in [
            "/_active_tasks",
            "/_scheduler/docs?limit=10000",
            "/_metrics",
            "/",
        ] {
            client.get(path).await;
        }
    }
}

async fn differences(
    replication: &Replication,
    source: &str,
    target: &str,
    pouchdb: bool,
) -> Result<Vec<Difference>, Refusal> {
    let source = Contents::fetch(source, &[]).await?;
    let target = Contents::fetch(target, &[]).await?;
    let expected = Work::expected(replication, source);
    let differences = compare(&expected, &target.without_locals()).into_iter();
    Ok(differences
        .filter(|difference| !(pouchdb && matches!(difference, Difference::Attachment(..))))
        .collect())
}

/// No credential is in a log, nor on the disk.
pub(crate) fn no_secret(logs: &str, secrets: &[String], directory: &Path) {
    for line in logs.lines() {
        let seen = secrets.iter().find(|secret| line.contains(secret.as_str()));
        assert_eq!(seen, None, "{line}");
        assert!(!line.contains("panicked"), "{line}");
    }
    let data = directory.join("data");
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    for file in files {
        let bytes = std::fs::read(file.path()).unwrap();
        for secret in secrets {
            let seen = memchr::memmem::find(&bytes, secret.as_bytes());
            assert_eq!(seen, None, "{secret} is in {}", file.path().display());
        }
    }
}
