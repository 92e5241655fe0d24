//! What all requests share.

use std::sync::Arc;

use docstore::DocStore;
use jobs::NotifierHandle;
use scheduler::{Replications, SummaryMemory};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::auth::authenticator::Authenticator;
use crate::forwarded::Proxies;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::upstream::Upstream;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) replications: Replications,
    pub(crate) authenticator: Authenticator,
    pub(crate) follow: Option<NotifierHandle>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) upstream: Option<Upstream>,
    pub(crate) options: Options,
    /// Places for requests that are worked on, and for those that wait.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) waiting: Arc<Semaphore>,
    /// Places for requests of anonymous callers.
    pub(crate) anonymous: Arc<Semaphore>,
    /// Proxies that say where requests come from.
    pub(crate) proxies: Proxies,
    pub(crate) health: Health,
    /// Room for bodies, in KiB.
    pub(crate) room: Arc<Semaphore>,
    /// Ends what waits: feeds, and clients of `_replicate`.
    pub(crate) stop: CancellationToken,
    /// What dashboards were last told.
    pub(crate) summary: Mutex<KeptSummary>,
}

impl Shared {
    pub(crate) fn docs(&self) -> &DocStore {
        self.replications.docs()
    }

    /// Seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        u64::try_from(self.replications.jobs().clock().now_ms() / 1000).unwrap_or_default()
    }

    /// 128 random bits.
    pub(crate) fn bits(&self) -> u128 {
        self.replications.jobs().entropy().bits()
    }
}

/// The last summary, when it was made, and what the next one builds on.
#[derive(Debug, Default)]
pub(crate) struct KeptSummary {
    pub(crate) last: Option<(Instant, Value)>,
    pub(crate) memory: SummaryMemory,
}
