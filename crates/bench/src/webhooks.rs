//! `davenport bench webhooks`: from enqueuing a call until it is recorded as delivered, both durably.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use couch::{EgressOptions, Network, NetworkOptions};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jobs::{Acceptor, Clock, Entropy, Holder, Jobs};
use rules::deliver::{Deliveries, Options, PasswordCell, Server, ServerSetup};
use rules::rule::call::{Call, Retry};
use store::Store;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::store::Figure;

/// Calls per transaction, as many as a batch of changes may have.
const BATCH: usize = 100;

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
    /// Print one line of JSON per figure
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(bench: WebhooksBench) -> anyhow::Result<()> {
    ensure!(
        bench.endpoints > 0 && bench.max_in_flight > 0,
        "--endpoints and --max-in-flight must be at least 1"
    );
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let store = Store::open(&crate::url_or_new(bench.store, &directory)).await?;
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let options = Options {
        max_in_flight: bench.max_in_flight,
        ..Options::default()
    };
    let deliveries = Deliveries::open(jobs.clone(), &options).await?;
    let received = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let urls = endpoints(bench.endpoints, &received, &mut tasks).await?;
    let report = |metric, value, unit| {
        let case = "webhooks";
        crate::report(
            "webhooks",
            &Figure {
                case: case.into(),
                metric,
                value,
                unit,
            },
            bench.json,
        );
    };
    let began = Instant::now();
    let calls: Vec<Call> = (0..bench.calls)
        .map(|nth| call(&urls[nth % urls.len()], nth))
        .collect();
    for calls in calls.chunks(BATCH) {
        let (op, deliveries) = (jobs.op(), &deliveries);
        let enqueue = |tx| async move { deliveries.enqueue_many_in(&tx, &op, calls).await };
        jobs.store().transact("enqueue", enqueue).await?;
    }
    let count = bench.calls as u64;
    report("enqueued", crate::per_second(count, began.elapsed()), "/s");

    let began = Instant::now();
    node(&jobs, &deliveries, options, &mut tasks)?;
    while jobs.counts(deliveries.job_type()).await?.finished < count {
        sleep(Duration::from_millis(20)).await;
    }
    report("delivered", crate::per_second(count, began.elapsed()), "/s");
    #[expect(
        clippy::cast_precision_loss,
        reason = "there are fewer than 2^52 calls"
    )]
    report("received", received.load(Ordering::Relaxed) as f64, "calls");
    // The store must not outlive its directory.
    tasks.shutdown().await;
    Ok(())
}

/// Starts endpoints, and returns their addresses.
async fn endpoints(
    count: usize,
    received: &Arc<AtomicU64>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Vec<String>> {
    let mut urls = Vec::new();
    for _ in 0..count {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        urls.push(format!("http://{}/", listener.local_addr()?));
        tasks.spawn(receive(listener, Arc::clone(received)));
    }
    Ok(urls)
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
        passwords: PasswordCell::default(),
        secrets: scheduler::Secrets::new(),
    };
    let server = Server::new(deliveries.clone(), handle, setup)?;

    tasks.spawn(acceptor.run(CancellationToken::new()));
    tasks.spawn(server.run(CancellationToken::new()));
    Ok(())
}

/// Answers every call at once.
async fn receive(listener: TcpListener, received: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let received = Arc::clone(&received);
        let answer = service_fn(move |request: http::Request<Incoming>| {
            received.fetch_add(1, Ordering::Relaxed);
            async move {
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
        method: "POST".into(),
        url: url.into(),
        password: None,
        headers: Vec::new(),
        body: Some(format!(
            r#"{{"db":"shop","id":"order-{nth}","rev":"1-967a00dff5e02add41819138abb3284d"}}"#
        )),
        source: "bench".into(),
        db: "shop".into(),
        doc_id: format!("order-{nth}"),
        rev: "1-967a00dff5e02add41819138abb3284d".into(),
        seq: nth.to_string(),
        sign: None,
        retry: Retry::default(),
        timeout_sec: None,
        debounce: false,
    }
}
