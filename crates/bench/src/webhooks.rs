//! `davenport bench webhooks`: from enqueuing a call until it is recorded as delivered, both durably.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use couch::{EgressOptions, Network, NetworkOptions};
use futures::future::BoxFuture;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs};
use rules::deliver::{Deliveries, NoTarget, Options, Server, ServerSetup, Targets};
use rules::rule::call::{Call, Retry, Target};
use store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::store::Figure;

/// Calls per transaction, as many as a batch of changes may have.
const BATCH: usize = 100;
/// Equal calls.
const DEBOUNCED: usize = 1_000;
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for the last call.
const ARRIVAL_MAX: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub struct WebhooksBench {
    /// Empty store; default: a new temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of calls
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    calls: usize,
    /// Number of endpoints that share them
    #[arg(long, value_name = "E", default_value_t = 10)]
    endpoints: usize,
    /// Maximum number of concurrent calls
    #[arg(long, value_name = "M", default_value_t = 50)]
    max_in_flight: usize,
    /// Number of calls per second in the case `down`
    #[arg(long, value_name = "R", default_value_t = 200)]
    rate: u32,
    /// Seconds for which the case `down` makes calls, without the failing endpoint and with it
    #[arg(long, value_name = "S", default_value_t = 30)]
    seconds: u32,
    /// Run only this case; can be repeated
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<Case>,
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// All calls at once
    Throughput,
    /// One endpoint does not respond
    Down,
    /// Equal calls that wait become one
    Debounced,
}

/// The endpoints, and what they got.
#[derive(Default)]
struct Received {
    calls: AtomicU64,
    /// The numbers of the calls, and when they arrived.
    times: Mutex<Vec<(usize, Instant)>>,
    /// While it is set, responses wait.
    held: watch::Sender<bool>,
}

/// What all cases share.
struct Run<'a> {
    bench: &'a WebhooksBench,
    case: &'static str,
    jobs: &'a Jobs,
    deliveries: &'a Deliveries,
    received: Arc<Received>,
    tasks: JoinSet<()>,
}

pub(crate) async fn run(bench: WebhooksBench) -> anyhow::Result<()> {
    ensure!(
        bench.endpoints > 0 && bench.max_in_flight > 0 && bench.rate > 0,
        "--endpoints, --max-in-flight and --rate must be at least 1"
    );
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let store = Store::open(&crate::url_or_new(bench.store.clone(), &directory)).await?;
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let options = Options {
        max_in_flight: bench.max_in_flight,
        ..Options::default()
    };
    let deliveries = Deliveries::new(jobs.clone());
    deliveries.register(&options).await?;
    for (case, name) in [
        (Case::Throughput, "throughput"),
        (Case::Debounced, "debounced"),
        // Leaves calls that wait.
        (Case::Down, "down"),
    ] {
        if !bench.cases.is_empty() && !bench.cases.contains(&case) {
            continue;
        }
        let mut run = Run {
            bench: &bench,
            case: name,
            jobs: &jobs,
            deliveries: &deliveries,
            received: Arc::default(),
            tasks: JoinSet::new(),
        };
        let measured = match case {
            Case::Throughput => run.throughput(options.clone()).await,
            Case::Down => run.down(options.clone()).await,
            Case::Debounced => run.debounced(options.clone()).await,
        };
        // The store must not outlive its directory.
        run.tasks.shutdown().await;
        measured.with_context(|| format!("case {name}"))?;
    }
    Ok(())
}

impl Run<'_> {
    fn report(&self, metric: &'static str, value: f64, unit: &'static str) {
        let case = self.case.into();
        let figure = Figure {
            case,
            metric,
            value,
            unit,
        };
        crate::report("webhooks", &figure, self.bench.json);
    }

    async fn throughput(&mut self, options: Options) -> anyhow::Result<()> {
        let (bench, ty) = (self.bench, self.deliveries.job_type());
        let urls = self.endpoints(bench.endpoints).await?;
        let before = self.jobs.counts(ty).await?.finished;
        let began = Instant::now();
        let calls: Vec<Call> = (0..bench.calls)
            .map(|nth| call(&urls[nth % urls.len()], nth))
            .collect();
        self.enqueue(&calls).await?;
        let count = bench.calls as u64;
        self.report("enqueued", crate::per_second(count, began.elapsed()), "/s");

        let began = Instant::now();
        node(self.jobs, self.deliveries, options, &mut self.tasks)?;
        while self.jobs.counts(ty).await?.finished < before + count {
            sleep(LOOK_PAUSE).await;
        }
        self.report("delivered", crate::per_second(count, began.elapsed()), "/s");
        self.report("received", self.received(), "calls");
        Ok(())
    }

    /// The time from enqueuing calls until they arrive, of all endpoints but one, which at last does not respond.
    async fn down(&mut self, options: Options) -> anyhow::Result<()> {
        let urls = self.endpoints(self.bench.endpoints.max(2)).await?;
        let silent = TcpListener::bind("127.0.0.1:0").await?;
        let mut failing = urls.clone();
        failing[0] = format!("http://{}/", silent.local_addr()?);
        node(self.jobs, self.deliveries, options, &mut self.tasks)?;
        let up = self.times(&urls).await?;
        let down = self.times(&failing).await?;
        let metrics = [("up_ms_p50", 50), ("up_ms_p99", 99)];
        let up: Vec<_> = crate::percentiles(&up, &metrics).collect();
        let metrics = [("ms_p50", 50), ("ms_p99", 99)];
        let down: Vec<_> = crate::percentiles(&down, &metrics).collect();
        for (metric, ms) in up.iter().chain(&down) {
            self.report(metric, *ms, "ms");
        }
        if let (Some((_, up)), Some((_, down))) = (up.last(), down.last()) {
            self.report("p99_ratio", down / up, "");
        }
        Ok(())
    }

    async fn times(&self, urls: &[String]) -> anyhow::Result<Vec<Duration>> {
        let (mut sent, mut ticks) = (
            Vec::new(),
            interval(Duration::from_secs(1) / self.bench.rate),
        );
        self.received.times().clear();
        for nth in 0..(self.bench.rate * self.bench.seconds) as usize {
            ticks.tick().await;
            sent.push(Instant::now());
            self.enqueue(&[call(&urls[nth % urls.len()], nth)]).await?;
        }
        let others = |nth: &usize| !nth.is_multiple_of(urls.len());
        let wanted = (0..sent.len()).filter(others).count();
        let all = async {
            loop {
                let times = self.received.times().clone();
                let times: Vec<_> = times.into_iter().filter(|(nth, _)| others(nth)).collect();
                if times.len() >= wanted {
                    return times;
                }
                sleep(LOOK_PAUSE).await;
            }
        };
        let times = timeout(ARRIVAL_MAX, all).await;
        let times = times.context("some calls did not arrive")?;
        let took = |(nth, at): (usize, Instant)| at.saturating_duration_since(sent[nth]);
        Ok(times.into_iter().map(took).collect())
    }

    /// Equal calls, enqueued while the first of them is being made.
    async fn debounced(&mut self, options: Options) -> anyhow::Result<()> {
        let urls = self.endpoints(1).await?;
        self.received.held.send_replace(true);
        node(self.jobs, self.deliveries, options, &mut self.tasks)?;
        let equal = |_| Call {
            debounce: true,
            ..call(&urls[0], 0)
        };
        let calls: Vec<Call> = (0..DEBOUNCED).map(equal).collect();
        self.enqueue(&calls[..1]).await?;
        while self.received() < 1.0 {
            sleep(LOOK_PAUSE).await;
        }
        self.enqueue(&calls[1..]).await?;
        self.received.held.send_replace(false);
        let ty = self.deliveries.job_type();
        loop {
            let counts = self.jobs.counts(ty).await?;
            if self.received() > 1.0 && counts.pending == 0 && counts.running == 0 {
                break;
            }
            sleep(LOOK_PAUSE).await;
        }
        self.report("calls", self.received(), "calls");
        Ok(())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "there are fewer than 2^52 calls"
    )]
    fn received(&self) -> f64 {
        self.received.calls.load(Ordering::Relaxed) as f64
    }

    async fn enqueue(&self, calls: &[Call]) -> anyhow::Result<()> {
        for calls in calls.chunks(BATCH) {
            let (op, deliveries) = (self.jobs.op(), self.deliveries);
            let enqueue = |tx| async move { deliveries.enqueue_many_in(&tx, &op, calls).await };
            self.jobs.store().transact("enqueue", enqueue).await?;
        }
        Ok(())
    }

    /// Starts endpoints, and returns their addresses.
    async fn endpoints(&mut self, count: usize) -> anyhow::Result<Vec<String>> {
        let mut urls = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            urls.push(format!("http://{}/", listener.local_addr()?));
            self.tasks
                .spawn(receive(listener, Arc::clone(&self.received)));
        }
        Ok(urls)
    }
}

impl Received {
    fn times(&self) -> MutexGuard<'_, Vec<(usize, Instant)>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add<T>(&self, request: &http::Request<T>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let id = request.headers().get("x-couch-doc-id");
        let nth = id.and_then(|id| id.to_str().ok()?.strip_prefix("order-")?.parse().ok());
        if let Some(nth) = nth {
            self.times().push((nth, Instant::now()));
        }
    }
}

/// Starts to make the calls.
fn node(
    jobs: &Jobs,
    deliveries: &Deliveries,
    options: Options,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let (acceptor, handle) = Acceptor::new(
        jobs.clone(),
        deliveries.job_type().clone(),
        Holder::new("bench")?,
    );
    let network = NetworkOptions {
        egress: EgressOptions::open(),
        ..NetworkOptions::default()
    };
    let setup = ServerSetup {
        network: Network::new(network, crate::random())?,
        options,
        targets: Arc::new(Stored),
        passwords: scheduler::PasswordCell::default(),
        secrets: scheduler::Secrets::new(),
    };
    let server = Server::new(deliveries.clone(), handle, setup)?;

    tasks.spawn(acceptor.run(CancellationToken::new()));
    tasks.spawn(server.run(CancellationToken::new()));
    Ok(())
}

/// Calls go where they were meant to go when they were enqueued.
struct Stored;

impl Targets for Stored {
    fn target<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Target, NoTarget>> {
        let url = Url::parse(&call.url).map_err(|error| NoTarget::Gone(error.to_string()));
        Box::pin(std::future::ready(url.map(Target::new)))
    }
}

/// Answers every call, at once unless responses are held.
async fn receive(listener: TcpListener, received: Arc<Received>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let received = Arc::clone(&received);
        let answer = service_fn(move |request: http::Request<Incoming>| {
            received.add(&request);
            let mut held = received.held.subscribe();
            async move {
                // The sender outlives the endpoints.
                let _ = held.wait_for(|held| !held).await;
                // A body that breaks off ends the connection anyway.
                let _ = request.into_body().collect().await;
                let mut response = Response::new(Empty::<Bytes>::new());
                *response.status_mut() = StatusCode::NO_CONTENT;
                Ok::<_, Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        connections.spawn(async move {
            connection
                .serve_connection(TokioIo::new(stream), answer)
                .await
        });
    }
}

fn call(url: &str, nth: usize) -> Call {
    Call {
        rule: "bench".into(),
        rules: "_rules".into(),
        method: "POST".into(),
        url: url.into(),
        query: None,
        body: Some(format!(
            r#"{{"db":"shop","id":"order-{nth}","rev":"1-967a00dff5e02add41819138abb3284d"}}"#
        )),
        source: "bench".into(),
        db: "shop".into(),
        doc_id: format!("order-{nth}"),
        rev: "1-967a00dff5e02add41819138abb3284d".into(),
        seq: nth.to_string(),
        retry: Retry::default(),
        timeout_sec: None,
        debounce: false,
        hops: 0,
        left_out: 0,
        generation: None,
        target: None,
    }
}
