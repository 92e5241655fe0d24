//! Calls to webhooks, as jobs of a type of their own.
//!
//! A [`Call`] is enqueued in the transaction that decides on it, and any node with a [`Server`] makes it: at least once,
//! until it succeeds, unless its rule sets a limit. Order is not kept. What a receiver sees is in `docs/webhooks.md`.
//!
//! Start reading at `identity.rs`, `delivery.rs` and `hosts.rs`.

mod credentials;
mod delivery;
mod direct;
mod events;
mod hosts;
mod identity;
mod listing;
mod metrics;
mod options;
mod seats;
mod sender;
mod server;
mod sign;
mod targets;
#[cfg(test)]
mod testing;

use futures::future::try_join_all;
use jobs::{Add, JobId, JobType, Jobs, Lane, Op, State, TypeConfig};
use store::Transaction;
use url::Url;

pub use direct::Calls;
pub use events::EventCalls;
pub use listing::{Filter, Listing, Run, Shown};
pub use options::{EventOptions, Options};
pub use server::{Server, ServerSetup};
pub(crate) use sign::unsigned;
pub use sign::{is_signing, signs};
pub use targets::{NoTarget, RuleTargets, Targets};

pub use crate::rule::call::Attempt;

use crate::rule::call::Call;
use delivery::Delivery;

/// The type of the jobs.
pub const JOB_TYPE: &str = "webhooks";
/// How long a node may be silent before its calls are repeated by others, in milliseconds.
const TIMEOUT_MS: u64 = 20_000;

/// All deliveries of a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Deliveries {
    jobs: Jobs,
    ty: JobType,
}

impl Deliveries {
    /// Those of a store in which a node has [registered](Self::register) them.
    pub fn new(jobs: Jobs) -> Self {
        let ty = JobType::new(JOB_TYPE).expect("the type has a valid name");
        Self { jobs, ty }
    }

    /// Registers the job type.
    pub async fn register(&self, options: &Options) -> jobs::Result<()> {
        let config = TypeConfig {
            retention_ms: Some(options.retention_sec.saturating_mul(1_000)),
            ..TypeConfig::new(TIMEOUT_MS)
        };
        self.jobs.set_type(&self.ty, config).await
    }

    /// The type of the jobs, for [`jobs::Maintenance`] and a [`jobs::Acceptor`].
    pub fn job_type(&self) -> &JobType {
        &self.ty
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// [`Self::enqueue_many_in`] with one call.
    pub async fn enqueue_in(&self, tx: &Transaction, op: &Op, call: &Call) -> jobs::Result<()> {
        self.enqueue_many_in(tx, op, std::slice::from_ref(call))
            .await
    }

    /// Enqueues calls in the caller's transaction, which must have room for them: some 500, and a megabyte.
    ///
    /// A call that waits becomes the new one, as after an edit of its rule; one that runs is left alone; one that has
    /// ended is made again. Of debounced calls that are equal, the last one waits, and is made once the call that runs has
    /// ended.
    pub async fn enqueue_many_in(
        &self,
        tx: &Transaction,
        op: &Op,
        calls: &[Call],
    ) -> jobs::Result<()> {
        let mut unique: Vec<(JobId, &Call, u32)> = Vec::with_capacity(calls.len());
        // Of calls with one job, the last one counts, at the place of the first.
        let mut places = std::collections::HashMap::new();
        for call in calls {
            let id = identity::job(call)?;
            match places.entry(id.clone()) {
                std::collections::hash_map::Entry::Occupied(place) => {
                    let before: &mut (_, _, u32) = &mut unique[*place.get()];
                    *before = (id, call, delivery::hops(before.2, call));
                }
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(unique.len());
                    unique.push((id, call, call.hops));
                }
            }
        }
        // They wait for the store together: one after the other, they would not end in time on a slow one.
        let adds = (unique.into_iter()).map(|(id, call, hops)| self.add_of(tx, id, call, hops));
        let adds: Vec<Add> = try_join_all(adds).await?.into_iter().flatten().collect();
        self.jobs
            .add_many_in(tx, op, &self.ty, &adds)
            .await
            .map(drop)
    }

    /// The job of a call, unless it exists and has the same to do.
    async fn add_of(
        &self,
        tx: &Transaction,
        id: JobId,
        call: &Call,
        hops: u32,
    ) -> jobs::Result<Option<Add>> {
        let mut delivery = Delivery::new(call);
        delivery.call.hops = hops;
        let mut due_ms = 0;
        match self.jobs.info_in(tx, &self.ty, &id).await? {
            Some(info) if info.state == State::Pending => {
                // The data of others, some megabytes for each, are not needed.
                let found = self.jobs.get_in(tx, &self.ty, &id).await?;
                let before = found.map(|(_, data)| serde_json::from_slice::<Delivery>(&data));
                if let Some(Ok(before)) = before {
                    let merged = before.clone().replaced_by(delivery.call);
                    if merged == before {
                        return Ok(None);
                    }
                    // A newer state, or an edited rule, does not cut the back-off short.
                    (due_ms, delivery) = (info.due_ms, merged);
                }
            }
            Some(info) if !call.debounce && !info.state.is_over() => {
                // One that is being made for a rule that was deleted since is not tried again.
                let found = self.jobs.get_in(tx, &self.ty, &id).await?;
                let before = found.map(|(_, data)| serde_json::from_slice::<Delivery>(&data));
                let before = before.and_then(|before| before.ok()?.call.generation);
                if before.is_none() || before == call.generation {
                    return Ok(None);
                }
            }
            Some(info) if call.debounce && info.state == State::Running => {
                // What waits behind the call that is being made may have fewer hops.
                let next = self.jobs.next_data_in(tx, &self.ty, &id).await?;
                if let Some(Ok(next)) = next.map(|data| serde_json::from_slice::<Delivery>(&data)) {
                    delivery.call.hops = delivery::hops(next.call.hops, &delivery.call);
                }
            }
            _ => {}
        }
        // Endpoints take turns.
        let lane = Url::parse(&call.url).map(|url| Lane::of(sender::endpoint(&url).as_bytes()));
        let add = Add::new(id, delivery.encode()).due_ms(due_ms);
        Ok(Some(match lane {
            Ok(lane) => add.lane(lane),
            Err(_) => add,
        }))
    }
}
