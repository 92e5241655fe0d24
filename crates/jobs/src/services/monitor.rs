//! The activity monitor of one type: brings back the jobs of holders that went silent.
//!
//! At each turn a node notes the version at which it looked. An activity row that was last written
//! before a version noted one timeout ago, by this node's monotonic clock, has not had a heart-beat
//! for a timeout: no two clocks are compared, and whoever takes over a partition has notes of its
//! own. The timeout is the one that the row says its holder keeps to: when that of the type is changed,
//! holders hear of it with their next heart-beat. After a failure to reach the store the notes are thrown away, since holders could not reach
//! it either: nobody is judged before a full timeout has passed again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::future::try_join_all;
use store::{Call, KeyRange, RangeOptions, Transaction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::header::{Order, State};
use crate::model::keys::{Position, promised, stamp_of};
use crate::model::machine::{Event, Reply};
use crate::operations::leases::{Lease, Leases, buckets};
use crate::services::pause::{Pause, sleep};
use crate::services::sweep::Sweeper;
use crate::testing::planted::Bug;
use crate::{
    Error, JobId, JobInfo, JobType, Jobs, Options, Result, TypeConfig, Verdict, telemetry,
};

/// How many rows one transaction of a scan reads.
const SCAN_ROWS: usize = 1_000;
/// How many jobs one transaction brings back.
const STALL_JOBS: usize = 100;
/// Monitors of types with long timeouts look at least this often.
const TURN_MAX: Duration = Duration::from_secs(20);
/// How often metrics are told how the jobs stand.
pub(crate) const OBSERVE_EVERY: Duration = Duration::from_secs(15);

/// What the owner of a type has to say about jobs whose holder went silent.
pub trait StallHook: Send + Sync {
    /// Decides about one job, in the transaction that brings it back; what is written there is
    /// written with it. An error leaves the job as it is, until the next turn.
    fn stalled(
        &self,
        tx: &Transaction,
        ty: &JobType,
        job: &JobInfo,
    ) -> impl Future<Output = Result<Verdict>> + Send;
}

/// The type's policy decides.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByPolicy;

impl StallHook for ByPolicy {
    async fn stalled(&self, _: &Transaction, _: &JobType, _: &JobInfo) -> Result<Verdict> {
        Ok(Verdict::Policy)
    }
}

/// The monitor of one type on one node.
pub(crate) struct TypeMonitor<'a, H> {
    jobs: &'a Jobs,
    ty: &'a JobType,
    hook: &'a H,
    options: &'a Options,
    leases: Leases,
    /// When this node looked, and at which version, oldest first.
    looked: VecDeque<(Instant, Order)>,
    /// The longest timeout that a holder keeps to.
    longest: Duration,
    sweeper: Sweeper,
    observed: Option<Instant>,
}

impl<'a, H: StallHook> TypeMonitor<'a, H> {
    pub(crate) fn new(jobs: &'a Jobs, ty: &'a JobType, hook: &'a H, options: &'a Options) -> Self {
        Self {
            jobs,
            ty,
            hook,
            options,
            leases: Leases::new(jobs.entropy().bits()),
            looked: VecDeque::new(),
            longest: Duration::ZERO,
            sweeper: Sweeper::default(),
            observed: None,
        }
    }

    pub(crate) async fn run(mut self, token: &CancellationToken) {
        let mut pause = Pause::new(self.jobs.entropy(), self.jobs.planted());
        loop {
            let wait = match self.turn(token).await {
                Ok(wait) => {
                    pause.reset();
                    wait
                }
                Err(error) => {
                    tracing::warn!(job.ty = %self.ty, error = %error.chain(), "watch over running jobs");
                    self.looked.clear();
                    pause.after_error()
                }
            };
            if !sleep(wait, token).await {
                return;
            }
        }
    }

    /// Looks once; returns how long to wait for the next turn.
    async fn turn(&mut self, token: &CancellationToken) -> Result<Duration> {
        let Some(config) = self.jobs.type_config(self.ty).await? else {
            // Whoever started this monitor is about to hear of it.
            return Ok(TURN_MAX);
        };
        let timeout = Duration::from_millis(config.timeout_ms);
        let turn = (timeout / 3).min(TURN_MAX);
        let jitter = self.options.monitor_jitter_max().min(timeout / 6);
        let expiry = turn * 2 + jitter * 2;
        let order = self.leases.turn(self.jobs, self.ty, expiry).await?;
        self.looked.push_back((Instant::now(), order));
        self.forget_looks(timeout);
        for lease in self.leases.held().to_vec() {
            if token.is_cancelled() {
                break;
            }
            self.sweep_activity(&lease, &config).await?;
            let (sweeper, ty) = (&mut self.sweeper, self.ty);
            sweeper
                .forget_expired(self.jobs, ty, &lease, timeout)
                .await?;
            sweeper.clear_bells(self.jobs, ty, &lease, order).await?;
        }
        if (self.observed).is_none_or(|last| last.elapsed() >= OBSERVE_EVERY) {
            self.jobs.observe(self.ty).await?;
            self.observed = Some(Instant::now());
        }
        Ok(turn + self.jobs.entropy().up_to(jitter))
    }

    /// Forgets versions that no holder is judged by any more.
    fn forget_looks(&mut self, timeout: Duration) {
        let longest = std::mem::take(&mut self.longest).max(timeout);
        while (self.looked.get(1)).is_some_and(|(at, _)| at.elapsed() >= longest) {
            self.looked.pop_front();
        }
    }

    /// The newest version noted at least a timeout ago.
    fn silent_since(&self, timeout: Duration) -> Option<Order> {
        let old = |(at, _): &&(Instant, Order)| at.elapsed() >= timeout;
        self.looked.iter().rev().find(old).map(|(_, order)| *order)
    }

    /// Brings back the jobs of a partition whose holders have been silent for longer than they said.
    async fn sweep_activity(&mut self, lease: &Lease, config: &TypeConfig) -> Result<()> {
        let of_type = Duration::from_millis(config.timeout_ms);
        let mut since: BTreeMap<Duration, Option<Order>> = BTreeMap::new();
        let mut ranges: Vec<KeyRange> = buckets(lease.partition)
            .map(|bucket| self.jobs.keys().active(self.ty, bucket))
            .collect();
        while !ranges.is_empty() {
            let scanned = &ranges;
            let rows = (self.jobs)
                .read(Call::batch("scan_activity"), |tx| async move {
                    let rows = scanned.iter().map(|range| {
                        let options = RangeOptions::limit(SCAN_ROWS);
                        tx.snapshot().get_range(range.clone(), options).collect()
                    });
                    Ok(try_join_all(rows).await?)
                })
                .await?;
            let mut silent: BTreeMap<Order, Vec<JobId>> = BTreeMap::new();
            for row in rows.iter().flatten() {
                let timeout = if self.planted(Bug::JudgedByType) {
                    of_type
                } else {
                    promised(&row.value)?
                };
                self.longest = self.longest.max(timeout);
                let since = since.entry(timeout);
                let before = *since.or_insert_with(|| self.silent_since(timeout));
                let written = stamp_of(&row.value)?;
                if let Some(before) = before.filter(|before| written <= *before) {
                    let (_, id) = (self.jobs.keys()).position(self.ty, State::Running, &row.key)?;
                    silent.entry(before).or_default().push(id);
                }
            }
            for (before, silent) in silent {
                for batch in silent.chunks(STALL_JOBS) {
                    if !self.bring_back(lease, batch, before, config).await? {
                        return Ok(());
                    }
                }
            }
            ranges = (rows.iter().zip(&ranges))
                .filter(|(rows, _)| rows.len() == SCAN_ROWS)
                .filter_map(|(rows, range)| {
                    let last = rows.last()?;
                    let begin = [&*last.key, &[0]].concat();
                    Some(KeyRange::new(begin, range.end.clone()))
                })
                .collect();
        }
        Ok(())
    }

    /// Brings back some jobs in one transaction, or each in its own if that cannot be done. False
    /// when the lease is lost.
    async fn bring_back(
        &self,
        lease: &Lease,
        ids: &[JobId],
        before: Order,
        config: &TypeConfig,
    ) -> Result<bool> {
        match self.stall(lease, ids, before, config).await {
            Err(error) if !error.is_retryable() && ids.len() > 1 => {
                for id in ids {
                    let one = std::slice::from_ref(id);
                    match self.stall(lease, one, before, config).await {
                        Ok(true) => {}
                        Err(error) if !error.is_retryable() => {
                            tracing::error!(job.ty = %self.ty, job.id = %id, error = %error.chain(), "bring back a job");
                        }
                        other => return other,
                    }
                }
                Ok(true)
            }
            Err(error) if !error.is_retryable() => {
                tracing::error!(job.ty = %self.ty, job.id = ?ids, error = %error.chain(), "bring back a job");
                Ok(true)
            }
            other => other,
        }
    }

    pub(crate) async fn stall(
        &self,
        lease: &Lease,
        ids: &[JobId],
        before: Order,
        config: &TypeConfig,
    ) -> Result<bool> {
        let op = self.jobs.op();
        let stalled = (self.jobs.store())
            .transact(Call::batch("stall"), |tx| async move {
                if !lease.holds(self.jobs, &tx, self.ty).await? {
                    return Ok(None);
                }
                let (mut rerun, mut given_up) = (0, 0);
                let mut effects = self.jobs.effects(&tx, op.now_ms).await?;
                for id in ids {
                    let key = self.jobs.keys().index(self.ty, id, Position::Active);
                    let Some(beat) = tx.get(&key).await? else {
                        continue;
                    };
                    if stamp_of(&beat)? > before && !self.planted(Bug::StallWithoutLooking) {
                        continue;
                    }
                    let mut header = self.jobs.header(&tx, self.ty, id).await?;
                    let running = header.as_ref().filter(|h| h.state() == State::Running);
                    let Some(running) = running else {
                        // A row that no running job stands behind: nothing here leaves one.
                        tx.clear(&key);
                        continue;
                    };
                    let info = JobInfo::of(id.clone(), running);
                    let event = Event::Stall {
                        verdict: self.hook.stalled(&tx, self.ty, &info).await?,
                        policy: config.stalls,
                    };
                    match effects.run(self.ty, id, &mut header, event)? {
                        Reply::Done { again: true } => rerun += 1,
                        _ => given_up += 1,
                    }
                }
                effects.flush(&op).await?;
                Ok::<_, Error>(Some((rerun, given_up)))
            })
            .await?;
        if let Some((rerun, given_up)) = stalled {
            telemetry::stalled(self.ty, rerun, given_up);
        }
        Ok(stalled.is_some())
    }

    fn planted(&self, bug: Bug) -> bool {
        self.jobs.planted().is(bug)
    }
}
