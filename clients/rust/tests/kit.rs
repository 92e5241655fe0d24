//! One handler, word for word, on the queue itself and over HTTP.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::service::{LONG, Service};

mod service;

mod embedded {
    use super::Duration;
    use jobs::{Failure, Finish, Task, WorkerOptions};

    include!("kit/handler.rs");

    pub fn worker(jobs: jobs::Jobs, ty: jobs::JobType, me: jobs::Holder) -> jobs::Worker {
        let retry = jobs::Retry { delay: Duration::ZERO, ..jobs::Retry::default() };
        jobs::Worker::new(jobs, ty, me, WorkerOptions { retry, ..options() })
    }

    pub async fn run(worker: jobs::Worker, stop: tokio_util::sync::CancellationToken) {
        worker.run(stop, handle).await;
    }
}

#[allow(clippy::needless_update, reason = "only the other worker has more options")]
mod over_http {
    use super::Duration;
    use davenport_client::{Client, Failure, Finish, Result as ClientResult, Task, Worker, WorkerOptions};

    include!("kit/handler.rs");

    pub fn worker(client: Client) -> Worker {
        Worker::new(client, "copy", "node-1", options())
    }

    pub async fn run(worker: Worker, stop: tokio_util::sync::CancellationToken) -> ClientResult<()> {
        worker.run(stop, handle).await
    }
}

const FILES: [(&str, u32); 3] = [("holiday", 3), ("holiday-2", 2), ("work", 1)];

#[tokio::test]
async fn a_handler_runs_on_the_queue_itself() {
    let store = store::Store::open("memory:").await.unwrap();
    let jobs = jobs::Jobs::new(store, jobs::Clock::system(), jobs::Entropy::from_os());
    let ty = jobs::JobType::new("copy").unwrap();
    jobs.set_type(&ty, jobs::TypeConfig::new(30_000)).await.unwrap();
    for (id, files) in FILES {
        let data = jobs::encode(&json!({"files": files, "copied": 0})).unwrap();
        jobs.add(&ty, jobs::Add::new(id.try_into().unwrap(), data)).await.unwrap();
    }
    let stop = CancellationToken::new();
    let worker = embedded::worker(jobs.clone(), ty.clone(), jobs::Holder::new("node-1").unwrap());
    let working = tokio::spawn(embedded::run(worker, stop.clone()));
    let mut over = Vec::new();
    for (id, _) in FILES {
        let id = id.try_into().unwrap();
        let ended = async {
            loop {
                let info = jobs.info(&ty, &id).await.unwrap().unwrap();
                if info.state.is_over() {
                    return info;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let info = tokio::time::timeout(LONG, ended).await.unwrap();
        over.push((info.state == jobs::State::Dead, info.attempts));
    }
    stop.cancel();
    working.await.unwrap();
    assert_eq!(over, [(false, 4), (false, 3), (true, 1)]);
}

#[tokio::test]
async fn the_same_handler_runs_over_http() {
    let service = Service::new("kit").await;
    let client = service.client();
    client.put_type("copy", &json!({"retry": {"delay_sec": 0}})).await.unwrap();
    for (id, files) in FILES {
        let data = json!({"files": files, "copied": 0});
        let job = davenport_client::NewJob { id: Some(id.into()), ..davenport_client::NewJob::new(data) };
        client.enqueue("copy", &job).await.unwrap();
    }
    let stop = CancellationToken::new();
    let working = tokio::spawn(over_http::run(over_http::worker(client.clone()), stop.clone()));
    let mut over = Vec::new();
    for (id, _) in FILES {
        let info = client.wait("copy", id, LONG).await.unwrap();
        over.push((info.state == "dead", info.attempt));
    }
    stop.cancel();
    working.await.unwrap().unwrap();
    assert_eq!(over, [(false, 4), (false, 3), (true, 1)]);
}
