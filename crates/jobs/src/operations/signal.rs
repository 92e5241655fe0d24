//! Signals: something has changed that a job is about, so it is to run, once for any number of signals.

use bytes::Bytes;
use futures::future::try_join;
use store::Transaction;

use crate::model::header::{Header, check_data};
use crate::model::machine::{Create, Event};
use crate::operations::create::fitting;
use crate::{Add, Added, JobId, JobType, Jobs, Op, Result, State};

/// A request for a run of a job, not before a time. Signals are merged to the earliest time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// The job, and when it is to run. The rest applies only if the signal creates the job.
    pub add: Add,
    /// Creates the job if it does not exist; otherwise the signal is ignored then.
    pub create: bool,
    /// Which failed jobs this signal also makes due.
    pub revive: Revive,
    /// While the job runs: the earliest time at which this signal asks for the next run; 0 for no limit.
    pub rerun_ms: i64,
}

/// Which jobs a [signal](Signal) makes due that it would otherwise leave alone. To them, it is a creator's request for
/// another run with their data, like [`resubmit`](Jobs::resubmit), at the earliest of the requested times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Revive {
    /// None.
    #[default]
    None,
    /// [Dead](State::Dead) ones: the change may have fixed what they failed on.
    Dead,
    /// Also those in a back-off, and running ones, whose next run waits for no back-off if this one fails.
    Failed,
}

impl Signal {
    /// A signal to an existing job, to run as soon as possible.
    pub fn new(id: JobId) -> Self {
        Self {
            create: false,
            ..Self::from(Add::new(id, Bytes::new()))
        }
    }

    /// The same signal, to run at a time.
    #[must_use]
    pub fn due_ms(self, due_ms: i64) -> Self {
        let add = self.add.due_ms(due_ms);
        Self { add, ..self }
    }

    /// The same signal, which also revives jobs.
    #[must_use]
    pub fn revive(self, revive: Revive) -> Self {
        Self { revive, ..self }
    }

    /// The event that it is to a job.
    fn event(&self, old: Option<&Header>, id: u64, create: Option<Create>, once: bool) -> Event {
        let state = old.map(Header::state);
        let mut due_ms = self.add.due_ms;
        if state == Some(State::Running) {
            due_ms = due_ms.max(self.rerun_ms);
        }
        if let Some(old) = old.filter(|old| self.revives(old)) {
            let next_ms = old.next.as_ref().map(|next| next.due_ms);
            let others_ms = match old.state() {
                State::Running => [next_ms, old.signal_ms()],
                State::Pending => [Some(old.due_ms), None],
                State::Finished | State::Dead => [None, None],
            };
            return Event::Ask {
                op: id,
                due_ms: others_ms.into_iter().flatten().chain([due_ms]).min(),
                data: None,
                same: false,
                create: None,
            };
        }
        Event::Signal {
            due_ms,
            create: create.map(|create| (id, self.add.data.clone(), create)),
            once: once.then_some(id),
        }
    }

    fn revives(&self, old: &Header) -> bool {
        match (self.revive, old.state()) {
            (Revive::None, _) | (_, State::Finished) => false,
            (_, State::Dead) => true,
            (revive, State::Running) => revive == Revive::Failed,
            (revive, State::Pending) => revive == Revive::Failed && old.stalls > 0,
        }
    }
}

/// A signal that creates the job if it does not exist.
impl From<Add> for Signal {
    fn from(add: Add) -> Self {
        Self {
            add,
            create: true,
            revive: Revive::None,
            rerun_ms: 0,
        }
    }
}

impl Jobs {
    /// Requests a run of a job after everything that is committed now, without disturbing a run in progress: its holder is
    /// not told, and the job runs again afterwards.
    ///
    /// A pending job is due at the earlier of its time and the signal's; a finished one is pending again with its data. A
    /// signal neither shortens the back-off of a job whose last run failed, nor revives a [dead](State::Dead) one, unless it
    /// is to [`revive`](Signal::revive) them.
    ///
    /// Unlike [`add`](Self::add), a signal leaves no id to recognise it by, unless it revives the job. If the outcome of a
    /// commit is unknown and the job has run before the retry, it runs once more.
    /// [`signal_many_once_in`](Self::signal_many_once_in) leaves one.
    pub async fn signal(&self, ty: &JobType, signal: Signal) -> Result<Added> {
        Ok(self.signal_many(ty, &[signal]).await?[0])
    }

    /// Sends signals in as few transactions as possible. After an error some may have been sent and others not.
    pub async fn signal_many(&self, ty: &JobType, signals: &[Signal]) -> Result<Vec<Added>> {
        let mut added = Vec::with_capacity(signals.len());
        while let rest = &signals[added.len()..]
            && !rest.is_empty()
        {
            let batch = &rest[..fitting(rest.iter().map(|signal| &signal.add))];
            let op = self.op();
            let sent = self.store().transact("signal", |tx| async move {
                self.signal_many_in(&tx, &op, ty, batch).await
            });
            added.extend(sent.await?);
        }
        Ok(added)
    }

    /// Sends signals in the caller's transaction, which must have room for them: some 500, and a megabyte of data.
    pub async fn signal_many_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        signals: &[Signal],
    ) -> Result<Vec<Added>> {
        self.send_in(tx, op, ty, signals, false).await
    }

    /// [`Self::signal_many_in`] for a caller that may repeat the operation after its transaction: jobs remember it as they
    /// remember adds. A signal that changes nothing is not remembered.
    pub async fn signal_many_once_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        signals: &[Signal],
    ) -> Result<Vec<Added>> {
        self.send_in(tx, op, ty, signals, true).await
    }

    async fn send_in(
        &self,
        tx: &Transaction,
        op: &Op,
        ty: &JobType,
        signals: &[Signal],
        once: bool,
    ) -> Result<Vec<Added>> {
        for signal in signals {
            check_data(Some(&signal.add.data))?;
        }
        let headers = self.headers(tx, ty, signals.iter().map(|signal| &signal.add.id));
        let (config, mut headers) = try_join(self.config_in(tx, ty), headers).await?;
        let mut effects = self.effects(tx, op.now_ms).await?;
        let mut added = Vec::with_capacity(signals.len());
        for (nth, signal) in signals.iter().enumerate() {
            let id = &signal.add.id;
            let header = headers.entry(id.clone()).or_default();
            let create = signal.create.then(|| signal.add.create(&config));
            let event = signal.event(header.as_deref(), op.id(nth), create, once);
            added.push(effects.run(ty, id, header, event)?.into());
        }
        effects.flush(op).await?;
        Ok(added)
    }
}
