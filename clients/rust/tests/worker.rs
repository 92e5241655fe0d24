//! The client against the real service: the program that DAVENPORT names, or that is built with this test.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use davenport_client::{Client, Error, Failure, Finish, NewJob, Task, Worker, WorkerOptions};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(60);

fn program() -> std::path::PathBuf {
    let built = || std::env::current_exe().unwrap().with_file_name("../davenport");
    std::env::var_os("DAVENPORT").map_or_else(built, Into::into)
}

/// A service with a store of its own. `kill` and `start` again keep its port and data.
struct Service {
    directory: std::path::PathBuf,
    port: u16,
    process: Child,
}

impl Service {
    async fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("davenport-rust-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Self::launch(&directory, port).await;
        Self { directory, port, process }
    }

    async fn launch(directory: &std::path::Path, port: u16) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
        let mut process = Command::new(program())
            .args(["serve", "--admin", "root:s3cret", "--set", "log.level=warn", "--listen"])
            .args([format!("127.0.0.1:{port}"), "--store".into(), format!("lmdb:{}/data", directory.display())])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let up = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
        let start = Instant::now();
        while up.ask::<Value>(reqwest::Method::GET, &["_up"], &Value::Null).await.is_err() {
            assert!(process.try_wait().unwrap().is_none() && start.elapsed() < LONG, "the service does not start");
        }
        process
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn client(&self) -> Client {
        Client::new(&format!("http://root:s3cret@127.0.0.1:{}", self.port)).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn options(concurrency: usize) -> WorkerOptions {
    WorkerOptions { concurrency, drain: Duration::from_millis(200), ..WorkerOptions::default() }
}

fn job<T>(id: &str, data: T) -> NewJob<T> {
    NewJob { id: Some(id.to_owned()), ..NewJob::new(data) }
}

async fn state(client: &Client, id: &str, states: &[&str]) -> davenport_client::JobInfo {
    let start = Instant::now();
    loop {
        let job = client.wait("work", id, Duration::from_millis(200)).await.unwrap();
        if states.contains(&&*job.state) {
            return job;
        }
        assert!(start.elapsed() < LONG, "{id} is {}: {job:?}", job.state);
    }
}

#[derive(Deserialize)]
struct Data {
    how: String,
}

async fn handle(task: Task<Data>) -> Result<Finish, Failure> {
    match (&*task.data.how, task.attempt) {
        ("parse", _) => Ok(Finish::Done(task.data.how.parse::<u32>()?.into())),
        ("dead", _) => Err(Failure::Dead("no such user".into())),
        ("panic", 1) => panic!("a planted panic"),
        ("again", 1) => Ok(Finish::Again(Duration::ZERO)),
        (_, attempt) => Ok(Finish::Done(json!({"attempt": attempt}))),
    }
}

#[tokio::test]
async fn runs_end_as_handlers_say() {
    let service = Service::new("ends").await;
    let client = service.client();
    client.put_type("work", &json!({"retry": {"limit": 1, "delay_sec": 0}})).await.unwrap();
    for how in ["fine", "parse", "dead", "panic", "again"] {
        client.enqueue("work", &job(how, json!({"how": how}))).await.unwrap();
    }
    client.enqueue("work", &job("odd/id", json!(7))).await.unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(client.clone(), "work", options(3)).run(stop.clone(), handle));
    let over = ["finished", "dead"];
    for (id, attempt) in [("fine", 1), ("panic", 2), ("again", 2)] {
        let ended = state(&client, id, &over).await;
        assert_eq!((&*ended.state, ended.result), ("finished", json!({"attempt": attempt})), "{id}");
    }
    let ended = state(&client, "parse", &over).await;
    assert_eq!((&*ended.state, ended.attempt), ("dead", 2));
    assert!(ended.error.as_str().unwrap().contains("invalid digit"), "{}", ended.error);
    let ended = state(&client, "dead", &over).await;
    assert_eq!((&*ended.state, ended.attempt, ended.error), ("dead", 1, json!("no such user")));
    let ended = state(&client, "odd/id", &over).await;
    assert!(ended.reason.unwrap().starts_with("its data cannot be read"));
    assert_eq!(client.retry_dead("work", Some("no such user")).await.unwrap(), 1);
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_removed_job_drops_its_handler_and_a_stopped_worker_gives_back() {
    let service = Service::new("halts").await;
    let client = service.client();
    client.put_type("work", &json!({"timeout_sec": 1})).await.unwrap();
    for id in ["removed", "kept"] {
        client.enqueue("work", &job(id, "x")).await.unwrap();
    }
    /// Tells that the future of a handler was dropped.
    struct Dropped(Arc<Notify>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let dropped = Arc::new(Notify::new());
    let handler = {
        let dropped = Arc::clone(&dropped);
        move |task: Task<String>| {
            let dropped = Dropped(Arc::clone(&dropped));
            async move {
                task.report(json!({"id": task.id}));
                let _dropped = dropped;
                std::future::pending().await
            }
        }
    };
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(client.clone(), "work", options(2)).run(stop.clone(), handler));
    // Longer than the time-out: heartbeats keep both, and carry progress.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for id in ["removed", "kept"] {
        let held = client.get("work", id).await.unwrap();
        assert_eq!((&*held.state, held.attempt, held.progress), ("running", 1, json!({"id": id})));
    }
    client.remove("work", "removed").await.unwrap();
    tokio::time::timeout(LONG, dropped.notified()).await.unwrap();
    stop.cancel();
    tokio::time::timeout(LONG, worker).await.unwrap().unwrap().unwrap();
    let back = client.get("work", "kept").await.unwrap();
    assert_eq!((&*back.state, back.failures), ("pending", 0));
}

#[tokio::test]
async fn a_worker_outlives_its_service() {
    let mut service = Service::new("killed").await;
    let client = service.client();
    client.put_type("work", &json!({"timeout_sec": 2, "retry": {"delay_sec": 0}})).await.unwrap();
    let jobs: Vec<_> = (0..200).map(|nth| job(&format!("j{nth}"), nth)).collect();
    let added = client.enqueue_many("work", &jobs).await.unwrap();
    assert!(added.iter().all(|added| added["ok"] == true));
    let done = Arc::new(AtomicUsize::new(0));
    let handler = {
        let done = Arc::clone(&done);
        move |_: Task<u32>| {
            let done = Arc::clone(&done);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                done.fetch_add(1, Ordering::Relaxed);
                Ok(Finish::done())
            }
        }
    };
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(client.clone(), "work", options(8)).run(stop.clone(), handler));
    while done.load(Ordering::Relaxed) < 50 {
        tokio::task::yield_now().await;
    }
    service.kill();
    service.process = Service::launch(&service.directory, service.port).await;
    for nth in 0..200 {
        assert_eq!(state(&client, &format!("j{nth}"), &["finished", "dead"]).await.state, "finished");
    }
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_refused_says_why() {
    let service = Service::new("refused").await;
    let client = service.client();
    let refused = client.enqueue("nothing", &NewJob::new(1)).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { status: 404, reason, .. } if reason.contains("PUT /_jobs/nothing")));
    let stop = CancellationToken::new();
    let worker = Worker::new(client.clone(), "nothing", options(2)).run(stop, handle);
    assert!(matches!(worker.await, Err(Error::Refused { status: 404, .. })));
    client.put_type("work", &json!({})).await.unwrap();
    let token = client.make_token(&json!({"name": "adder", "rights": ["enqueue"]})).await.unwrap();
    let url = format!("http://127.0.0.1:{}", service.port);
    // The first of them does not exist.
    let adder = Client::with(&["http://127.0.0.1:1", &url], Some(&token)).unwrap();
    adder.enqueue("work", &NewJob::new("x")).await.unwrap();
    assert!(matches!(adder.get("work", "x").await, Err(Error::Refused { status: 403, .. })));
    assert!(matches!(Client::new("ftp://a"), Err(Error::Url(_))));
}
