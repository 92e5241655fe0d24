//! State shared by the actors of one node.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use store::{RangeOptions, Store, Transaction};
use tokio::task::unconstrained;

use super::history::{Entry, Glimpse, History, What};
use super::plan::Plan;
use crate::model::ids::BUCKETS;
use crate::testing::moves::Moves;
use crate::testing::rules::data_of;
use crate::{Holder, JobId, JobInfo, JobType, Jobs, Result, StallHook, State, Verdict};

/// Ids that count as recent.
const RECENT: usize = 30;

/// State shared by all nodes.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) history: History,
    pub(super) types: Vec<JobType>,
    /// The rows, without faults.
    pub(super) store: Store,
    pub(super) moves: Arc<Moves>,
    ids: Mutex<Vec<Known>>,
    next: AtomicU64,
    healing: AtomicBool,
}

/// The ids of a type that were used.
#[derive(Debug, Default)]
struct Known {
    all: Vec<JobId>,
    recent: VecDeque<JobId>,
}

impl World {
    pub(super) fn new(plan: Plan, store: Store, moves: Arc<Moves>) -> Self {
        let types = ["mail", "views"].into_iter().take(plan.types.len());
        let types: Vec<_> = types.map(|name| JobType::new(name).unwrap()).collect();
        Self {
            ids: Mutex::new(types.iter().map(|_| Known::default()).collect()),
            plan,
            history: History::new(),
            types,
            store,
            moves,
            next: AtomicU64::new(1),
            healing: AtomicBool::new(false),
        }
    }

    /// True after all faults have ended and creators have stopped.
    pub(super) fn healing(&self) -> bool {
        self.healing.load(Ordering::Relaxed)
    }

    pub(super) fn heal(&self) {
        self.healing.store(true, Ordering::Relaxed);
    }

    /// A unique number.
    pub(super) fn token(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A new id.
    pub(super) fn fresh_id(&self, ty: usize, rng: &mut SmallRng) -> JobId {
        let number = self.token();
        let id = match rng.random_range(0..8) {
            0 => [&[0xff, 0x00][..], &number.to_be_bytes()[..]].concat(),
            1 => [format!("{number}").as_bytes(), &[0x00, 0xff][..]].concat(),
            _ => format!("job-{number}").into_bytes(),
        };
        let id = JobId::new(id).unwrap();
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut ids[ty];
        known.all.push(id.clone());
        known.recent.push_back(id.clone());
        if known.recent.len() > RECENT {
            known.recent.pop_front();
        }
        id
    }

    /// An id that was used before, often shared with other actors.
    pub(super) fn known_id(&self, ty: usize, rng: &mut SmallRng) -> Option<JobId> {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &ids[ty];
        let pick = |rng: &mut SmallRng, len: usize| (len > 0).then(|| rng.random_range(0..len));
        match rng.random_range(0..10) {
            0..2 => known.all.get(rng.random_range(0..3)).cloned(),
            2..7 => pick(rng, known.recent.len()).map(|n| known.recent[n].clone()),
            _ => pick(rng, known.all.len()).map(|n| known.all[n].clone()),
        }
    }
}

/// A node, as its actors see it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) world: Arc<World>,
    pub(super) jobs: Jobs,
    pub(super) holder: Holder,
}

impl Node {
    pub(super) fn ty(&self, ty: usize) -> &JobType {
        &self.world.types[ty]
    }

    pub(super) fn history(&self) -> &History {
        &self.world.history
    }

    pub(super) fn timeout(&self, ty: usize) -> Duration {
        Duration::from_millis(self.world.plan.types[ty].config.timeout_ms)
    }

    /// The finished job of some bucket that expires first, if any.
    pub(super) async fn about_to_expire(&self, ty: usize, rng: &mut SmallRng) -> Option<JobId> {
        let (keys, ty) = (self.jobs.keys(), self.ty(ty));
        let from = rng.random_range(0..BUCKETS);
        let buckets = &(0..BUCKETS)
            .map(|n| (from + n) % BUCKETS)
            .collect::<Vec<_>>();
        let look = self
            .world
            .store
            .transact("about_to_expire", |tx| async move {
                for bucket in buckets {
                    let range = keys.expired(ty, *bucket, i64::MAX - 1);
                    let rows = tx.snapshot().get_range(range, RangeOptions::limit(1));
                    if let Some(row) = rows.collect().await?.first() {
                        let (_, id) = keys.position(ty, State::Finished, &row.key)?;
                        return Ok::<_, crate::Error>(Some(id));
                    }
                }
                Ok(None)
            });
        unconstrained(look).await.unwrap()
    }

    /// The state of a job, in a transaction.
    pub(super) async fn glimpse(&self, tx: &Transaction, ty: usize, id: &JobId) -> Result<Glimpse> {
        Glimpse::take(&self.jobs, tx, self.ty(ty), id).await
    }
}

/// Blocks everything that runs through it, like a process without CPU time.
#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<Closed>);

#[derive(Debug, Default)]
struct Closed {
    closed: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    pub(super) fn close(&self, closed: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = closed;
        if !closed {
            state.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// The same future, blocked while the gate is closed.
    pub(super) async fn through<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            {
                let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if state.closed {
                    state.waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
            }
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// Decides about silent holders, and records it.
#[derive(Debug)]
pub(super) struct Hook(pub(super) Node);

impl StallHook for Hook {
    async fn stalled(&self, tx: &Transaction, ty: &JobType, job: &JobInfo) -> Result<Verdict> {
        let node = &self.0;
        let world = &node.world;
        let Some(ty) = world.types.iter().position(|known| known == ty) else {
            return Ok(Verdict::Policy);
        };
        let before = node.glimpse(tx, ty, &job.id).await?;
        // Derived from the job, so that a retry decides the same.
        let lock = before.lock.map_or(0, crate::JobLock::bits);
        let verdict = match lock % 20 {
            0 => Verdict::Rerun {
                due_ms: Some(0),
                data: None,
            },
            1 => Verdict::Rerun {
                due_ms: None,
                data: Some(data_of(u64::from(job.attempts) + 1_000_003)),
            },
            2 => Verdict::GiveUp {
                data: None,
                reason: "enough".into(),
            },
            _ => Verdict::Policy,
        };
        node.history().done(
            tx,
            Entry {
                call: None,
                at: node.history().now(),
                ty,
                id: job.id.clone(),
                before: Some(before),
                what: What::Stall(verdict.clone()),
            },
        );
        Ok(verdict)
    }
}
