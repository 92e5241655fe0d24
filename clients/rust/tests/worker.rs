//! The client against the real service.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use davenport_client::{
    Beat, Claimed, Client, Ended, Error, Failure, Finish, Method, NewJob, Retried, Task, Worker, WorkerOptions,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::service::{LONG, Proxy, Service};

mod service;

fn options(concurrency: usize) -> WorkerOptions {
    WorkerOptions { concurrency, drain: Duration::from_millis(200) }
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
        ("parse", _) => Ok(Finish::done().result(task.data.how.parse::<u32>()?)),
        ("dead", _) => Err(Failure::Dead("no such user".into())),
        ("panic", 1) => panic!("a planted panic"),
        ("again", 1) => Ok(task.again_in(Duration::ZERO)),
        (_, attempt) => Ok(Finish::done().result(json!({"attempt": attempt}))),
    }
}

#[tokio::test]
async fn a_worker_has_a_job_at_a_time_at_least() {
    let worker = Worker::new(Client::new("http://127.0.0.1:1").unwrap(), "work", "w", options(0));
    let refused = worker.run(CancellationToken::new(), handle).await.unwrap_err();
    assert_eq!(refused.to_string(), "concurrency must be at least 1, not 0");
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
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(3)).run(stop.clone(), handle));
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
    assert_eq!(client.retry_dead("work", Some("no such user")).await.unwrap(), Retried { count: 1, running: false });
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
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(2)).run(stop.clone(), handler));
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
async fn progress_is_kept_however_a_run_ends() {
    let service = Service::new("progress").await;
    let client = service.client();
    client.put_type("work", &json!({"retry": {"delay_sec": 0}})).await.unwrap();
    client.enqueue("work", &job("a", 1)).await.unwrap();
    let handler = |task: Task<u32>| async move {
        let position = task.progress.as_u64().unwrap_or(0) + 1;
        task.report(position);
        match task.attempt {
            1 => Ok(task.again_in(Duration::ZERO)),
            2 => Err(Failure::Retry("later".into())),
            _ => Ok(Finish::done().result(position)),
        }
    };
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(1)).run(stop.clone(), handler));
    let ended = state(&client, "a", &["finished", "dead"]).await;
    assert_eq!((ended.result, ended.attempt), (json!(3), 3));
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn claims_that_cannot_wait_pause() {
    let service = Service::with("waits", "api.waits_max=1").await;
    service.client().put_type("work", &json!({})).await.unwrap();
    let proxy = Proxy::new(service.port).await;
    let counted = Client::new(&format!("http://root:s3cret@127.0.0.1:{}", proxy.port)).unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(counted, "work", "w", options(3)).run(stop.clone(), handle));
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.cancel();
    worker.await.unwrap().unwrap();
    let pieces = proxy.pieces.load(Ordering::Relaxed);
    assert!(pieces < 30, "{pieces} pieces of requests and answers");
}

#[tokio::test]
async fn a_changed_timeout_costs_no_job() {
    let service = Service::new("timeouts").await;
    let client = service.client();
    let handler = |task: Task<u64>| async move {
        tokio::time::sleep(Duration::from_millis(task.data / 10)).await;
        // A heartbeat, after which the service expects others at the new pace.
        task.save().await?;
        tokio::time::sleep(Duration::from_millis(task.data)).await;
        Ok(Finish::done().result(task.attempt))
    };
    for (earlier, later) in [(6, 1), (1, 60)] {
        client.put_type("work", &json!({"timeout_sec": earlier})).await.unwrap();
        let stop = CancellationToken::new();
        let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(3)).run(stop.clone(), handler));
        let id = client.enqueue("work", &NewJob::new(5_000)).await.unwrap();
        state(&client, &id, &["running"]).await;
        client.put_type("work", &json!({"timeout_sec": later})).await.unwrap();
        if later > earlier {
            // The claim of another job tells the worker of the longer timeout.
            let other = client.enqueue("work", &NewJob::new(0)).await.unwrap();
            assert_eq!(state(&client, &other, &["finished"]).await.result, json!(1));
        }
        assert_eq!(state(&client, &id, &["finished", "dead"]).await.result, json!(1), "{earlier} to {later}");
        stop.cancel();
        worker.await.unwrap().unwrap();
    }
}

/// The first of two frontends hangs from the beginning of a run on, which takes a while. Nothing else runs the job.
async fn one_run_while_a_frontend_hangs(name: &str, timeout_sec: u64, takes: Duration) {
    let service = Service::new(name).await;
    let (client, proxy) = (service.client(), Proxy::new(service.port).await);
    client.put_type("work", &json!({"timeout_sec": timeout_sec})).await.unwrap();
    client.enqueue("work", &job("a", 1)).await.unwrap();
    let handler = {
        let hangs = Arc::clone(&proxy.hangs);
        move |_: Task<u32>| {
            hangs.store(true, Ordering::Relaxed);
            async move {
                tokio::time::sleep(takes).await;
                Ok(Finish::done())
            }
        }
    };
    let urls = [proxy.port, service.port].map(|port| format!("http://root:s3cret@127.0.0.1:{port}"));
    let both = Client::with(&[&urls[0], &urls[1]], None).unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(both, "work", "w", options(1)).run(stop.clone(), handler));
    let ended = state(&client, "a", &["finished", "dead"]).await;
    assert_eq!((&*ended.state, ended.attempt), ("finished", 1), "{:?}", ended.attempts);
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn heartbeats_go_to_the_next_frontend_if_one_hangs() {
    one_run_while_a_frontend_hangs("hangs", 3, Duration::from_secs(6)).await;
}

#[tokio::test]
async fn a_run_is_kept_until_the_next_frontend_knows_how_it_ended() {
    one_run_while_a_frontend_hangs("hanging-end", 2, Duration::ZERO).await;
}

#[tokio::test]
async fn progress_is_stored_before_a_run_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let app = {
        let asked = Arc::clone(&asked);
        move |path: String, body: Value| {
            let mut asked = asked.lock().unwrap();
            let job = body["jobs"].get(0).cloned().unwrap_or_default();
            let job_a = json!({"id": "a", "lock": "l", "attempt": 1, "failures": 0, "data": "x"});
            if job.is_null() {
                return Some((200, json!({"jobs": [job_a], "results": [], "timeout_sec": 60})));
            }
            let is_beat = path.ends_with("_beat");
            asked.push(job[if is_beat { "progress" } else { "outcome" }].clone());
            match asked.len() {
                1..4 => Some((500, json!({"error": "planted"}))),
                _ if is_beat => Some((200, json!({"jobs": [{"status": "held"}]}))),
                _ => Some((200, json!({"jobs": [], "results": [{"status": "ok"}], "timeout_sec": 60}))),
            }
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(BufReader::new(stream), app.clone()));
        }
    });
    let stop = CancellationToken::new();
    let handler = {
        let stop = stop.clone();
        move |task: Task<String>| {
            task.report(50);
            stop.cancel();
            std::future::ready(Ok(task.again_in(Duration::ZERO)))
        }
    };
    let worker = Worker::new(client, "work", "w", WorkerOptions { drain: LONG, ..options(1) });
    worker.run(stop, handler).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [json!(50), json!(50), json!(50), json!(50), json!("again")]);
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
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(8)).run(stop.clone(), handler));
    while done.load(Ordering::Relaxed) < 50 {
        tokio::task::yield_now().await;
    }
    service.restart().await;
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
    let worker = Worker::new(client.clone(), "nothing", "w", options(2)).run(stop, handle);
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

/// A service with one job, which fails to store the first heartbeat with progress and passes later ones to the test.
async fn unsteady(told: tokio::sync::mpsc::UnboundedSender<Value>) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (given, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let app = move |path: String, body: Value| match path.rsplit('/').next() {
        Some("_beat") if body["jobs"][0]["progress"].is_null() => Some((200, json!({"jobs": [{"status": "held"}]}))),
        Some("_beat") if failed.fetch_add(1, Ordering::Relaxed) == 0 => Some((500, json!({"error": "planted"}))),
        Some("_beat") => {
            let _ = told.send(body["jobs"][0]["progress"].clone());
            Some((200, json!({"jobs": [{"status": "held"}]})))
        }
        _ if given.fetch_add(1, Ordering::Relaxed) == 0 => {
            let job = json!({"id": "a", "lock": "l", "attempt": 1, "failures": 0, "data": "x"});
            Some((200, json!({"jobs": [job], "results": [], "timeout_sec": 60})))
        }
        // The others wait.
        _ => None,
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(BufReader::new(stream), app.clone()));
        }
    });
    client
}

async fn answer(mut stream: BufReader<TcpStream>, app: impl Fn(String, Value) -> Option<(u16, Value)>) {
    let mut head = Vec::new();
    while let Ok(1..) = stream.read_until(b'\n', &mut head).await {
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let path = text.split(' ').nth(1).unwrap().to_owned();
        let Some((status, answer)) = app(path, serde_json::from_slice(&body).unwrap_or_default()) else {
            return std::future::pending().await;
        };
        let answer = answer.to_string();
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn progress_is_sent_again_if_a_heartbeat_fails() {
    let (told, mut later) = tokio::sync::mpsc::unbounded_channel();
    let client = unsteady(told).await;
    let handler = |task: Task<String>| async move {
        task.report(50);
        std::future::pending().await
    };
    let stop = CancellationToken::new();
    let _working = tokio::spawn(Worker::new(client, "work", "w", options(1)).run(stop, handler));
    let progress = tokio::time::timeout(LONG, later.recv()).await.expect("progress was lost");
    assert_eq!(progress, Some(json!(50)));
}

#[tokio::test]
async fn the_end_of_a_run_is_repeated_while_the_worker_stops() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (claims, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let app = {
        let (claims, ends) = (Arc::clone(&claims), Arc::clone(&ends));
        move |path: String, body: Value| {
            if path.ends_with("_beat") {
                return Some((200, json!({"jobs": [{"status": "held"}]})));
            }
            let is_end = body["jobs"] != json!([]);
            let nth = if is_end { &ends } else { &claims }.fetch_add(1, Ordering::Relaxed);
            match (is_end, nth) {
                (true, 0) => Some((500, json!({"error": "planted"}))),
                (true, _) => Some((200, json!({"jobs": [], "results": [{"status": "ok"}], "timeout_sec": 60}))),
                (false, _) => {
                    let job = json!({"id": "a", "lock": "l", "attempt": 1, "failures": 0, "data": "x"});
                    Some((200, json!({"jobs": [job], "results": [], "timeout_sec": 60})))
                }
            }
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(BufReader::new(stream), app.clone()));
        }
    });
    let stop = CancellationToken::new();
    let handler = {
        let stop = stop.clone();
        move |_: Task<String>| {
            stop.cancel();
            std::future::ready(Ok(Finish::done()))
        }
    };
    let worker = Worker::new(client, "work", "w", WorkerOptions { drain: LONG, ..options(1) });
    worker.run(stop, handler).await.unwrap();
    assert_eq!((claims.load(Ordering::Relaxed), ends.load(Ordering::Relaxed)), (1, 2));
}

#[tokio::test]
async fn ids_that_urls_drop_are_refused() {
    let (told, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let client = mute(told).await;
    for id in ["", ".", ".."] {
        let removed = client.remove("work", id).await;
        assert!(matches!(&removed, Err(Error::Path(part)) if part == id), "{removed:?}");
    }
    assert!(asked.try_recv().is_err());
}

/// A service that hangs up on each request; its path and `Idempotency-Key` are told.
async fn mute(told: tokio::sync::mpsc::UnboundedSender<(String, String)>) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut lines, mut head) = (BufReader::new(stream).lines(), Vec::new());
            while let Ok(Some(line)) = lines.next_line().await
                && !line.is_empty()
            {
                head.push(line);
            }
            let key = head.iter().find_map(|line| line.strip_prefix("idempotency-key: "));
            let path = head.first().and_then(|line| line.split(' ').nth(1));
            let _ = told.send((path.unwrap_or_default().to_owned(), key.unwrap_or_default().to_owned()));
        }
    });
    client
}

#[tokio::test]
async fn a_token_is_made_once_and_other_requests_are_repeated() {
    let (told, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let client = mute(told).await.keyed("monday");
    let token = client.make_token(&json!({"name": "t", "rights": ["read"]})).await;
    assert!(matches!(token, Err(Error::Unreachable(_))), "{token:?}");
    let run = client.run_schedule("s").await;
    assert!(matches!(run, Err(Error::Unreachable(_))), "{run:?}");
    let mut paths = Vec::new();
    while let Ok((path, key)) = asked.try_recv() {
        assert_eq!(key, "monday");
        paths.push(path);
    }
    assert_eq!(paths, ["/_tokens"].into_iter().chain(["/_schedules/s/_run"; 5]).collect::<Vec<_>>());
}

#[tokio::test]
async fn failures_whose_error_cannot_be_stored_are_failures() {
    let service = Service::new("large-errors").await;
    let client = service.client();
    let large = || "x".repeat(51);
    let handler = move |task: Task<String>| async move {
        match &*task.data {
            "dead" => Err(Failure::Dead(large())),
            "result" => Ok(Finish::done().result(large())),
            _ => Err(Failure::Retry(large())),
        }
    };
    client.put_type("work", &json!({"max_data_bytes": 50, "retry": {"limit": 1, "delay_sec": 0}})).await.unwrap();
    for how in ["dead", "retry", "result"] {
        client.enqueue("work", &job(how, how)).await.unwrap();
    }
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(3)).run(stop.clone(), handler));
    for (id, runs) in [("dead", 1), ("retry", 2), ("result", 2)] {
        let ended = state(&client, id, &["dead"]).await;
        assert_eq!((ended.error, ended.attempts.len()), (Value::Null, runs), "{id}");
        assert!(ended.attempts.iter().all(|run| run["outcome"] == "failed"), "{id}: {:?}", ended.attempts);
    }
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn progress_that_cannot_be_stored_costs_no_job() {
    let service = Service::new("large-progress").await;
    let client = service.client();
    client.put_type("work", &json!({"max_data_bytes": 100, "timeout_sec": 1})).await.unwrap();
    let handler = |mut task: Task<String>| async move {
        // Three times as long as a silent worker has.
        for _ in 0..30 {
            if task.data == "loud" {
                task.report("x".repeat(101));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        task.data = "x".repeat(101);
        assert!(matches!(task.save().await, Err(Error::Refused { .. })));
        Ok(Finish::done().result(task.attempt))
    };
    for how in ["loud", "quiet"] {
        client.enqueue("work", &job(how, how)).await.unwrap();
    }
    let stop = CancellationToken::new();
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(2)).run(stop.clone(), handler));
    for how in ["loud", "quiet"] {
        assert_eq!(state(&client, how, &["finished", "dead"]).await.result, json!(1), "{how}");
    }
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn data_that_cannot_be_read_fails_its_job_only() {
    let service = Service::new("odd-data").await;
    let client = service.client();
    client.put_type("work", &json!({})).await.unwrap();
    let url = format!("http://root:s3cret@127.0.0.1:{}/_jobs/work", service.port);
    for (id, data) in [("number", "1e400"), ("text", r#""\ud800""#)] {
        let body = format!(r#"{{"id":"{id}","data":{data}}}"#);
        let added = reqwest::Client::new().post(&url).header("content-type", "application/json").body(body);
        assert_eq!(added.send().await.unwrap().status(), 201);
    }
    client.enqueue("work", &job("good", 7)).await.unwrap();
    let stop = CancellationToken::new();
    let handler = |task: Task<u32>| async move { Ok(Finish::done().result(task.data)) };
    let worker = tokio::spawn(Worker::new(client.clone(), "work", "w", options(1)).run(stop.clone(), handler));
    assert_eq!(state(&client, "good", &["finished", "dead"]).await.result, json!(7));
    while client.type_info("work").await.unwrap()["counts"]["dead"] != 2 {
        tokio::task::yield_now().await;
    }
    let failures: Value = client.ask(Method::GET, &["_jobs", "work", "_failures"], &Value::Null).await.unwrap();
    assert!(failures["failures"][0]["error"].as_str().unwrap().starts_with("its data cannot be read"), "{failures}");
    stop.cancel();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn requests_return_their_part_of_the_answer() {
    let service = Service::new("requests").await;
    let client = service.client();
    client.put_type("work", &json!({"retry": {"limit": 0}})).await.unwrap();
    let keyed = client.keyed("order-1");
    let ids =
        [keyed.enqueue("work", &NewJob::new(1)).await.unwrap(), keyed.enqueue("work", &NewJob::new(1)).await.unwrap()];
    assert_eq!(ids[0], ids[1]);
    assert_eq!(client.types().await.unwrap()[0]["type"], "work");
    client.pause("work").await.unwrap();
    assert_eq!(client.type_info("work").await.unwrap()["paused"], true);
    client.resume("work").await.unwrap();
    let mut claims = client.claim("work", "by-hand", 1, LONG).await.unwrap();
    let Claimed { id, lock, .. } = claims.jobs.pop().unwrap();
    let beat = Beat { id: id.clone(), lock: lock.clone(), progress: Some(json!(50)) };
    assert_eq!(client.beat("work", &[beat]).await.unwrap().jobs[0].status, "held");
    let end = Ended { id: id.clone(), lock, finish: Finish::dead("no") };
    let ended = client.finish("work", &[end], "by-hand", 0, Duration::ZERO).await.unwrap();
    assert_eq!((&*ended.results[0].status, ended.jobs.len()), ("ok", 0));
    client.retry("work", &id).await.unwrap();
    assert_eq!(client.list("work", &[("state", "pending".into())]).await.unwrap().jobs[0].id, id);
    let schedule = json!({"type": "work", "every_sec": 3600, "job": {"data": 1}});
    let next = client.put_schedule("hourly", &schedule).await.unwrap();
    assert_eq!(client.schedule("hourly").await.unwrap()["next"], next);
    let run = keyed.run_schedule("hourly").await.unwrap();
    assert_eq!(keyed.run_schedule("hourly").await.unwrap(), run);
    client.remove("work", &run).await.unwrap();
    assert_eq!(client.schedules(&[]).await.unwrap()["schedules"][0]["name"], "hourly");
    client.remove_schedule("hourly").await.unwrap();
    client.make_token(&json!({"name": "reader", "rights": ["read"]})).await.unwrap();
    assert_eq!(client.tokens().await.unwrap()[0]["name"], "reader");
    client.revoke_token("reader").await.unwrap();
}
