//! Accepts connections. Each has one request, and is bounded in time, in the size of its head, and in number.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum size of a request head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long requests may take to end when the node stops.
const END_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept: file descriptors may be used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to close a connection after the response, and what it may still send.
const GOODBYE: Duration = Duration::from_secs(1);
const GOODBYE_BYTES: u64 = 1024 * 1024;

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Further ones wait.
    pub(crate) connections: usize,
    /// The time for a head.
    pub(crate) head: Duration,
    /// The time for all of a connection.
    pub(crate) connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            head: Duration::from_secs(10),
            connection: Duration::from_mins(2),
        }
    }
}

/// Answers requests until `stop`; then those in progress may end.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let (tasks, slots) = (
        TaskTracker::new(),
        Arc::new(Semaphore::new(limits.connections)),
    );
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Some((stream, slot)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        tasks.spawn(async move {
            // A client that is too slow is cut off.
            let _ = timeout(limits.connection, answer(stream, router, limits, stop)).await;
            drop(slot);
        });
    }
    drop(listener);
    tasks.close();
    let _ = timeout(END_MAX, tasks.wait()).await;
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            None
        }
    }
}

async fn answer(stream: TcpStream, router: Router, limits: Limits, stop: CancellationToken) {
    let router = TowerToHyperService::new(router);
    let service =
        service_fn(move |request: Request<Incoming>| Box::pin(router.call(request.map(Body::new))));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = stop.cancelled() => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    if let Err(error) = ended {
        return tracing::debug!(%error, "a connection failed");
    }
    // A connection that is closed before all was read is reset, and the client may never see the response.
    let mut stream = connection.into_parts().io.into_inner();
    if stream.shutdown().await.is_ok() {
        let mut rest = stream.take(GOODBYE_BYTES);
        let _ = timeout(GOODBYE, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
    }
}
