//! State shared by all requests.

use std::sync::Arc;

use docstore::DocStore;
use jobs::NotifierHandle;
use queue::Queue;
use rules::deliver::Deliveries;
use rules::rule::{Listeners, Rules};
use scheduler::Replications;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::auth::authenticator::Authenticator;
use crate::call::MEMORY_UNIT_BYTES;
use crate::forwarded::Proxies;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::upstream::Upstream;
use crate::waits::Waits;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) replications: Replications,
    pub(crate) rules: Rules,
    pub(crate) authenticator: Authenticator,
    pub(crate) queue: Queue,
    pub(crate) deliveries: Option<Deliveries>,
    pub(crate) listeners: Option<Listeners>,
    pub(crate) follow: Option<NotifierHandle>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) upstream: Option<Upstream>,
    pub(crate) options: Options,
    /// Permits of requests in progress, and of those that wait.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) waiting: Waits,
    /// Permits of requests that are forwarded to the cluster, which knows who calls.
    pub(crate) forwarded: Arc<Semaphore>,
    /// Permits of anonymous callers' requests.
    pub(crate) anonymous: Arc<Semaphore>,
    /// Proxies trusted for client addresses.
    pub(crate) proxies: Proxies,
    pub(crate) health: Health,
    /// Permits for body memory, in KiB.
    pub(crate) body_memory: Arc<Semaphore>,
    /// Ends feeds and `_replicate` requests that wait.
    pub(crate) stop: CancellationToken,
}

impl Shared {
    pub(crate) fn docs(&self) -> &DocStore {
        self.replications.docs()
    }

    /// Reserves memory for what becomes of a body, or tells the client to retry.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        if bytes > self.options.bodies_bytes_max {
            return Err(Error::too_large("the request entity is too large"));
        }
        self.reserve_units(bytes.div_ceil(MEMORY_UNIT_BYTES))
    }

    /// [`Self::reserve`], in units of [`MEMORY_UNIT_BYTES`].
    pub(crate) fn reserve_units(&self, units: usize) -> Result<OwnedSemaphorePermit, Error> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Semaphore::try_acquire_many_owned(Arc::clone(&self.body_memory), units)
            .map_err(|_| Error::busy("Too many large requests at a time."))
    }

    pub(crate) fn now_s(&self) -> u64 {
        u64::try_from(self.replications.jobs().clock().now_ms() / 1000).unwrap_or_default()
    }

    pub(crate) fn bits(&self) -> u128 {
        self.replications.jobs().entropy().bits()
    }
}
