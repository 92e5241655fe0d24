//! The activity monitor of one type: recovers the jobs of silent holders.
//!
//! Each turn notes the store's version. An activity row last written before a version that was noted one timeout ago,
//! by this node's monotonic clock, has had no heartbeat for a timeout. So no clocks of two nodes are compared, and a
//! node that takes over a partition uses its own notes. The timeout is the one in the row, which its holder follows:
//! holders learn of a new timeout with their next heartbeat. After a failure to reach the store the notes are
//! discarded, since holders could not reach it either: no job is recovered before a full timeout has passed again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use store::{KeyRange, RangeOptions, Transaction};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::header::{Order, State};
use crate::model::keys::{Position, promised, stamp_of};
use crate::model::machine::{Event, Reply};
use crate::operations::batch::Batch;
use crate::operations::leases::{Lease, Leases, buckets};
use crate::services::duties::{Duty, Held, Observe, perform};
use crate::services::limits::Waiting;
use crate::services::sweep::{Bells, Expiry};
use crate::testing::planted::Bug;
use crate::{
    Error, JobId, JobInfo, JobType, Jobs, Op, Options, Result, TypeConfig, Verdict, telemetry,
};

/// Rows per transaction of a scan.
const SCAN_ROWS: usize = 1_000;
/// Jobs that one transaction recovers.
const STALL_JOBS: usize = 100;
/// Maximum interval of turns, for types with long timeouts.
const TURN_MAX: Duration = Duration::from_secs(20);

/// Decides about jobs whose holder went silent.
pub trait StallHook: Send + Sync {
    /// Decides about one job, in the transaction that recovers it; other writes there are committed with it. An error
    /// leaves the job unchanged until the next turn.
    fn stalled(
        &self,
        tx: &Transaction,
        ty: &JobType,
        job: &JobInfo,
    ) -> impl Future<Output = Result<Verdict>> + Send;
}

/// Leaves the decision to the type's policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByPolicy;

impl StallHook for ByPolicy {
    async fn stalled(&self, _: &Transaction, _: &JobType, _: &JobInfo) -> Result<Verdict> {
        Ok(Verdict::Policy)
    }
}

/// Performs the duties of one type on one node until the token is cancelled.
pub(crate) async fn monitor_type<H: StallHook>(
    jobs: &Jobs,
    ty: &JobType,
    hook: &H,
    options: &Options,
    token: &CancellationToken,
) {
    let recovery = TypeMonitor::new(jobs, ty, hook, options);
    let leased = recovery.held.subscribe();
    let observe = Observe {
        jobs,
        ty,
        leased: leased.clone(),
        observed: None,
    };
    let waiting = Waiting::new(jobs, ty, leased.clone());
    tokio::join!(
        perform(recovery, jobs, ty, token),
        perform(Expiry::new(jobs, ty, leased.clone()), jobs, ty, token),
        perform(Bells::new(jobs, ty, leased.clone()), jobs, ty, token),
        perform(waiting, jobs, ty, token),
        perform(observe, jobs, ty, token),
    );
}

/// Recovery, which also renews the leases for the other duties.
pub(crate) struct TypeMonitor<'a, H> {
    jobs: &'a Jobs,
    ty: &'a JobType,
    hook: &'a H,
    options: &'a Options,
    leases: Leases,
    held: watch::Sender<Held>,
    /// Turns of this node with their versions, oldest first.
    looked: VecDeque<(Instant, Order)>,
    /// The longest timeout that a holder follows.
    longest: Duration,
    batch: Batch,
}

impl<H: StallHook> Duty for TypeMonitor<'_, H> {
    const NAME: &'static str = "recovery";

    async fn turn(&mut self, token: &CancellationToken) -> Result<Duration> {
        let Some(config) = self.jobs.type_config(self.ty).await? else {
            // The task that started this monitor is about to learn it, too.
            return Ok(TURN_MAX);
        };
        let timeout = Duration::from_millis(config.timeout_ms);
        let turn = (timeout / 3).min(TURN_MAX);
        let jitter = self.options.monitor_jitter_max().min(timeout / 6);
        let expiry = turn * 2 + jitter * 2;
        let order = self.leases.turn(self.jobs, self.ty, expiry).await?;
        self.held.send_replace(Held {
            leases: self.leases.held().to_vec(),
            order: Some(order),
            ahead_ms: self.leases.ahead_ms(self.jobs.clock().now_ms()),
        });
        self.looked.push_back((Instant::now(), order));
        self.drop_old_turns(timeout);
        for lease in self.leases.held().to_vec() {
            if token.is_cancelled() {
                break;
            }
            self.sweep_activity(&lease, &config).await?;
        }
        Ok(turn + self.jobs.entropy().up_to(jitter))
    }

    /// Holders may not have reached the store either: earlier notes say nothing about them.
    fn failed(&mut self) {
        self.looked.clear();
    }
}

impl<'a, H: StallHook> TypeMonitor<'a, H> {
    pub(crate) fn new(jobs: &'a Jobs, ty: &'a JobType, hook: &'a H, options: &'a Options) -> Self {
        Self {
            jobs,
            ty,
            hook,
            options,
            leases: Leases::new(jobs.entropy().bits()),
            held: watch::Sender::default(),
            looked: VecDeque::new(),
            longest: Duration::ZERO,
            batch: Batch::new(STALL_JOBS),
        }
    }

    /// Drops versions older than any holder's timeout.
    fn drop_old_turns(&mut self, timeout: Duration) {
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

    /// Recovers the jobs of a partition whose holders have been silent for longer than their timeout.
    async fn sweep_activity(&mut self, lease: &Lease, config: &TypeConfig) -> Result<()> {
        let keys = self.jobs.keys();
        let of_type = Duration::from_millis(config.timeout_ms);
        let mut since: BTreeMap<Duration, Option<Order>> = BTreeMap::new();
        let mut ranges: Vec<KeyRange> = buckets(lease.partition)
            .map(|bucket| keys.active(self.ty, bucket))
            .collect();
        while !ranges.is_empty() {
            let scanned = &ranges;
            let rows = (self.jobs)
                .read("scan_activity", |tx| async move {
                    let rows = scanned.iter().map(|range| {
                        let options = RangeOptions::limit(SCAN_ROWS);
                        tx.snapshot().get_range(range.clone(), options).collect()
                    });
                    Ok(try_join_all(rows).await?)
                })
                .await?;
            let mut silent: BTreeMap<Order, Vec<JobId>> = BTreeMap::new();
            for row in rows.iter().flatten() {
                let undecodable = |error: &Error| telemetry::undecodable(self.ty, &row.key, error);
                let id = keys.position(self.ty, State::Running, &row.key);
                let Ok((_, id)) = id.inspect_err(undecodable) else {
                    continue;
                };
                let Ok(beat) = Beat::decode(&row.value).inspect_err(undecodable) else {
                    silent.entry(Order::FIRST).or_default().push(id);
                    continue;
                };
                let timeout = if self.planted(Bug::TimeoutOfType) {
                    of_type
                } else {
                    beat.promised
                };
                self.longest = self.longest.max(timeout);
                let since = since.entry(timeout);
                let before = *since.or_insert_with(|| self.silent_since(timeout));
                if let Some(before) = before.filter(|before| beat.at <= *before) {
                    silent.entry(before).or_default().push(id);
                }
            }
            for (before, silent) in silent {
                if !self.stall(lease, &silent, before, config).await? {
                    return Ok(());
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

    /// Recovers jobs whose last heartbeat precedes a version. False when the lease is lost; an error when the store
    /// could not be reached. Any other failure leaves a job to the next turn.
    pub(crate) async fn stall(
        &self,
        lease: &Lease,
        ids: &[JobId],
        before: Order,
        config: &TypeConfig,
    ) -> Result<bool> {
        let op = &self.jobs.op();
        let (mut held, mut failed) = (true, None);
        let work = |tx: Transaction, ids| async move {
            if !lease.holds(self.jobs, &tx, self.ty).await? {
                return Ok(None);
            }
            self.stall_in(&tx, ids, before, config, op).await.map(Some)
        };
        let done = |ids: &[JobId], stalled: Result<Option<(u64, u64)>>| match stalled {
            Ok(Some((rerun, given_up))) => telemetry::stalled(self.ty, rerun, given_up),
            Ok(None) => held = false,
            Err(error) if error.is_retryable() => failed = Some(error),
            Err(error) => {
                tracing::error!(job.ty = %self.ty, job.id = ?ids, error = %error.chain(), "cannot recover a job");
            }
        };
        (self.batch)
            .each(self.jobs, "stall".into(), ids, work, done)
            .await;
        failed.map_or(Ok(held), Err)
    }

    /// The number of jobs to run again, and of jobs given up. An undecodable heartbeat is replaced by a new one: a live
    /// holder keeps its job, and that of a silent one is recovered a timeout later.
    async fn stall_in(
        &self,
        tx: &Transaction,
        ids: &[JobId],
        before: Order,
        config: &TypeConfig,
        op: &Op,
    ) -> Result<(u64, u64)> {
        let (jobs, ty) = (self.jobs, self.ty);
        let read = ids.iter().map(|id| async move {
            let key = jobs.keys().index(ty, id, &Position::Active);
            let (beat, header) = try_join(
                async { Ok(tx.get(&key).await?) },
                jobs.try_header(tx, ty, id),
            )
            .await?;
            Ok::<_, Error>((id, key, beat, header))
        });
        let (mut rerun, mut given_up) = (0, 0);
        let read = try_join_all(read).await?;
        let mut effects = jobs.effects(tx, op.now_ms).await?;
        for (id, key, beat, header) in read {
            let Some(beat) = beat.as_ref().map(Beat::decode) else {
                continue;
            };
            let looks = !self.planted(Bug::StallWithoutReading);
            if beat.as_ref().is_ok_and(|beat| beat.at > before && looks) {
                continue;
            }
            let mut header = match header {
                Ok(header) => header,
                Err(error) => {
                    jobs.quarantine(tx, ty, id, (State::Running, &key), &error);
                    continue;
                }
            };
            let running = header.as_ref().filter(|h| h.state() == State::Running);
            let Some(running) = running else {
                // A row without a running job; this crate leaves none.
                tx.clear(&key);
                continue;
            };
            if beat.is_err() {
                let timeout = Duration::from_millis(config.timeout_ms);
                effects.restore_index(ty, id, running, timeout);
                continue;
            }
            let info = JobInfo::of(id.clone(), running);
            let event = Event::Stall {
                verdict: self.hook.stalled(tx, ty, &info).await?,
                policy: config.stalls,
            };
            match effects.run(ty, id, &mut header, event)? {
                Reply::Done { again: true } => rerun += 1,
                _ => given_up += 1,
            }
        }
        effects.flush(op).await?;
        Ok((rerun, given_up))
    }

    fn planted(&self, bug: Bug) -> bool {
        self.jobs.planted().is(bug)
    }
}

/// The value of an activity row.
struct Beat {
    at: Order,
    /// The timeout that the holder follows.
    promised: Duration,
}

impl Beat {
    fn decode(value: &Bytes) -> Result<Self> {
        Ok(Self {
            at: stamp_of(value)?,
            promised: promised(value)?,
        })
    }
}
