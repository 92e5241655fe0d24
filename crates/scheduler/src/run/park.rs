//! Jobs that have caught up: they give their seat and their engine away until their source has changed.
//!
//! Such a job is still this node's, and heart-beats go on. It costs its data, a place in the line of those who listen, and
//! no connection. As soon as it hears of a change it takes a seat and runs from its checkpoint, as it would on another node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use couch::Seq;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{Instrument as _, Span};

use super::end::End;
use super::{Driven, Work};
use crate::data::JobData;
use crate::idle::Ear;
use crate::slots::Seat;
use crate::starts::Turn;
use crate::traces;
use crate::witness::{self, Bug};
use replication::engine::{self, Phase, Progress, Run};
use replication::params::{Filter, Replication};

/// Even who has heard nothing looks now and then, half of it or more.
const LOOK_PAUSE: Duration = Duration::from_hours(1);

/// A source that says again that it has more than it has told is asked so much later.
const ASK_PAUSE: Duration = Duration::from_mins(1);

/// While it lives a job is counted among those that wait for changes.
struct Parking<'a>(&'a Work<'a>);

impl<'a> Parking<'a> {
    fn begin(work: &'a Work<'a>) -> Self {
        work.stops.shown.set_behind(None);
        work.stops.shown.parked.store(true, Ordering::Relaxed);
        work.runner.parked.fetch_add(1, Ordering::Relaxed);
        Self(work)
    }
}

impl Drop for Parking<'_> {
    fn drop(&mut self) {
        self.0.stops.shown.parked.store(false, Ordering::Relaxed);
        self.0.runner.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Work<'_> {
    /// Runs and waits in turns, until there is a reason to end.
    pub(super) async fn keep_running(
        &self,
        mut run: Run,
        data: &mut JobData,
        (seat, mut turn): (Seat, Turn),
        mut asked: Option<String>,
    ) -> End {
        let mut seat = Some(seat);
        let mut untold = None;
        loop {
            // Boxed, so that a job that waits does not keep room for what it did before.
            let span = self.span(&run, asked.take().as_deref());
            let driven = Box::pin(self.drive(run.clone(), data, turn)).instrument(span);
            let (last, ear) = match driven.await {
                Driven::Ended(end) => return end,
                Driven::Idle(last, ear) => (last, ear),
            };
            let parking = Parking::begin(self);
            seat.take();
            let parked = Box::pin(self.parked(&run, &last, ear, &mut untold, data)).await;
            drop(parking);
            match parked {
                Ok(again) => {
                    seat = Some(again.0);
                    turn = again.1;
                }
                Err(end) => return end.with(*last),
            }
            if let Some(end) = Box::pin(self.renamed(&run)).await {
                return end.with(*last);
            }
            run.stats = last.stats;
            run.session_id = format!("{:032x}", self.runner.of.entropy().bits());
        }
    }

    /// What one run of the engine is known by; the child of the span that asked for it.
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

    /// Waits until a run has had nothing to do for a while, or for a moment if others want its seat, and until its source
    /// is listened to.
    pub(super) async fn settled(
        &self,
        replication: &Replication,
        mut progress: watch::Receiver<Progress>,
    ) -> Ear {
        let options = &replication.options;
        // Without a checkpoint the next run would begin where the first one did.
        if !options.continuous || !options.use_checkpoints {
            return std::future::pending().await;
        }
        loop {
            let idle = |now: &Progress| now.phase == Phase::CaughtUp;
            if progress.wait_for(idle).await.is_err() {
                return std::future::pending().await;
            }
            let ear = async {
                let pause_s = self.runner.of.options().park_after_sec;
                if pause_s == 0 {
                    return std::future::pending().await;
                }
                let mut room = self.runner.slots.room();
                let wanted = room.wait_for(|room| *room == 0);
                drop(timeout(Duration::from_secs(pause_s), wanted).await);
                match self.runner.sources.listen(&replication.source).await {
                    Some(ear) => ear,
                    None => std::future::pending().await,
                }
            };
            let mut busy = progress.clone();
            tokio::select! {
                biased;
                _ = busy.wait_for(|now| now.phase != Phase::CaughtUp) => {}
                ear = ear => return ear,
            }
        }
    }

    /// Waits until the source has changed, and there is a seat and a turn.
    async fn parked(
        &self,
        run: &Run,
        last: &Progress,
        ear: Ear,
        untold: &mut Option<Seq>,
        data: &mut JobData,
    ) -> Result<(Seat, Turn), End> {
        let waits = Progress {
            phase: Phase::CaughtUp,
            ..last.clone()
        };
        let changed = async {
            let look = LOOK_PAUSE / 2 + self.runner.of.entropy().up_to(LOOK_PAUSE / 2);
            let told = async {
                Box::pin(self.tell_parked(&waits, data)).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = ear.heard(), if !witness::has(Bug::DeafWhenParked) => {}
                () = sleep(look) => {}
                () = self.untold(run, last, untold) => {}
                () = told => {}
            }
            let seat = self.runner.slots.wait().await;
            (seat, Box::pin(self.turn(&run.replication)).await)
        };
        tokio::select! {
            biased;
            () = self.stopped() => Err(self.stop_end()),
            again = changed => Ok(again),
        }
    }

    /// Waits for ever, unless there was a change that the run had not been told of when it stopped. The feed of updates may
    /// have told of it before there was an ear.
    async fn untold(&self, run: &Run, last: &Progress, untold: &mut Option<Seq>) {
        if let Some(through) = &last.through_seq {
            if untold.as_ref() == Some(through) {
                sleep(ASK_PAUSE).await;
            }
            if Box::pin(engine::has_more(run, through)).await {
                *untold = Some(through.clone());
                return;
            }
            *untold = None;
        }
        std::future::pending::<()>().await;
    }

    /// Shows that the job waits, and that it is healthy when it has been for long enough.
    async fn tell_parked(&self, waits: &Progress, data: &mut JobData) {
        let mut healed = self.heal(data) | !std::mem::replace(&mut data.idle, true);
        loop {
            match self.tell(waits, healed.then_some(&*data)).await {
                Ok(()) if data.error_count == 0 => return,
                Ok(()) => {
                    let threshold_s = self.runner.of.options().health_threshold_sec;
                    sleep(Duration::from_secs(threshold_s)).await;
                    healed |= self.heal(data);
                }
                Err(error) if error.is_halt() => return self.stops.lost.cancel(),
                Err(error) => {
                    let id = &self.accepted.job.id;
                    tracing::warn!(job.id = %id, error = %wire::chain(&error), "show an idle job");
                    sleep(Duration::from_secs(5)).await;
                }
            }
        }
    }

    /// A filter function may have changed with the source, and the replication's id with it.
    async fn renamed(&self, run: &Run) -> Option<End> {
        if !matches!(run.replication.options.filter, Filter::User { .. }) {
            return None;
        }
        let service = &self.runner.of.0.service;
        let now = engine::identify(&run.replication, service, &run.network, &run.settings);
        match now.await {
            Ok((identity, _)) => (identity != run.identity).then(|| self.another_filter()),
            Err(error) => Some(End::of_error(&error)),
        }
    }
}
