//! Random clients: producers, workers, and operators that retry, remove and pause.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::Method;
use jobs::Planted;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use serde_json::{Value, json};
use testkit::{Report, actor_rng, some_time};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Plan;
use super::fleet::{Ask, Fleet};
use super::journal::Journal;

const TYPE: &str = "/_jobs/work";
/// A silent worker loses its jobs after this time.
const TIMEOUT_SEC: u64 = 2;
/// How long a frontend may give jobs of a type that was paused.
const PAUSE_IS_KNOWN: Duration = Duration::from_millis(2_500);
/// Everything must be over by then.
const END_MAX: Duration = Duration::from_mins(20);

/// A client.
#[derive(Clone)]
struct Client {
    fleet: Arc<Fleet>,
    journal: Arc<Mutex<Journal>>,
    /// Since when no job may be given; `None` while the type is not paused.
    paused: Arc<Mutex<Option<Instant>>>,
    rng: SmallRng,
}

/// A job that a worker has.
#[derive(Debug, Clone)]
struct Held {
    id: String,
    lock: String,
    attempt: u64,
}

impl Held {
    fn of(claimed: &Value) -> Vec<Self> {
        let jobs = claimed["jobs"].as_array().into_iter().flatten();
        let held = jobs.map(|job| Self {
            id: job["id"].as_str().unwrap().to_owned(),
            lock: job["lock"].as_str().unwrap().to_owned(),
            attempt: job["attempt"].as_u64().unwrap(),
        });
        held.collect()
    }
}

pub(super) async fn run(plan: Plan, planted: Planted) -> Report {
    let begun = Instant::now();
    let fleet = Fleet::start(plan.clone(), planted).await;
    let client = |actor: u64,
                  nth: u64,
                  journal: &Arc<Mutex<Journal>>,
                  paused: &Arc<Mutex<Option<Instant>>>| Client {
        fleet: Arc::clone(&fleet),
        journal: Arc::clone(journal),
        paused: Arc::clone(paused),
        rng: actor_rng(plan.seed, &[actor, nth]),
    };
    let (journal, paused) = (Arc::default(), Arc::default());
    let mut first = client(2, 0, &journal, &paused);
    let settings = json!({
        "timeout_sec": TIMEOUT_SEC, "retention_sec": null, "sealed": plan.sealed,
        "retry": {"limit": 2, "delay_sec": 0.1, "multiplier": 1},
    });
    let put = Ask {
        method: Method::PUT,
        ..Ask::post(TYPE, settings)
    };
    first.until_answered(&put).await;
    let mut tasks = JoinSet::new();
    for nth in 0..plan.producers {
        tasks.spawn(client(3, nth, &journal, &paused).produce(nth));
    }
    for nth in 0..plan.workers {
        tasks.spawn(client(4, nth, &journal, &paused).work());
    }
    tasks.spawn(client(5, 0, &journal, &paused).operate());
    let killer = Arc::clone(&fleet);
    let rng = actor_rng(plan.seed, &[6]);
    tasks.spawn(async move { killer.kill(rng).await });
    sleep(plan.troubled).await;
    fleet.healed.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    first.finish_all(begun + END_MAX).await;
    first.judge().await;
    let mut journal = first.journal();
    let jobs = journal.added.len();
    Report {
        problems: std::mem::take(&mut journal.problems),
        story: std::mem::take(&mut journal.story),
        counts: [("jobs", jobs), ("runs", journal.runs)],
        lasted: begun.elapsed(),
    }
}

impl Client {
    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap()
    }

    fn is_over(&self) -> bool {
        self.fleet.healed.is_cancelled()
    }

    async fn pause(&mut self, mean_ms: u64) {
        sleep(some_time(&mut self.rng, Duration::from_millis(mean_ms))).await;
    }

    /// Repeats a request until it is answered.
    async fn until_answered(&mut self, ask: &Ask) -> (u16, Value) {
        loop {
            if let Some(answer) = self.fleet.send(&mut self.rng, ask).await {
                return answer;
            }
            self.pause(50).await;
        }
    }

    /// Another client that sends the same later, for a request that a proxy repeats.
    fn copy(&mut self) -> Option<Self> {
        let twice = self.rng.random_bool(self.fleet.plan.twice) && !self.is_over();
        twice.then(|| Self {
            rng: actor_rng(self.rng.random(), &[7]),
            ..self.clone()
        })
    }

    async fn produce(mut self, producer: u64) {
        let mut nth = 0;
        while !self.is_over() {
            nth += 1;
            let name = format!("job-{producer}-{nth}");
            let named = self.rng.random_bool(0.8);
            let mut job = json!({"data": {"nth": nth}});
            if named {
                job["id"] = name.clone().into();
                self.journal().sent.insert(name.clone());
            }
            let ask = Ask {
                key: Some(name),
                ..Ask::post(TYPE, job)
            };
            let copy = self
                .copy()
                .map(|copy| tokio::spawn(copy.add_later(ask.clone())));
            let answer = self.until_answered(&ask).await;
            self.added(&ask, &answer);
            let waits = self.rng.random();
            let is_settled = match copy {
                Some(copy) if waits => copy.await.is_ok(),
                Some(_) => false,
                None => true,
            };
            if is_settled {
                let id = answer.1["id"].as_str().unwrap().to_owned();
                self.journal().settled.insert(id);
            }
            self.pause(200).await;
        }
    }

    async fn add_later(mut self, ask: Ask) {
        self.pause(1_000).await;
        if let Some(answer) = self.fleet.send(&mut self.rng, &ask).await {
            self.added(&ask, &answer);
        }
    }

    fn added(&self, ask: &Ask, (status, answer): &(u16, Value)) {
        assert_eq!(*status, 201, "{answer}");
        let id = answer["id"].as_str().unwrap();
        let mut journal = self.journal();
        journal.tell(format!("{id} is added"));
        match ask.body.get("id") {
            Some(_) => drop(journal.added.insert(id.to_owned())),
            None => journal.unnamed(ask.key.as_deref().unwrap(), id),
        }
    }

    /// Sends a claim, or an end with one; what it returns was given, whether or not it is wanted.
    async fn claiming(&mut self, ask: &Ask) -> Option<Value> {
        let paused_for = |client: &Self| {
            let paused = *client.paused.lock().unwrap();
            paused.filter(|since| since.elapsed() > PAUSE_IS_KNOWN)
        };
        let (over, paused) = (self.journal().over(), paused_for(self));
        let (status, answer) = self.fleet.send(&mut self.rng, ask).await?;
        assert_eq!(status, 200, "{answer}");
        let jobs = answer["jobs"].as_array().unwrap();
        self.journal().claimed(jobs, &over);
        if paused.is_some() && paused == paused_for(self) && !jobs.is_empty() {
            let text = format!("a paused type gave {answer}");
            self.journal().problems.push(text);
        }
        Some(answer)
    }

    async fn work(mut self) {
        let mut held: Vec<Held> = Vec::new();
        while !self.is_over() {
            if held.is_empty() {
                let count = self.rng.random_range(1..=3);
                let wait_sec = self.rng.random_range(0..=3);
                let ask = json!({"worker": "w", "count": count, "wait_sec": wait_sec});
                let ask = Ask::post(format!("{TYPE}/_claim"), ask);
                if let Some(copy) = self.copy() {
                    tokio::spawn(copy.claim_later(ask.clone()));
                }
                let claimed = self.claiming(&ask).await;
                held = claimed.iter().flat_map(Held::of).collect();
                self.pause(20).await;
                continue;
            }
            match self.rng.random_range(0..20) {
                // It dies, or goes silent and continues too late.
                0 => held.clear(),
                1 => self.pause(3_000 * TIMEOUT_SEC).await,
                2..=6 => {
                    let beat = held.clone();
                    let halted = self.beat(&beat).await;
                    held.retain(|job| !halted.contains(&job.id));
                }
                _ => held = self.end(held).await,
            }
            self.pause(100).await;
        }
    }

    async fn claim_later(mut self, ask: Ask) {
        self.pause(500).await;
        self.claiming(&ask).await;
    }

    /// Sends heartbeats; returns the jobs that are lost.
    async fn beat(&mut self, held: &[Held]) -> Vec<String> {
        let rows = held.iter().map(|job| {
            let progress: u32 = self.rng.random_range(0..100);
            json!({"id": job.id, "lock": job.lock, "progress": progress})
        });
        let rows: Vec<Value> = rows.collect();
        let before: Vec<_> = (held.iter())
            .map(|job| self.journal().before(&job.id, job.attempt))
            .collect();
        let ask = Ask::post(format!("{TYPE}/_beat"), json!({"jobs": rows}));
        let Some((200, answer)) = self.fleet.send(&mut self.rng, &ask).await else {
            return Vec::new();
        };
        let mut halted = Vec::new();
        for ((job, before), row) in held
            .iter()
            .zip(before)
            .zip(answer["jobs"].as_array().unwrap())
        {
            let status = row["status"].as_str().unwrap();
            self.journal().beaten(&job.id, job.attempt, &before, status);
            if status == "halt" {
                halted.push(job.id.clone());
            }
        }
        halted
    }

    /// Ends runs, often with a claim, and sometimes twice; returns the jobs that it has then.
    async fn end(&mut self, held: Vec<Held>) -> Vec<Held> {
        let outcomes = ["done", "done", "done", "failed", "again"];
        let rows = held.iter().map(|job| {
            let outcome = outcomes[self.rng.random_range(0..outcomes.len())];
            json!({
                "id": job.id, "lock": job.lock, "outcome": outcome, "result": {"attempt": job.attempt},
                "error": format!("attempt {}", job.attempt),
            })
        });
        let rows: Vec<Value> = rows.collect();
        let mut body = json!({"jobs": rows});
        if self.rng.random() {
            body["claim"] = self.rng.random_range(1..=3).into();
            body["worker"] = "w".into();
            body["wait_sec"] = self.rng.random_range(0..=2).into();
        }
        let ask = Ask::post(format!("{TYPE}/_finish"), body);
        if let Some(copy) = self.copy() {
            tokio::spawn(copy.end_later(held.clone(), ask.clone()));
        }
        for _ in 0..3 {
            if let Some(claimed) = self.ending(&held, &ask).await {
                return claimed;
            }
        }
        Vec::new()
    }

    async fn end_later(mut self, held: Vec<Held>, ask: Ask) {
        self.pause(2_000).await;
        self.ending(&held, &ask).await;
    }

    async fn ending(&mut self, held: &[Held], ask: &Ask) -> Option<Vec<Held>> {
        let rows = ask.body["jobs"].as_array().unwrap();
        let outcomes: Vec<_> = (rows.iter())
            .map(|row| row["outcome"].as_str().unwrap())
            .collect();
        let mut before = Vec::new();
        for (job, outcome) in held.iter().zip(&outcomes) {
            let mut journal = self.journal();
            before.push(journal.before(&job.id, job.attempt));
            journal.ending(&job.id, job.attempt, outcome);
        }
        let answer = self.claiming(ask).await?;
        let results = answer["results"].as_array().unwrap();
        for ((job, before), (row, outcome)) in
            (held.iter().zip(before)).zip(results.iter().zip(outcomes))
        {
            let status = row["status"].as_str().unwrap();
            self.journal()
                .ended(&job.id, job.attempt, &before, status, outcome);
        }
        Some(Held::of(&answer))
    }

    /// Retries, removes and pauses.
    async fn operate(mut self) {
        while !self.is_over() {
            self.pause(1_500).await;
            match self.rng.random_range(0..4) {
                0 => drop(self.fleet.send(&mut self.rng, &retry()).await),
                1 => {
                    self.until_answered(&Ask::post(format!("{TYPE}/_pause"), Value::Null))
                        .await;
                    *self.paused.lock().unwrap() = Some(Instant::now());
                    self.pause(3_000).await;
                    *self.paused.lock().unwrap() = None;
                    self.until_answered(&Ask::post(format!("{TYPE}/_resume"), Value::Null))
                        .await;
                }
                _ => self.remove().await,
            }
        }
    }

    async fn remove(&mut self) {
        let ids = self.journal().removable();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.rng.random_range(0..ids.len())].clone();
        self.journal().removal_sent.insert(id.clone());
        let ask = Ask {
            method: Method::DELETE,
            ..Ask::post(format!("{TYPE}/{id}"), Value::Null)
        };
        let (status, _) = self.until_answered(&ask).await;
        let mut journal = self.journal();
        journal.tell(format!("{id} is removed: {status}"));
        journal.removed.insert(id);
    }

    /// Works until all jobs are finished.
    async fn finish_all(&mut self, deadline: Instant) {
        let resume = Ask::post(format!("{TYPE}/_resume"), Value::Null);
        self.until_answered(&resume).await;
        let claim = json!({"worker": "last", "count": 50, "wait_sec": 1});
        let claim = Ask::post(format!("{TYPE}/_claim"), claim);
        while Instant::now() < deadline {
            self.until_answered(&retry()).await;
            let Some(claimed) = self.claiming(&claim).await else {
                continue;
            };
            let held = Held::of(&claimed);
            if held.is_empty() {
                let path = format!("{TYPE}/_type");
                let (_, info) = self.fleet.read(&mut self.rng, &path).await;
                let count = |state: &str| info["counts"][state].as_u64().unwrap();
                if count("pending") + count("running") + count("dead") == 0 {
                    return;
                }
                continue;
            }
            let rows = held.iter().map(|job| {
                json!({"id": job.id, "lock": job.lock, "outcome": "done", "result": {"attempt": job.attempt}})
            });
            let rows: Vec<Value> = rows.collect();
            let ask = Ask::post(format!("{TYPE}/_finish"), json!({"jobs": rows}));
            while self.ending(&held, &ask).await.is_none() {}
        }
        self.journal().problems.push("jobs are left".to_owned());
    }

    /// Compares what is there with what should be.
    async fn judge(&mut self) {
        let ids: Vec<String> = self.journal().added.iter().cloned().collect();
        for id in ids {
            let path = format!("{TYPE}/{id}");
            let (status, job) = self.fleet.read(&mut self.rng, &path).await;
            self.journal().last(&id, status, &job);
        }
        let (_, info) = self
            .fleet
            .read(&mut self.rng, &format!("{TYPE}/_type"))
            .await;
        let (mut listed, mut after) = (0, String::new());
        loop {
            let path = format!("{TYPE}?limit=100&after={after}");
            let (_, page) = self.fleet.read(&mut self.rng, &path).await;
            listed += page["jobs"].as_array().unwrap().len();
            match page["next"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => break,
            }
        }
        if info["counts"]["finished"] != listed {
            let text = format!("{listed} jobs are listed, and counted {}", info["counts"]);
            self.journal().problems.push(text);
        }
    }
}

fn retry() -> Ask {
    Ask::post(format!("{TYPE}/_retry"), json!({"state": "dead"}))
}
