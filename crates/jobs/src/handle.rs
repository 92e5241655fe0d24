//! The handle on a queue: its store, keys, clock and random source, and what a process remembers between
//! transactions.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::try_join_all;
use store::{Call, Store, Transaction};

use crate::model::class::LABELS;
use crate::model::header::Header;
use crate::model::keys::Keys;
use crate::model::turns::Turns;
use crate::operations::deleted::Deleted;
use crate::operations::heartbeats::Heartbeats;
use crate::operations::limits::settings::{FreedSlots, KnownLimits};
use crate::operations::types::known::KnownTypes;
#[cfg(test)]
use crate::testing::moves::Moves;
use crate::testing::planted::Planted;
use crate::{Clock, Entropy, Error, JobId, JobType, Op, Result};

/// A handle on the queue, cheap to clone.
///
/// Every operation has two forms. `foo_in` joins the caller's transaction and takes an [`Op`] drawn before it;
/// everything written there is committed together. `foo` runs its own transaction.
#[derive(Debug, Clone)]
pub struct Jobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: Keys,
    clock: Clock,
    entropy: Entropy,
    planted: Planted,
    heartbeats: Heartbeats,
    turns: Turns,
    deleted: Deleted,
    freed_slots: FreedSlots,
    known_limits: Arc<KnownLimits>,
    /// Shared by all handles of a process on the queue.
    known_types: Arc<KnownTypes>,
    labels: BTreeMap<JobType, Label>,
    #[cfg(test)]
    moves: Option<Arc<Moves>>,
}

/// Maps data of a type to its label.
type Label = fn(&[u8]) -> u8;

impl Jobs {
    /// The queue in `store`.
    pub fn new(store: Store, clock: Clock, entropy: Entropy) -> Self {
        Self::planted_with(store, clock, entropy, Planted::default())
    }

    /// A queue with a planted bug, for tests that must find it.
    #[doc(hidden)]
    pub fn planted_with(store: Store, clock: Clock, entropy: Entropy, planted: Planted) -> Self {
        Self(Arc::new(Inner {
            store,
            keys: Keys::new(),
            clock,
            entropy,
            planted,
            heartbeats: Heartbeats::default(),
            turns: Turns::default(),
            deleted: Deleted::default(),
            freed_slots: FreedSlots::default(),
            known_limits: Arc::default(),
            known_types: Arc::default(),
            labels: BTreeMap::new(),
            #[cfg(test)]
            moves: None,
        }))
    }

    /// A handle that also counts jobs of a type by label: `label` maps data to a number from 1 to 15, or 0 for
    /// none. Every handle that writes data of the type must use the same function, or the counts are wrong. A
    /// job's label changes when its holder changes its data.
    #[must_use]
    pub fn labelled(&self, ty: &JobType, label: fn(&[u8]) -> u8) -> Self {
        let same = &*self.0;
        let mut labels = same.labels.clone();
        labels.insert(ty.clone(), label);
        Self(Arc::new(Inner {
            store: same.store.clone(),
            keys: same.keys.clone(),
            clock: same.clock.clone(),
            entropy: same.entropy.clone(),
            planted: same.planted,
            heartbeats: Heartbeats::default(),
            turns: Turns::default(),
            deleted: Deleted::default(),
            freed_slots: FreedSlots::default(),
            known_limits: Arc::clone(&same.known_limits),
            known_types: Arc::clone(&same.known_types),
            labels,
            #[cfg(test)]
            moves: same.moves.clone(),
        }))
    }

    /// The same new handle, which records what it does to jobs with limits.
    #[cfg(test)]
    pub(crate) fn recording(mut self, moves: &Arc<Moves>) -> Self {
        Arc::get_mut(&mut self.0).unwrap().moves = Some(Arc::clone(moves));
        self
    }

    #[cfg(test)]
    pub(crate) fn moves(&self) -> Option<&Moves> {
        self.0.moves.as_deref()
    }

    pub(crate) fn label(&self, ty: &JobType, data: &[u8]) -> u8 {
        let label = self.0.labels.get(ty);
        label.map_or(0, |label| label(data).min(LABELS - 1))
    }

    /// The store of the queue.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The clock of operations and services.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The source of locks, operation ids and jitter.
    pub fn entropy(&self) -> &Entropy {
        &self.0.entropy
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    pub(crate) fn known_types(&self) -> &KnownTypes {
        &self.0.known_types
    }

    pub(crate) fn known_limits(&self) -> &KnownLimits {
        &self.0.known_limits
    }

    pub(crate) fn freed_slots(&self) -> &FreedSlots {
        &self.0.freed_slots
    }

    pub(crate) fn deleted(&self) -> &Deleted {
        &self.0.deleted
    }

    pub(crate) fn heartbeats(&self) -> &Heartbeats {
        &self.0.heartbeats
    }

    /// The time and random bits of an operation; draw it before the caller's transaction.
    pub fn op(&self) -> Op {
        Op {
            now_ms: self.0.clock.now_ms(),
            bits: self.0.entropy.bits(),
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The planted bug, for crates that build on this one.
    #[doc(hidden)]
    pub fn planted(&self) -> Planted {
        self.0.planted
    }

    pub(crate) async fn header(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Option<Arc<Header>>> {
        self.try_header(tx, ty, id).await?
    }

    /// The header of a job, or the error of decoding it.
    pub(crate) async fn try_header(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
    ) -> Result<Result<Option<Arc<Header>>>> {
        let value = tx.get(&self.0.keys.job(ty, id)).await?;
        let header = value.map(Header::decode).transpose();
        Ok(header.map(|header| header.map(Arc::new)))
    }

    /// The headers of several jobs, read at once.
    pub(crate) async fn headers(
        &self,
        tx: &Transaction,
        ty: &JobType,
        ids: impl Iterator<Item = &JobId>,
    ) -> Result<BTreeMap<JobId, Option<Arc<Header>>>> {
        let read = ids
            .map(|id| async move { Ok::<_, Error>((id.clone(), self.header(tx, ty, id).await?)) });
        Ok(try_join_all(read).await?.into_iter().collect())
    }

    /// All rows of a range.
    #[cfg(test)]
    pub(crate) async fn rows(&self, range: store::KeyRange) -> Vec<store::KeyValue> {
        let range = &range;
        let read = self.store().transact("rows", |tx| async move {
            let rows = (tx.snapshot()).get_range(range.clone(), store::RangeOptions::default());
            rows.collect().await
        });
        tokio::task::unconstrained(read).await.unwrap()
    }

    /// A read-only transaction with foreground priority.
    pub(crate) async fn read<T, Fut>(
        &self,
        call: impl Into<Call>,
        body: impl Fn(Transaction) -> Fut,
    ) -> Result<T>
    where
        Fut: Future<Output = Result<T>>,
    {
        self.0.store.transact(call, body).await
    }
}
