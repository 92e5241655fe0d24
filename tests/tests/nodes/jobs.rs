//! Jobs over HTTP while frontends and workers are killed, and requests are repeated, delayed and broken off: every job is
//! done once, and no lock is honoured twice.
//!
//! By default it is short. `JOBS_COUNT` makes it longer, `JOBS_SEED` draws other clients, and with
//! `TEST_FDB_CLUSTER_FILE` it also runs on FoundationDB.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::{ADMIN, Node, Start};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use testkit::number;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const NODES: [&str; 3] = ["a", "b", "c"];
const WORKERS: u64 = 16;
const PRODUCERS: usize = 4;
/// Jobs per request.
const BATCH: usize = 20;
/// One frontend is killed this often.
const KILL_PAUSE: Duration = Duration::from_secs(5);
/// Silent workers lose their jobs after this time.
const TIMEOUT_SEC: u64 = 5;
/// Anything that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(10);

/// Where frontends are, which changes when they are killed.
type Places = Arc<Mutex<Vec<String>>>;

/// What workers were told about the ends of their runs.
#[derive(Debug, Default)]
struct Ledger {
    /// By job, the locks whose `done` was accepted.
    done: BTreeMap<String, BTreeSet<String>>,
    /// How often an end was answered with `ok`, by job and lock.
    accepted: BTreeMap<(String, String), usize>,
    /// Answers by status.
    answers: BTreeMap<String, usize>,
    /// Workers that were killed, or went silent with their jobs.
    lost: usize,
}

/// A client that tries one frontend after the other.
struct Caller {
    http: Client,
    places: Places,
    rng: SmallRng,
}

impl Caller {
    fn new(places: &Places, seed: u64) -> Self {
        Self {
            http: Client::new(),
            places: Arc::clone(places),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    fn place(&mut self) -> String {
        let places = self.places.lock().unwrap();
        places[self.rng.random_range(0..places.len())].clone()
    }

    /// One attempt; `None` if the frontend was killed.
    async fn once(&mut self, path: &str, body: &Value, key: Option<&str>) -> Option<Value> {
        let url = format!("{}{path}", self.place());
        let request = self.http.request(Method::POST, url).json(body);
        let mut request = request.basic_auth(ADMIN.0, Some(ADMIN.1));
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = request.send().await.ok()?;
        let status = response.status();
        let answer = response.json().await.ok()?;
        // A frontend that stops says so.
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        assert!(status.is_success(), "{path}: {status} {answer}");
        Some(answer)
    }

    /// Repeats a request until a frontend answers it.
    async fn send(&mut self, path: &str, body: &Value, key: Option<&str>) -> Value {
        loop {
            if let Some(answer) = self.once(path, body, key).await {
                return answer;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Adds every `PRODUCERS`th batch. Some requests are sent twice, and all until they are answered.
async fn produce(places: Places, seed: u64, nth: usize, count: usize) {
    let mut client = Caller::new(&places, seed);
    let batches = (0..count).step_by(BATCH).skip(nth).step_by(PRODUCERS);
    for start in batches {
        let ids = start..(start + BATCH).min(count);
        let jobs: Vec<_> = ids
            .map(|nth| json!({"id": id(nth), "data": {"nth": nth}}))
            .collect();
        let (body, key) = (json!({"jobs": jobs}), format!("batch-{start}"));
        let copies = 1 + usize::from(client.rng.random_ratio(1, 4));
        for _ in 0..copies {
            let added = client.send("/_jobs/work", &body, Some(&key)).await;
            let results = added["results"].as_array().unwrap();
            assert!(results.iter().all(|result| result["ok"] == true), "{added}");
        }
    }
}

fn id(nth: usize) -> String {
    format!("job-{nth:06}")
}

/// Claims and ends jobs until all are done. Now and then it is killed, or keeps its jobs in silence and ends them too late.
async fn work(places: Places, ledger: Arc<Mutex<Ledger>>, seed: u64, count: usize) {
    let mut client = Caller::new(&places, seed);
    let name = format!("worker-{seed}");
    let mut jobs = Vec::new();
    let mut old = Vec::new();
    while ledger.lock().unwrap().done.len() < count {
        if jobs.is_empty() {
            let wanted = client.rng.random_range(1..=10);
            let body = json!({"worker": name, "count": wanted, "wait_sec": 1});
            let patience = Duration::from_millis(client.rng.random_range(5..3_000));
            // Breaking off the request also loses the answer, and the jobs in it.
            let claimed = timeout(patience, client.once("/_jobs/work/_claim", &body, None)).await;
            jobs = jobs_of(claimed.ok().flatten().as_ref());
            continue;
        }
        if client.rng.random_ratio(1, 40) {
            ledger.lock().unwrap().lost += 1;
            if client.rng.random() {
                jobs.clear();
                continue;
            }
            // Beyond the time-out: others have the jobs by now, or take them at the same time.
            sleep(Duration::from_secs(
                client.rng.random_range(1..=3 * TIMEOUT_SEC),
            ))
            .await;
        } else if client.rng.random_ratio(1, 4) {
            let beat =
                |job: &(String, String)| json!({"id": job.0, "lock": job.1, "progress": name});
            let body = json!({"jobs": jobs.iter().map(beat).collect::<Vec<_>>()});
            client.send("/_jobs/work/_beat", &body, None).await;
        }
        let ended: Vec<_> = jobs
            .drain(..)
            .map(|job| (job, client.rng.random_ratio(9, 10)))
            .collect();
        jobs = end(&mut client, &name, &ended, &ledger).await;
        old.push(ended);
        // A late copy of an earlier request.
        if client.rng.random_ratio(1, 5) {
            let nth = client.rng.random_range(0..old.len());
            let ended = old.swap_remove(nth);
            jobs.extend(end(&mut client, &name, &ended, &ledger).await);
        }
    }
}

type Ends = [((String, String), bool)];

/// Ends runs and claims the next jobs, until a frontend answers.
async fn end(
    client: &mut Caller,
    name: &str,
    ended: &Ends,
    ledger: &Mutex<Ledger>,
) -> Vec<(String, String)> {
    let one = |((id, lock), done): &((String, String), bool)| match done {
        true => json!({"id": id, "lock": lock, "outcome": "done", "result": {"by": name}}),
        false => json!({"id": id, "lock": lock, "outcome": "failed", "error": "drawn"}),
    };
    let body =
        json!({"jobs": ended.iter().map(one).collect::<Vec<_>>(), "claim": 5, "worker": name});
    let answer = client.send("/_jobs/work/_finish", &body, None).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), ended.len(), "{answer}");
    let mut ledger = ledger.lock().unwrap();
    for (((id, lock), done), result) in ended.iter().zip(results) {
        let status = result["status"].as_str().unwrap();
        *ledger.answers.entry(status.to_owned()).or_default() += 1;
        if status == "ok" {
            *ledger
                .accepted
                .entry((id.clone(), lock.clone()))
                .or_default() += 1;
        }
        if *done && status != "halt" {
            ledger
                .done
                .entry(id.clone())
                .or_default()
                .insert(lock.clone());
        }
    }
    jobs_of(Some(&answer))
}

/// The ids and locks of the jobs in an answer.
fn jobs_of(answer: Option<&Value>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let jobs = answer.and_then(|answer| answer["jobs"].as_array());
    let jobs = jobs.into_iter().flatten();
    jobs.map(|job| (text(&job["id"]), text(&job["lock"])))
        .collect()
}

struct Fleet {
    directory: tempfile::TempDir,
    store: Option<String>,
    nodes: Vec<Node>,
    places: Places,
    kills: usize,
}

impl Fleet {
    async fn start(store: Option<&str>) -> Self {
        let mut fleet = Self {
            directory: tempfile::tempdir().unwrap(),
            store: store.map(str::to_owned),
            nodes: Vec::new(),
            places: Places::default(),
            kills: 0,
        };
        for name in NODES {
            let node = fleet.node(name).await;
            fleet.places.lock().unwrap().push(node.url.clone());
            fleet.nodes.push(node);
        }
        fleet
    }

    async fn node(&self, name: &str) -> Node {
        let directory = self.directory.path();
        let start = Start::node("davenport", directory).admin().named(name);
        let start = start.args(&["--set", "couch_jobs.activity_monitor_max_jitter_msec=500"]);
        let start = match &self.store {
            Some(store) => start.on(store, directory),
            None => start,
        };
        start.start().await.unwrap()
    }

    /// Kills a frontend every few seconds, and starts it again.
    async fn kill(&mut self, ledger: &Mutex<Ledger>, seed: u64, count: usize) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut next = Instant::now() + KILL_PAUSE;
        while ledger.lock().unwrap().done.len() < count {
            sleep(Duration::from_millis(100)).await;
            if Instant::now() < next {
                continue;
            }
            let at = rng.random_range(0..NODES.len());
            self.nodes.remove(at).kill().await.unwrap();
            let node = self.node(NODES[at]).await;
            self.places.lock().unwrap()[at].clone_from(&node.url);
            self.nodes.insert(at, node);
            self.kills += 1;
            next = Instant::now() + KILL_PAUSE;
        }
    }

    /// Stops all nodes: each job is finished, and the store is whole.
    async fn stopped(self, count: usize) {
        let root = self.nodes[0].root();
        let (_, ty) = root.get("/_jobs/work/_type").await.unwrap();
        let all = json!({"pending": 0, "running": 0, "finished": count, "dead": 0});
        assert_eq!(ty["counts"], all, "{ty}");
        for node in self.nodes {
            node.stop().await.unwrap();
        }
        let lmdb = format!("lmdb:{}", self.directory.path().join("data").display());
        let store = self.store.unwrap_or(lmdb);
        let check = Start::new("davenport", &["store", "check", "--store", &store]);
        let (code, checked, error) = check.output().await.unwrap();
        assert_eq!(code, Some(0), "{checked}{error}");
    }
}

async fn run(store: Option<&str>) {
    let (count, seed) = (number("JOBS_COUNT", 2_000), number("JOBS_SEED", 7_u64));
    let mut fleet = Fleet::start(store).await;
    let root = fleet.nodes[0].root();
    // A job may be lost by any number of workers.
    let settings = json!({
        "timeout_sec": TIMEOUT_SEC,
        "retry": {"limit": null, "delay_sec": 0, "multiplier": 1, "max_delay_sec": 1, "jitter": 0},
    });
    let (status, made) = root.put("/_jobs/work", &settings).await.unwrap();
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (ledger, started) = (Arc::new(Mutex::new(Ledger::default())), Instant::now());
    let mut clients = JoinSet::new();
    for nth in 0..PRODUCERS {
        let seed = seed * 1_000 + 500 + u64::try_from(nth).unwrap();
        clients.spawn(produce(Arc::clone(&fleet.places), seed, nth, count));
    }
    for nth in 0..WORKERS {
        let places = Arc::clone(&fleet.places);
        clients.spawn(work(places, Arc::clone(&ledger), seed * 1_000 + nth, count));
    }
    let all_done = async { tokio::join!(clients.join_all(), fleet.kill(&ledger, seed, count)) };
    let ended = timeout(
        PATIENCE + Duration::from_millis(30 * count as u64),
        all_done,
    )
    .await;
    let logs = || {
        fleet
            .nodes
            .iter()
            .map(Node::log)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let known = ledger.lock().unwrap().done.len();
    assert!(ended.is_ok(), "{known} of {count} were done\n{}", logs());
    let time = started.elapsed().as_secs_f64();
    println!(
        "{count} jobs in {time:.1} s, {} frontends killed",
        fleet.kills
    );
    judge(&ledger.lock().unwrap());
    fleet.stopped(count).await;
}

fn judge(ledger: &Ledger) {
    let (lost, answers) = (ledger.lost, &ledger.answers);
    println!("{lost} times jobs were lost by workers, {answers:?}");
    let done = ledger.done.iter();
    let twice: Vec<_> = done.filter(|(_, locks)| locks.len() > 1).collect();
    assert!(twice.is_empty(), "done twice: {twice:?}");
    let accepted = ledger.accepted.iter();
    let twice: Vec<_> = accepted.filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "accepted twice: {twice:?}");
}

#[tokio::test]
async fn each_job_is_done_once_while_frontends_and_workers_are_killed() {
    Box::pin(run(None)).await;
}

#[tokio::test]
async fn each_job_is_done_once_on_foundationdb() {
    if let Some(store) = e2e::fdb_url() {
        Box::pin(run(Some(&store))).await;
    }
}
