//! Which runs have heartbeats.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A run that has progress, so that its heartbeat is due at once.
fn run(client: &Client, id: &str) -> Arc<Run> {
    Arc::new(Run {
        worker: worker(client),
        beat: Beat { id: id.into(), lock: "l".into(), progress: None },
        report: Mutex::new(Some(json!(50))),
        held: Mutex::new((Instant::now() + WAIT, WAIT)),
        beating: Arc::default(),
        again: AtomicBool::default(),
        lost: CancellationToken::new(),
    })
}

fn worker(client: &Client) -> Arc<Worker> {
    let worker = Worker::new(client.clone(), "work", "w", WorkerOptions::default());
    *lock(&worker.timeout) = WAIT * 3;
    Arc::new(worker)
}

fn shared(client: &Client, runs: Vec<Arc<Run>>) -> Arc<Shared> {
    Arc::new(Shared {
        worker: worker(client),
        handler: Box::new(|_, _| Box::pin(std::future::pending())),
        stop: CancellationToken::new(),
        runs: Mutex::new(runs.into_iter().map(Some).collect()),
    })
}

/// A run that was given up is among the others until its slot is polled, which takes longer if handlers block threads.
#[tokio::test]
async fn runs_that_were_given_up_have_no_heartbeats() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (given_up, held) = (run(&client, "given up"), run(&client, "held"));
    given_up.lost.cancel();
    let shared = shared(&client, vec![given_up, held]);
    let request = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut request, mut part) = (String::new(), [0; 1_000]);
        // Heartbeats are in the order of the runs.
        while !request.contains(r#""id":"held""#) {
            let read = stream.read(&mut part).await.unwrap();
            assert_ne!(read, 0, "the heartbeat was not sent: {request}");
            request.push_str(str::from_utf8(&part[..read]).unwrap());
        }
        request
    };
    tokio::select! {
        request = request => assert!(!request.contains("given up"), "{request}"),
        () = shared.beats() => unreachable!("heartbeats do not end"),
    }
}

/// A request that gets no answer must not delay the heartbeats of other runs.
#[tokio::test]
async fn heartbeats_of_many_runs_are_sent_together() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let runs = (0..=BEATS_MAX).map(|nth| run(&client, &nth.to_string())).collect();
    let shared = shared(&client, runs);
    let requests = async { (listener.accept().await.unwrap(), listener.accept().await.unwrap()) };
    tokio::select! {
        _ = requests => {}
        () = shared.beats() => unreachable!("heartbeats do not end"),
        () = sleep(WAIT / 2) => panic!("the second request waits for the first"),
    }
}

/// Answers that overtake each other may tell the worker of a longer timeout than a job has.
#[tokio::test]
async fn each_run_has_heartbeats_as_it_was_promised() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (long, short) = (run(&client, "long"), run(&client, "short"));
    for run in [&long, &short] {
        *lock(&run.report) = None;
    }
    lock(&short.held).1 = Duration::from_secs(3);
    let shared = shared(&client, vec![long, short]);
    tokio::select! {
        _ = listener.accept() => {}
        () = shared.beats() => unreachable!("heartbeats do not end"),
        () = sleep(Duration::from_secs(2)) => panic!("no heartbeat"),
    }
}

/// The reports of a job that heartbeats bring, each with what answers it.
async fn reports(listener: &TcpListener) -> (String, TcpStream) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let (mut request, mut part) = (String::new(), [0; 1_000]);
    while !request.ends_with("}]}") {
        let read = stream.read(&mut part).await.unwrap();
        assert_ne!(read, 0, "the heartbeat was not sent: {request}");
        request.push_str(str::from_utf8(&part[..read]).unwrap());
    }
    (request.split_once("\r\n\r\n").unwrap().1.to_owned(), stream)
}

/// Says that so many jobs are held.
async fn answer(mut stream: TcpStream, jobs: usize) {
    let answer = json!({"jobs": vec![json!({"status": "held"}); jobs]}).to_string();
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", answer.len());
    stream.write_all((head + &answer).as_bytes()).await.unwrap();
}

#[tokio::test]
async fn heartbeats_wait_for_earlier_ones_of_their_job_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (slow, other) = (run(&client, "slow"), run(&client, "other"));
    let shared = shared(&client, vec![Arc::clone(&slow)]);
    let task = Task { data: 70, id: "slow".into(), attempt: 1, failures: 0, progress: Value::Null, run: slow };
    let requests = async {
        let (first, stream) = reports(&listener).await;
        assert_eq!(first, json!({"jobs": [{"id": "slow", "lock": "l", "progress": 50}]}).to_string());
        task.report(60);
        lock(&shared.runs).push(Some(other));
        let (second, _) = reports(&listener).await;
        assert_eq!(second, json!({"jobs": [{"id": "other", "lock": "l", "progress": 50}]}).to_string());
        let saved = async {
            answer(stream, 1).await;
            reports(&listener).await.0
        };
        let third = tokio::select! {
            biased;
            saved = task.save() => panic!("saved before the earlier heartbeat was answered: {saved:?}"),
            third = saved => third,
        };
        assert_eq!(third, json!({"jobs": [{"id": "slow", "lock": "l", "progress": {"saved": 70}}]}).to_string());
    };
    tokio::select! {
        () = requests => {}
        () = shared.beats() => unreachable!("heartbeats do not end"),
    }
}

/// Its jobs have one heartbeat at a time, and the next has their newest progress.
#[tokio::test]
async fn a_batch_that_hangs_delays_its_own_jobs_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (a, b, other) = (run(&client, "a"), run(&client, "b"), run(&client, "other"));
    let shared = shared(&client, vec![Arc::clone(&a), b]);
    let report = |run: &Run, progress: u32| *lock(&run.report) = Some(json!(progress));
    let beats = |beats: &[(&str, u32)]| {
        let beats = beats.iter().map(|(id, progress)| json!({"id": id, "lock": "l", "progress": progress}));
        json!({"jobs": beats.collect::<Vec<_>>()}).to_string()
    };
    let requests = async {
        let (hanging, batch) = reports(&listener).await;
        assert_eq!(hanging, beats(&[("a", 50), ("b", 50)]));
        report(&a, 60);
        report(&a, 70);
        lock(&shared.runs).push(Some(Arc::clone(&other)));
        for progress in [50, 60, 70] {
            report(&other, progress);
            let (sent, stream) = reports(&listener).await;
            assert_eq!(sent, beats(&[("other", progress)]));
            answer(stream, 1).await;
        }
        answer(batch, 2).await;
        assert_eq!(reports(&listener).await.0, beats(&[("a", 70)]));
    };
    tokio::select! {
        () = requests => {}
        () = shared.beats() => unreachable!("heartbeats do not end"),
    }
}
