//! Closes connections without a request: after a while, and at once when a new connection needs the slot. What counts
//! is open requests, not bytes: a client that answers HTTP/2 pings, or sends a head byte by byte, still has no request.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Error;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// After telling one connection to close, the time before the next is told.
const EVICTION: Duration = Duration::from_millis(100);

/// The connection slots, and the idle connections, longest idle first.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// Notified when a connection becomes idle.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Idle {
    next: u64,
    connections: BTreeMap<u64, CancellationToken>,
}

/// The slot of a connection, with its open requests.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    state: Mutex<State>,
    requests: watch::Sender<()>,
    /// Cancelled to make room for another connection.
    pub(super) evicted: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Since when requests have been open without a break.
    busy_since: Option<Instant>,
    /// Its key among the idle ones.
    idle: Option<u64>,
}

impl Slots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(most)),
            idle: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Waits for a slot. If there is none, the longest idle connection is closed.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Arc<Slot>> {
        let permit = loop {
            let changed = self.changed.notified();
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                break permit;
            }
            let freed = Arc::clone(&self.free).acquire_owned();
            if self.evict() {
                if let Ok(permit) = timeout(EVICTION, freed).await {
                    break permit.ok()?;
                }
            } else {
                tokio::select! {
                    permit = freed => break permit.ok()?,
                    () = changed => {}
                }
            }
        };
        let slot = Arc::new(Slot {
            slots: Arc::clone(self),
            state: Mutex::default(),
            requests: watch::Sender::new(()),
            evicted: CancellationToken::new(),
            _permit: permit,
        });
        slot.rest(&mut slot.state());
        Some(slot)
    }

    /// Tells the longest idle connection to close; false if none is idle.
    fn evict(&self) -> bool {
        let longest = self.idle().connections.pop_first();
        let Some((_, evicted)) = longest else {
            return false;
        };
        metrics::counter!("davenport_httpd_evicted_total").increment(1);
        evicted.cancel();
        true
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Counts a request as open until the guard is dropped.
    pub(super) fn open(self: &Arc<Self>) -> OpenRequest {
        let mut state = self.state();
        state.open += 1;
        state.busy_since.get_or_insert_with(Instant::now);
        if let Some(at) = state.idle.take() {
            self.slots.idle().connections.remove(&at);
        }
        drop(state);
        self.requests.send_replace(());
        OpenRequest(Arc::clone(self))
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().open > 0
    }

    /// Waits until no request has been open for this long.
    pub(super) async fn idle_for(&self, time_limit: Duration) {
        let mut requests = self.requests.subscribe();
        loop {
            let changed = timeout(time_limit, requests.changed()).await;
            if changed.is_err() && !self.is_open() {
                return;
            }
        }
    }

    /// Waits until requests have been open for this long without a break; for ever without a limit.
    pub(super) async fn busy_for(&self, time_limit: Option<Duration>) {
        let Some(time_limit) = time_limit else {
            return std::future::pending().await;
        };
        // Boxed, so that a connection without a limit costs nothing of it.
        let passed = Box::pin(async {
            let mut requests = self.requests.subscribe();
            loop {
                let since = self.state().busy_since;
                match since.map(|since| since + time_limit) {
                    Some(until) if until <= Instant::now() => return,
                    Some(until) => sleep_until(until).await,
                    None => {
                        let _ = requests.changed().await;
                    }
                }
            }
        });
        passed.await;
    }

    fn rest(&self, state: &mut State) {
        let mut idle = self.slots.idle();
        let at = idle.next;
        idle.next += 1;
        idle.connections.insert(at, self.evicted.clone());
        state.idle = Some(at);
        drop(idle);
        self.slots.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(at) = self.state().idle.take() {
            self.slots.idle().connections.remove(&at);
        }
    }
}

/// An open request.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Slot>);

impl OpenRequest {
    /// Keeps the request open until its response is sent.
    pub(super) fn until_sent(self, body: Body) -> Body {
        Body::new(Sending { body, _open: self })
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.open -= 1;
        if state.open == 0 {
            state.busy_since = None;
            self.0.rest(&mut state);
        }
        drop(state);
        self.0.requests.send_replace(());
    }
}

struct Sending {
    body: Body,
    _open: OpenRequest,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
