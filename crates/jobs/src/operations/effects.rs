//! Writes the effects of a step of the state machine: the header, its index row, chunks of data,
//! history and counters; and wakes acceptors and notifiers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use store::Transaction;

use crate::model::clock::millis;
use crate::model::header::{Blob, Header, Order, Place, State};
use crate::model::ids::COUNT_ROWS;
use crate::model::keys::{Kind, Position, edge, stamp_template};
use crate::model::limits::{Slot, Taken};
use crate::model::machine::{Change, Context, Event, Reply, Step, step};
use crate::model::run::Ended;
use crate::operations::limits::contended::{Contended, Free, Freed};
use crate::operations::tenants::START_MS;
use crate::operations::tenants::settle::Sharers;
use crate::testing::planted::Bug;
use crate::{Job, JobId, JobType, Jobs, Op, Result};

/// The size of a chunk of data, below `FoundationDB`'s limit for values.
pub(crate) const CHUNK_BYTES: usize = 90_000;
/// Attempts kept besides the one in the header.
pub(crate) const HISTORY_MAX: u32 = 10;
/// Sleeping services poll at least this often, so only jobs due sooner wake one.
pub(crate) const POLL_MS: i64 = 5_000;
/// Maximum acceptors that one transaction wakes.
const WAKE_MAX: usize = 8;

/// The pending writes of one operation, written by [`Self::flush`].
pub(crate) struct Effects<'a> {
    jobs: &'a Jobs,
    tx: &'a Transaction,
    cx: Context,
    /// Additions to COUNT rows, by type and edge.
    counts: BTreeMap<(JobType, u32), i64>,
    /// Jobs of a type that are due, or will be before sleepers poll again.
    wake: BTreeMap<JobType, usize>,
    told: BTreeSet<(JobType, u64)>,
    pub(crate) limits: Contended,
    pub(crate) sharers: Sharers,
}

impl Jobs {
    /// An operation in `tx`, without writes yet.
    pub(crate) async fn effects<'a>(
        &'a self,
        tx: &'a Transaction,
        now_ms: i64,
    ) -> Result<Effects<'a>> {
        let order = Order {
            incarnation: self.store().incarnation(),
            version: tx.read_version().await?,
        };
        Ok(Effects {
            jobs: self,
            tx,
            cx: Context {
                now_ms,
                order,
                planted: self.planted(),
            },
            counts: BTreeMap::new(),
            wake: BTreeMap::new(),
            told: BTreeSet::new(),
            limits: Contended::default(),
            sharers: Sharers::default(),
        })
    }

    /// Removes the chunks of data that `new` does not refer to any more, and writes its new ones.
    pub(crate) fn move_chunks(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        old: Option<&Header>,
        new: Option<&Header>,
    ) {
        let kept = |blob: &Blob, header: Option<&Header>| {
            header.is_some_and(|header| header.chunked().any(|other| other.slot == blob.slot))
        };
        for blob in old.into_iter().flat_map(Header::chunked) {
            if !kept(blob, new) {
                tx.clear_range(self.keys().chunks(ty, id, blob.slot));
            }
        }
        for blob in new.into_iter().flat_map(Header::chunked) {
            if let Some(bytes) = blob.bytes.as_ref().filter(|_| !kept(blob, old)) {
                for (n, chunk) in (0..).zip(bytes.chunks(CHUNK_BYTES)) {
                    tx.set(&self.keys().chunk(ty, id, blob.slot, n), chunk);
                }
            }
        }
    }
}

impl Effects<'_> {
    /// Runs the state machine and writes its effects. `header` becomes the new one.
    pub(crate) fn run(
        &mut self,
        ty: &JobType,
        id: &JobId,
        header: &mut Option<Arc<Header>>,
        event: Event,
    ) -> Result<Reply> {
        let counted =
            !(matches!(event, Event::Stall { .. }) && self.cx.planted.is(Bug::StallUncounted));
        let Step {
            change,
            spill,
            tell,
            spent,
            interrupt,
            reply,
        } = step(header.as_deref(), event, &self.cx)?;
        let old = header.clone();
        let (keys, tx) = (self.jobs.keys(), self.tx);
        if let Some(attempt) = spill {
            tx.set(&keys.attempt(ty, id, attempt.number), &attempt.encode());
            if let Some(oldest) = attempt.number.checked_sub(HISTORY_MAX) {
                tx.clear(&keys.attempt(ty, id, oldest));
                tx.clear_range(keys.calls(ty, id, Some(oldest)));
            }
        }
        let deleted = match change {
            Change::FinishAndDelete => Some(State::Finished),
            _ => None,
        };
        match change {
            Change::None => {}
            Change::Put(mut new) => {
                Arc::make_mut(&mut new).label_new(|data| self.jobs.label(ty, data));
                tx.set(&keys.job(ty, id), &new.encode());
                self.move_index(ty, id, old.as_deref(), Some(&new));
                (self.jobs).move_chunks(tx, ty, id, old.as_deref(), Some(&new));
                *header = Some(new);
            }
            Change::Delete | Change::FinishAndDelete => {
                tx.clear(&keys.job(ty, id));
                self.move_index(ty, id, old.as_deref(), None);
                self.jobs.move_chunks(tx, ty, id, old.as_deref(), None);
                let attempts = old.as_ref().map_or(0, |old| old.attempts);
                if attempts > 0 {
                    tx.clear_range(keys.calls(ty, id, None));
                }
                if attempts > 1 {
                    tx.clear_range(keys.attempts(ty, id));
                }
                *header = None;
            }
        }
        #[cfg(test)]
        if let Some(moves) = self.jobs.moves() {
            let (before, after) = (old.as_deref(), header.as_deref());
            moves.note(tx, self.cx.now_ms, (ty, id), before, after);
        }
        self.move_slots(ty, id, old.as_deref(), header.as_deref(), spent);
        if counted {
            let kind = |header: &Header| (header.state(), header.tag());
            let from = old.as_deref().map(kind);
            let by = deleted.map(|state| (state, from.map_or(0, |(_, tag)| tag)));
            let to = header.as_deref().map(kind);
            // A job deleted when it finishes still counts as finished.
            for (from, to) in [(from, by.or(to)), (by.or(to), to)] {
                self.count(ty, from, to);
            }
        }
        self.tell(ty, id, &tell);
        let held_by = old.as_ref().and_then(|old| old.lock());
        if let (Some(interrupt), Some(lock)) = (interrupt, held_by)
            && let Some(acceptor) = lock.acceptor()
            && !self.cx.planted.is(Bug::CancelLeavesNoNote)
        {
            self.tell(ty, &interrupt.note(lock)?, &[acceptor]);
        }
        Ok(reply)
    }

    fn move_index(&mut self, ty: &JobType, id: &JobId, old: Option<&Header>, new: Option<&Header>) {
        let (from, to) = (old.map(Position::of), new.map(Position::of));
        if from == to {
            return;
        }
        match (&from, old.and_then(Header::sharer)) {
            (None, _) => {}
            (Some(Position::Finished(_)), _)
                if to.is_some() && self.cx.planted.is(Bug::ReviveKeepsFinishedRow) => {}
            // Its last heartbeat, which is cleared then, says what is still to be charged.
            (Some(Position::Active), Some(tenant)) if !self.is_paid(old) => {
                self.sharers.end(ty, id, tenant);
            }
            (Some(from), _) => self.tx.clear(&self.jobs.keys().index(ty, id, from)),
        }
        match to {
            None => {}
            // [`Self::beat`] writes ACTIVITY rows with the heartbeat.
            Some(Position::Active) => {
                if let (Some(_), Some(tenant)) = (old, new.and_then(Header::sharer)) {
                    self.sharers.charge(ty, tenant, START_MS);
                }
            }
            Some(to @ (Position::Finished(_) | Position::Dead(_))) => {
                self.tx.set(&self.jobs.keys().index(ty, id, &to), &[]);
            }
            Some(ref to @ Position::Waiting(ref limit, ..)) => {
                self.limits.wait(ty, limit);
                let since = self.cx.now_ms.to_be_bytes();
                self.tx.set(&self.jobs.keys().index(ty, id, to), &since);
            }
            Some(to) => {
                let mut since_ms = self.cx.now_ms;
                if let Position::Shared(class, tenant, _) = &to {
                    self.sharers.ready(ty, *class, tenant);
                    let due_ms = new.map_or(0, |new| new.due_ms).max(0);
                    since_ms = Some(due_ms)
                        .filter(|ms| *ms > 0)
                        .map_or(since_ms, |ms| ms.min(since_ms));
                }
                let key = self.jobs.keys().index(ty, id, &to);
                self.tx.set(&key, &since_ms.to_be_bytes());
                let soon = match to {
                    Position::Timed(.., due_ms) => due_ms <= self.cx.now_ms.saturating_add(POLL_MS),
                    _ => true,
                };
                if soon {
                    *self.wake.entry(ty.clone()).or_default() += 1;
                }
            }
        }
    }

    /// Whether the tenant has paid for a run that ends now, because it is as short as its start costs.
    fn is_paid(&self, old: Option<&Header>) -> bool {
        let run = old.and_then(|old| old.last.as_ref());
        run.is_some_and(|run| self.cx.now_ms <= run.started_ms.saturating_add(START_MS))
    }

    /// Writes the slots that the job has now, and notes those that it had.
    fn move_slots(
        &mut self,
        ty: &JobType,
        id: &JobId,
        old: Option<&Header>,
        new: Option<&Header>,
        spent: Vec<(Taken, i64)>,
    ) {
        let before = old.map_or(&[][..], Header::taken);
        let after = new.map_or(&[][..], Header::taken);
        for slot in after.iter().filter(|slot| !before.contains(slot)) {
            let free_ms = match new.map(|new| (new.place, new.due_ms)) {
                Some((Place::Timed, due_ms)) => due_ms,
                _ => 0,
            };
            let key = self.jobs.keys().slot(ty, &slot.0, slot.1);
            self.tx.set(&key, &Slot::of(id.clone(), free_ms).encode());
        }
        let is_spent = |slot: &Taken| spent.iter().any(|(other, _)| other == slot);
        let ended = before
            .iter()
            .filter(|slot| !after.contains(slot) && !is_spent(slot));
        let ran = old.is_some_and(|old| old.state() == State::Running);
        let free = if ran { Free::Now } else { Free::AsStored };
        for slot in ended {
            let (ty, slot) = (ty.clone(), slot.clone());
            self.limits.free(Freed { ty, slot, free });
        }
        for (slot, free_ms) in spent {
            // Later jobs of this claim see it.
            let key = self.jobs.keys().slot(ty, &slot.0, slot.1);
            self.tx.set(&key, &Slot::free(free_ms).encode());
            let (ty, free) = (ty.clone(), Free::At(free_ms));
            self.limits.free(Freed { ty, slot, free });
        }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.cx.now_ms
    }

    fn count(&mut self, ty: &JobType, old: Kind, new: Kind) {
        if old != new {
            let key = (ty.clone(), edge(old, new));
            *self.counts.entry(key).or_default() += 1;
        }
    }

    /// Writes the index row of a job that has none, or an undecodable heartbeat.
    pub(crate) fn restore_index(
        &mut self,
        ty: &JobType,
        id: &JobId,
        header: &Header,
        timeout: Duration,
    ) {
        self.move_index(ty, id, None, Some(header));
        if header.state() == State::Running {
            let charged = self.charge(ty, Some(header), None);
            self.beat(ty, id, timeout, charged);
        }
    }

    /// Counts the removal of a job of which only the state is known.
    pub(crate) fn count_removed(&mut self, ty: &JobType, state: State) {
        let key = (ty.clone(), edge(Some((state, 0)), None));
        *self.counts.entry(key).or_default() += 1;
    }

    /// Leaves a note about the job for each notifier or acceptor, and changes the row that it watches.
    fn tell(&mut self, ty: &JobType, id: &JobId, nonces: &[u64]) {
        let keys = self.jobs.keys();
        for nonce in nonces {
            self.tx.set(&keys.note(ty, *nonce, id), &[]);
            if self.told.insert((ty.clone(), *nonce)) {
                let value = stamp_template(self.cx.order.incarnation, &[]);
                (self.tx).set_versionstamped_value(&keys.notifier(ty, *nonce), &value);
            }
        }
    }

    /// Writes the holder's heartbeat, with the timeout that applies from then on, and until when the job's tenant is charged.
    pub(crate) fn beat(
        &self,
        ty: &JobType,
        id: &JobId,
        timeout: Duration,
        charged_ms: Option<i64>,
    ) {
        let key = self.jobs.keys().index(ty, id, &Position::Active);
        let mut rest = [self.cx.now_ms, millis(timeout)]
            .map(i64::to_be_bytes)
            .concat();
        rest.extend(charged_ms.map(i64::to_be_bytes).into_iter().flatten());
        let value = stamp_template(self.cx.order.incarnation, &rest);
        self.tx.set_versionstamped_value(&key, &value);
    }

    /// Records a call of the holder, and drops those that have ended.
    pub(crate) fn remember(&self, job: &Job, op: u64) {
        let keys = self.jobs.keys();
        let forgets = self.cx.planted.is(Bug::CallsForgetOthers);
        for ended in job.run.call(op, self.tx.call(), forgets) {
            self.tx.clear(&keys.call(job, ended));
        }
        // With a stamp, so that a second call in this transaction is not mistaken for a retry of it.
        let value = stamp_template(self.cx.order.incarnation, &[]);
        self.tx
            .set_versionstamped_value(&keys.call(job, op), &value);
    }

    /// The run has ended: drops its calls, except those that may still be retried.
    pub(crate) fn forget(&self, job: &Job) {
        let keys = self.jobs.keys();
        match job.run.end() {
            Ended::All => (self.tx).clear_range(keys.calls(&job.ty, &job.id, Some(job.attempt))),
            Ended::Some(calls) => {
                for ended in calls {
                    self.tx.clear(&keys.call(job, ended));
                }
            }
        }
    }

    /// More jobs of the type are due than this operation takes.
    pub(crate) fn wake_another(&mut self, ty: &JobType) {
        *self.wake.entry(ty.clone()).or_default() += 1;
    }

    /// The caller itself looks at the jobs of the type that have become due so far.
    pub(crate) fn wake_none(&mut self, ty: &JobType) {
        self.wake.remove(ty);
    }

    /// Frees slots, writes counters, and wakes sleepers: up to one for each job that has become due. Returns how many.
    pub(crate) async fn flush(mut self, op: &Op) -> Result<usize> {
        if !self.limits.is_settled() {
            let (jobs, tx) = (self.jobs, self.tx);
            Box::pin(jobs.settle_limits(&mut self, tx, op)).await?;
        }
        if !self.sharers.is_settled() {
            let (jobs, tx) = (self.jobs, self.tx);
            Box::pin(jobs.settle_tenants(&mut self, tx)).await?;
        }
        let row = u16::try_from(op.seed() % u64::from(COUNT_ROWS)).unwrap_or(0);
        for ((ty, edge), times) in self.counts {
            let key = self.jobs.keys().count(&ty, row, edge);
            self.tx.add(&key, times);
        }
        if self.cx.planted.is(Bug::WakesNoSleeper) {
            return Ok(0);
        }
        let mut woken = 0;
        for (ty, jobs) in self.wake {
            woken += self.jobs.wake(self.tx, &ty, jobs.min(WAKE_MAX), op).await?;
        }
        Ok(woken)
    }
}
