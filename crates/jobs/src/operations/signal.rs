//! Signals: something has changed that a job is about, so it is to run, once for any number of signals.

use bytes::Bytes;
use futures::future::try_join;
use store::Transaction;

use crate::model::header::check_data;
use crate::model::machine::Event;
use crate::operations::create::fitting;
use crate::{Add, Added, JobId, JobType, Jobs, Op, Result};

/// A request for a run of a job, not before a time. Signals are merged to the earliest time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// The job, and when it is to run. The rest applies only if the signal creates the job.
    pub add: Add,
    /// Creates the job if it does not exist; otherwise the signal is ignored then.
    pub create: bool,
}

impl Signal {
    /// A signal to an existing job, to run as soon as possible.
    pub fn new(id: JobId) -> Self {
        let (add, create) = (Add::new(id, Bytes::new()), false);
        Self { add, create }
    }

    /// The same signal, to run at a time.
    #[must_use]
    pub fn due_ms(self, due_ms: i64) -> Self {
        let add = self.add.due_ms(due_ms);
        Self { add, ..self }
    }
}

/// A signal that creates the job if it does not exist.
impl From<Add> for Signal {
    fn from(add: Add) -> Self {
        Self { add, create: true }
    }
}

impl Jobs {
    /// Requests a run of a job after everything that is committed now, without disturbing a run in progress: its holder is
    /// not told, and the job runs again afterwards.
    ///
    /// A pending job is due at the earlier of its time and the signal's; a finished one is pending again with its data. A
    /// signal neither shortens the back-off of a job whose last run failed, nor revives a [dead](crate::State::Dead) one.
    ///
    /// Unlike [`add`](Self::add), a signal leaves no id to recognise it by. If the outcome of a commit is unknown and the
    /// job has run before the retry, it runs once more. [`signal_many_once_in`](Self::signal_many_once_in) leaves one.
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
        for (nth, Signal { add, create }) in signals.iter().enumerate() {
            let header = headers.entry(add.id.clone()).or_default();
            let event = Event::Signal {
                due_ms: add.due_ms,
                create: create.then(|| (op.id(nth), add.data.clone(), add.create(&config))),
                once: once.then(|| op.id(nth)),
            };
            added.push(effects.run(ty, &add.id, header, event)?.into());
        }
        effects.flush(op).await?;
        Ok(added)
    }
}
