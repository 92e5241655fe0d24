//! Limits concurrent starts of runs per server.
//!
//! A server that is asked for a thousand databases at once does little but open and close files. So a run counts as
//! starting until it has caught up, but only for a few seconds: after that it no longer keeps others waiting. Nor does one
//! that waits longer for its other server, or for its filter function.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use couch::Endpoint;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use replication::params::Replication;

/// How long a run counts as starting at most.
const START_MAX: Duration = Duration::from_secs(2);

/// A server with its start permits.
type Key = (String, Option<u16>, usize);

/// The servers that the runs of a node use.
#[derive(Debug, Default)]
pub(crate) struct Starts(Mutex<HashMap<Key, Weak<Semaphore>>>);

/// Released on drop, and by [`StartPermit::during`].
#[derive(Debug)]
pub(crate) struct StartPermit {
    permits: Vec<OwnedSemaphorePermit>,
    until: Instant,
}

impl StartPermit {
    /// Runs a step of the start, and releases the permits once [`START_MAX`] has passed since they were taken.
    pub(crate) async fn during<F: Future>(&mut self, step: F) -> F::Output {
        tokio::pin!(step);
        if !self.permits.is_empty() {
            if let Ok(done) = timeout_at(self.until, &mut step).await {
                return done;
            }
            self.permits.clear();
        }
        step.await
    }
}

impl Starts {
    /// Waits until a replication may start at both of its servers. 0 turns the limit off.
    pub(crate) async fn permit(&self, replication: &Replication, max: usize) -> StartPermit {
        self.at([&replication.source, &replication.target], max)
            .await
    }

    async fn at(&self, endpoints: [&Endpoint; 2], max: usize) -> StartPermit {
        let mut permit = StartPermit {
            permits: Vec::new(),
            until: Instant::now() + START_MAX,
        };
        if max > 0 {
            let key = |endpoint: &Endpoint| (endpoint.host().to_owned(), endpoint.port(), max);
            let mut servers = Vec::from(endpoints.map(key));
            // In one order, to avoid a deadlock.
            servers.sort();
            servers.dedup();
            for server in servers {
                let acquired = self.permits(server).acquire_owned();
                // The semaphore is never closed.
                let taken = permit.during(acquired).await.ok();
                permit.permits.extend(taken);
                permit.until = Instant::now() + START_MAX;
            }
        }
        permit
    }

    fn permits(&self, server: Key) -> Arc<Semaphore> {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = servers.get(&server).and_then(Weak::upgrade) {
            return permits;
        }
        servers.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(server.2));
        servers.insert(server, Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn endpoint(url: &str) -> Endpoint {
        Endpoint::from_url(url).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_starts_are_limited_per_server() {
        let starts = Starts::default();
        let (a, b, c) = (
            endpoint("http://a:1/x"),
            endpoint("http://b:1/x"),
            endpoint("http://c:1/x"),
        );
        let now = |from, to, max| starts.at([from, to], max).now_or_never();
        let first = now(&a, &b, 2).unwrap();
        // A run within one server takes one permit.
        let second = now(&b, &b, 2).unwrap();
        assert!(now(&b, &c, 2).is_none());
        assert!(now(&c, &b, 2).is_none());
        let elsewhere = now(&a, &c, 2).unwrap();
        assert!(now(&b, &b, 0).is_some());
        drop(second);
        let third = now(&c, &b, 2).unwrap();
        assert!(now(&a, &a, 2).is_none());
        drop((first, elsewhere, third));
        assert_eq!(starts.0.lock().unwrap().len(), 3);
        assert!(now(&endpoint("http://a:2/x"), &a, 1).is_some());
        assert_eq!(starts.0.lock().unwrap().len(), 2);
    }

    /// A server that does not respond has all of its permits taken.
    #[tokio::test(start_paused = true)]
    async fn permits_are_not_held_for_long() {
        let starts = Starts::default();
        let (a, b) = (endpoint("http://a:1/x"), endpoint("http://b:1/x"));
        let at = |server| starts.at([server, server], 1);
        let mut hung = at(&a).await;
        let hangs = hung.during(std::future::pending::<()>());
        tokio::pin!(hangs);
        assert!(hangs.as_mut().now_or_never().is_none());
        assert!(at(&a).now_or_never().is_none());
        tokio::time::advance(START_MAX).await;
        assert!(hangs.as_mut().now_or_never().is_none());
        let mut first = at(&a).now_or_never().unwrap();
        assert_eq!(first.during(async { 7 }).await, 7);
        assert!(
            at(&a).now_or_never().is_none(),
            "a short step releases nothing"
        );

        let taken = at(&b).await;
        drop(first);
        let waits = starts.at([&a, &b], 1);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(at(&a).now_or_never().is_none());
        tokio::time::advance(START_MAX).await;
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(at(&a).now_or_never().is_some());
        drop(taken);
        assert!(waits.now_or_never().is_some());
    }
}
