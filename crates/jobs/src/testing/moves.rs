//! Which jobs with limits run and wait: every committed step of the state machine, for a queue that
//! [records](crate::Jobs::recording) them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use store::Transaction;

use crate::model::header::{Header, Order, Place};
use crate::model::limits::Which;
use crate::testing::log;
use crate::{Class, JobId, JobLock, JobType};

/// The prefix of the rows.
pub(crate) const LOG: &[u8] = b"moves/";

/// The steps that transactions tried.
#[derive(Debug, Default)]
pub(crate) struct Moves(Mutex<Vec<Move>>);

/// A step of a job with limits.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) ty: JobType,
    pub(crate) id: JobId,
    /// The clock of the operation that moves it.
    pub(crate) now_ms: i64,
    /// `None` if the job does not exist.
    pub(crate) before: Option<View>,
    pub(crate) after: Option<View>,
}

/// A job with limits.
#[derive(Debug)]
pub(crate) struct View {
    /// The lock of its run, if it has a holder.
    pub(crate) run: Option<JobLock>,
    /// Its limits, and those of which it has slots.
    pub(crate) limits: Vec<Bytes>,
    pub(crate) taken: Vec<Bytes>,
    /// When it is, or was last, due.
    pub(crate) due_ms: i64,
    /// The limit that it waits for.
    pub(crate) waits: Option<Waits>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) limit: Bytes,
    pub(crate) turn: Turn,
}

/// Waiting jobs of a class start in this order, or nearly so.
pub(crate) type Turn = (Class, Order, JobId);

impl Moves {
    pub(crate) fn note(
        &self,
        tx: &Transaction,
        now_ms: i64,
        (ty, id): (&JobType, &JobId),
        before: Option<&Header>,
        after: Option<&Header>,
    ) {
        let limited = [before, after].into_iter().flatten();
        if !limited.into_iter().any(Header::is_limited) {
            return;
        }
        let mut moves = self.all();
        moves.push(Move {
            ty: ty.clone(),
            id: id.clone(),
            now_ms,
            before: before.map(|header| View::of(id, header)),
            after: after.map(|header| View::of(id, header)),
        });
        log::mark(tx, LOG, moves.len() as u64 - 1);
    }

    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Move>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn of(id: &JobId, header: &Header) -> Self {
        let limits = Which::ALL.iter().filter_map(|which| header.limit(*which));
        let mut limits: Vec<Bytes> = limits.cloned().collect();
        limits.dedup();
        let waits = match header.place {
            Place::Waiting(which, order) => header.limit(which).map(|limit| Waits {
                limit: limit.clone(),
                turn: (header.class(), order, id.clone()),
            }),
            _ => None,
        };
        Self {
            run: header.lock(),
            due_ms: header.due_ms,
            limits,
            taken: header
                .taken()
                .iter()
                .map(|(name, _)| name.clone())
                .collect(),
            waits,
        }
    }
}
