//! Idle jobs: caught up, without permit and engine until their source changes.
//!
//! An idle job keeps its holder and its heartbeats. It costs its data and a listener, but no connection. When its
//! source changes, it takes a permit and runs from its checkpoint, as it would on another node. If permits are scarce, it
//! goes back to the queue, where tenants take turns.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use couch::Seq;
use jobs::{Limits, millis};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{Instrument as _, Span};

use super::end::End;
use super::{Driven, Servers, Settled, Work};
use crate::data::JobData;
use crate::fault::ServiceError;
use crate::idle::ChangeListener;
use crate::permits::Permit;
use crate::starts::StartPermit;
use crate::testing::{self, Bug};
use crate::traces;
use replication::engine::{self, Ahead, Phase, Progress, Run};
use replication::params::{Filter, Replication};

/// Even without a change a job checks its source this often, at random within the second half.
const CHECK_PAUSE: Duration = Duration::from_hours(1);

/// Delay before a source is checked again after it reported more changes than it then returned.
const RECHECK_PAUSE: Duration = Duration::from_mins(1);

/// Counts a job as idle while it lives.
struct Parking<'a>(&'a Work<'a>);

impl<'a> Parking<'a> {
    fn begin(work: &'a Work<'a>) -> Self {
        work.stops.shown.set_behind(None);
        work.stops.shown.parked.store(true, Ordering::Relaxed);
        // It uses nothing that others have shares of.
        work.accepted.job.set_idle(true);
        work.runner.parked.fetch_add(1, Ordering::Relaxed);
        Self(work)
    }
}

impl Drop for Parking<'_> {
    fn drop(&mut self) {
        self.0.stops.shown.begin_running();
        self.0.stops.shown.parked.store(false, Ordering::Relaxed);
        self.0.accepted.job.set_idle(false);
        self.0.runner.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The progress of a run that has caught up and waits for changes: what its filter left out is not pending.
fn resting(last: &Progress) -> Progress {
    Progress {
        phase: Phase::CaughtUp,
        changes_pending: Some(0),
        behind_since: None,
        ..last.clone()
    }
}

/// The end of a run that may sleep now. Without a sequence to compare, there is more to copy, and the job waits for its due
/// time.
fn sleeping_end(end: End, last: &Progress, data: &JobData) -> End {
    let has_more = (data.asleep.as_ref()).is_some_and(|asleep| asleep.wake.seq.is_null());
    let last = match end {
        End::Sleep { .. } if has_more => Progress {
            changes_pending: None,
            ..last.clone()
        },
        End::Sleep { .. } => resting(last),
        _ => last.clone(),
    };
    end.with(last)
}

impl Work<'_> {
    /// Alternates between running and waiting, until there is a reason to end.
    pub(super) async fn keep_running(
        &self,
        mut run: Run,
        data: &mut JobData,
        (permit, mut start_permit): (Permit, StartPermit),
        mut asked: Option<String>,
    ) -> End {
        let mut permit = Some(permit);
        let mut checked_through = None;
        loop {
            // Boxed, so that an idle job keeps no memory for its run.
            let span = self.span(&run, asked.take().as_deref());
            let driven = Box::pin(self.drive(run.clone(), data, start_permit)).instrument(span);
            let (last, listener) = match driven.await {
                Driven::Ended(end) => return self.triggered_end(&run, end, data).await,
                Driven::Idle(last, Settled::Listens(listener)) => (last, listener),
                Driven::Idle(last, Settled::Followed) => {
                    if let Some(end) = self.sleep_after(&run, &last, data).await {
                        return sleeping_end(end, &last, data);
                    }
                    start_permit = Box::pin(self.start_permit(&run.replication)).await;
                    self.begin_again(&mut run, &last);
                    continue;
                }
            };
            let parking = Parking::begin(self);
            permit.take();
            let parked =
                Box::pin(self.parked(&run, &last, listener, &mut checked_through, data)).await;
            drop(parking);
            match parked {
                Ok(again) => {
                    permit = Some(again.0);
                    start_permit = again.1;
                }
                Err(end) => return end.with(*last),
            }
            let id_changed = start_permit.during(Box::pin(self.id_changed(&run)));
            if let Some(end) = id_changed.await {
                return end.with(*last);
            }
            self.begin_again(&mut run, &last);
        }
    }

    fn begin_again(&self, run: &mut Run, last: &Progress) {
        (run.stats, run.resume) = (last.stats, last.resume.clone());
        (run.failures, run.last_progress) = (Arc::clone(&last.failures), last.last_progress);
        run.session_id = format!("{:032x}", self.runner.replications.entropy().bits());
    }

    /// The end of a run whose source is followed; `None` if there is more to copy.
    async fn sleep_after(&self, run: &Run, last: &Progress, data: &mut JobData) -> Option<End> {
        self.heal(data);
        let through = last.through_seq.as_ref();
        match Box::pin(self.sleep_idle(&run.replication, through, data)).await {
            Ok(end) => end,
            Err(error) if error.is_halt() => Some(End::Halted),
            Err(error) => Some(self.stop_end_after(&error)),
        }
    }

    /// The end of a run, or its sleep if a trigger repeats it.
    async fn triggered_end(&self, run: &Run, end: End, data: &mut JobData) -> End {
        let (End::Complete { progress, .. }, Some(trigger)) =
            (&end, run.replication.options.trigger)
        else {
            return end;
        };
        if data.remote().is_some_and(|remote| remote.copy_security) {
            let of = (&self.runner.network, &self.runner.settings());
            let copied = tokio::select! {
                biased;
                () = self.stopped() => return self.stop_end().with((**progress).clone()),
                copied = Box::pin(engine::copy_security(of, &run.replication)) => copied,
            };
            if let Err(error) = copied {
                return End::of_error(&error).with((**progress).clone());
            }
        }
        let zero = Seq::zero();
        let through = progress.through_seq.as_ref().unwrap_or(&zero);
        let replication = &run.replication;
        match Box::pin(self.sleep_until_triggered(replication, &trigger, through, data)).await {
            Ok(end) => sleeping_end(end, progress, data),
            Err(error) if error.is_halt() => End::Halted,
            Err(error) => self.stop_end_after(&error),
        }
    }

    /// The store failed at the end of a run: the job runs again soon.
    fn stop_end_after(&self, error: &ServiceError) -> End {
        let id = &self.accepted.job.id;
        tracing::warn!(job.id = %id, error = %wire::chain(error), "cannot put a replication to sleep");
        End::Reschedule {
            due_ms: self.runner.now_ms() + 1000,
        }
    }

    /// The span of one run of the engine, a child of the span that requested it.
    fn span(&self, run: &Run, asked: Option<&str>) -> Span {
        let (job, replication) = (&self.accepted.job.id, &run.replication);
        let span = tracing::info_span!(
            "run",
            job.id = %job,
            replication.id = %run.identity.replication.as_str(),
            source = %replication.source,
            target = %replication.target,
        );
        if let Some(asked) = asked {
            traces::follow(&span, asked);
        }
        span
    }

    /// Waits until a run has had nothing to do for a while, less if few permits are free, and until a listener
    /// watches its source.
    pub(super) async fn settled(
        &self,
        replication: &Replication,
        unhealthy_since: Option<i64>,
        mut progress: watch::Receiver<Progress>,
    ) -> Settled {
        let options = &replication.options;
        // Without a checkpoint the next run would start over.
        if !options.continuous || !options.use_checkpoints {
            return std::future::pending().await;
        }
        loop {
            let idle = |now: &Progress| now.phase == Phase::CaughtUp;
            if progress.wait_for(idle).await.is_err() {
                return std::future::pending().await;
            }
            let listener = async {
                let pause_s = self.runner.replications.options().park_after_sec;
                if pause_s == 0 {
                    return std::future::pending().await;
                }
                let longest = Duration::from_secs(pause_s);
                self.runner.permits.patience(longest).await;
                if self.may_sleep(replication, unhealthy_since).await {
                    return Settled::Followed;
                }
                match self.runner.sources.listen(&replication.source).await {
                    Some(listener) => Settled::Listens(listener),
                    None => std::future::pending().await,
                }
            };
            let mut busy = progress.clone();
            tokio::select! {
                biased;
                _ = busy.wait_for(|now| now.phase != Phase::CaughtUp) => {}
                listener = listener => return listener,
            }
        }
    }

    /// Whether the job may sleep in the store: its server is followed, and no earlier failure of it counts any more.
    async fn may_sleep(&self, replication: &Replication, unhealthy_since: Option<i64>) -> bool {
        let Some((server, _)) = replication.source.server() else {
            return false;
        };
        if !self
            .runner
            .replications
            .is_followed(server.url_text())
            .await
        {
            return false;
        }
        if let Some(since) = unhealthy_since {
            let threshold_s = self.runner.replications.options().health_threshold_sec;
            let now = self.runner.now_ms().div_euclid(1000);
            let lasted = u64::try_from(now.saturating_sub(since)).unwrap_or(0);
            sleep(Duration::from_secs(threshold_s.saturating_sub(lasted) + 1)).await;
        }
        true
    }

    /// Waits until the source has changed, and for a start permit.
    async fn parked(
        &self,
        run: &Run,
        last: &Progress,
        listener: ChangeListener,
        checked_through: &mut Option<Seq>,
        data: &mut JobData,
    ) -> Result<(Permit, StartPermit), End> {
        let waits = resting(last);
        let changed = async {
            let pause = CHECK_PAUSE / 2 + self.runner.replications.entropy().up_to(CHECK_PAUSE / 2);
            let shown = async {
                self.release_limits().await;
                let servers = Servers::of(&self.runner.network, &run.replication);
                Box::pin(self.show_idle(&waits, servers, data)).await;
                std::future::pending::<()>().await;
            };
            let asked = tokio::select! {
                biased;
                () = listener.changed(), if !testing::has(Bug::MissesChangesWhenIdle) => false,
                () = sleep(pause) => false,
                () = self.unseen_changes(run, last, checked_through) => true,
                () = shown => false,
            };
            let Some(permit) = self.runner.permits.take_free() else {
                let through = last.through_seq.as_ref().filter(|_| asked);
                let through = through.map(|seq| seq.as_json().into());
                // The last run was for the same changes, which the source then did not return.
                let due_ms = if asked && data.asked_through == through {
                    self.runner.now_ms().saturating_add(millis(RECHECK_PAUSE))
                } else {
                    0
                };
                data.asked_through = through;
                return Err(End::Reschedule { due_ms });
            };
            let mut start_permit = Box::pin(self.start_permit(&run.replication)).await;
            let retaken = start_permit.during(self.retake_limits(data)).await;
            retaken.map(|()| (permit, start_permit))
        };
        tokio::select! {
            biased;
            () = self.stopped() => Err(self.stop_end()),
            again = changed => again,
        }
    }

    /// Lets others have its target and its server while it only listens, even if no limit applies now: the settings may
    /// change.
    async fn release_limits(&self) {
        let replications = &self.runner.replications;
        if self.accepted.limits == Limits::default() {
            return;
        }
        while let Err(error) = replications.0.jobs.release_limits(&self.accepted.job).await {
            if matches!(error, jobs::Error::Halt) {
                return self.stops.lost.cancel();
            }
            let id = &self.accepted.job.id;
            tracing::warn!(job.id = %id, error = %wire::chain(&error), "cannot give back the limits of an idle job");
            sleep(Duration::from_secs(5)).await;
        }
    }

    /// Takes them again. If others have them now, or the settings limit more than they did, the job waits for its turn in
    /// the queue.
    async fn retake_limits(&self, data: &JobData) -> Result<(), End> {
        let (replications, limits) = (&self.runner.replications, &self.accepted.limits);
        if replications.options().lacks_limits(limits, data) {
            return Err(End::Reschedule { due_ms: 0 });
        }
        if *limits == Limits::default() {
            return Ok(());
        }
        match replications.0.jobs.retake_limits(&self.accepted.job).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(End::Reschedule { due_ms: 0 }),
            Err(jobs::Error::Halt) => Err(End::Halted),
            Err(error) => {
                let id = &self.accepted.job.id;
                tracing::warn!(job.id = %id, error = %wire::chain(&error), "cannot take the limits of an idle job again");
                Err(End::Reschedule { due_ms: 0 })
            }
        }
    }

    /// Completes if the source has changes that the run had not seen when it stopped, else never: the update feed may
    /// have reported them before the listener was armed.
    async fn unseen_changes(&self, run: &Run, last: &Progress, checked_through: &mut Option<Seq>) {
        if let Some(through) = &last.through_seq {
            if checked_through.as_ref() == Some(through) {
                sleep(RECHECK_PAUSE).await;
            }
            let of = (&run.network, &run.settings);
            let ahead = Box::pin(engine::ahead(of, &run.replication, through, 1));
            if ahead.await == Ahead::More {
                *checked_through = Some(through.clone());
                return;
            }
            *checked_through = None;
        }
        std::future::pending::<()>().await;
    }

    /// Shows that the job is idle and whether its servers respond, and clears its errors once it is healthy.
    async fn show_idle(&self, waits: &Progress, mut servers: Servers, data: &mut JobData) {
        let mut is_new = self.heal(data) | !std::mem::replace(&mut data.idle, true);
        is_new |= data.behind.take().is_some();
        loop {
            let outage = servers.outage();
            is_new |= data.unreachable != outage;
            data.unreachable = outage;
            match self.save_progress(waits, is_new.then_some(&*data)).await {
                Ok(()) if data.error_count == 0 => {
                    is_new = false;
                    servers.changed().await;
                }
                Ok(()) => {
                    let threshold_s = self.runner.replications.options().health_threshold_sec;
                    let lasted = sleep(Duration::from_secs(threshold_s));
                    tokio::select! {
                        () = lasted => {}
                        () = servers.changed() => {}
                    }
                    is_new = self.heal(data);
                }
                Err(error) if error.is_halt() => return self.stops.lost.cancel(),
                Err(error) => {
                    let id = &self.accepted.job.id;
                    tracing::warn!(job.id = %id, error = %wire::chain(&error), "cannot save the state of an idle job");
                    sleep(Duration::from_secs(5)).await;
                }
            }
        }
    }

    /// The filter function may have changed with the source, and the replication id with it.
    async fn id_changed(&self, run: &Run) -> Option<End> {
        if !matches!(run.replication.options.filter, Filter::User { .. }) {
            return None;
        }
        let service = &self.runner.replications.0.service;
        let now = engine::identify(&run.replication, service, &run.network, &run.settings);
        match now.await {
            Ok((identity, _)) => (identity != run.identity).then(|| self.another_filter()),
            Err(error) => Some(End::of_error(&error)),
        }
    }
}
