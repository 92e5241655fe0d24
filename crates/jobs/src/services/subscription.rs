//! Subscriptions to jobs, and the table of those of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::select_all;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use crate::{JobId, JobInfo, State};

/// A notification. Of several changes close together only the last is delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The job is in this state, with this data. The last notice if it is finished or dead.
    Job(Arc<JobInfo>, Bytes),
    /// The job was removed. The last notice.
    Removed,
    /// The job's type is not registered any more. The last notice.
    TypeCleared,
    /// This process no longer follows the job. The last notice.
    Stopped,
}

impl Notice {
    /// The state of the job, if it still exists.
    pub fn state(&self) -> Option<State> {
        match self {
            Self::Job(info, _) => Some(info.state),
            _ => None,
        }
    }

    /// Whether no notice follows.
    pub fn is_last(&self) -> bool {
        !matches!(self.state(), Some(State::Pending | State::Running))
    }

    /// The same with empty data.
    fn without_data(&self) -> Self {
        match self {
            Self::Job(info, _) => Self::Job(Arc::clone(info), Bytes::new()),
            other => other.clone(),
        }
    }
}

/// Follows a job until it is finished or removed, or this is dropped.
#[derive(Debug)]
pub struct Subscription {
    id: JobId,
    slot: Arc<Slot>,
    last: Notice,
    table: Arc<Table>,
}

/// What one subscription has been told.
#[derive(Debug, Default)]
struct Slot {
    seen: Mutex<Seen>,
    changed: Notify,
}

/// A job's state at a version.
#[derive(Debug, Default)]
struct Seen {
    version: u64,
    known: Option<Known>,
    /// What is known, until the subscriber takes it.
    notice: Option<Notice>,
    /// Whether the subscriber knows the initial state; before that, no notice is the last.
    begun: bool,
}

/// A notice with a hash in place of the data, of which there may be much in many subscriptions.
#[derive(Debug, Clone)]
struct Known {
    notice: Notice,
    data: Option<[u8; 32]>,
}

/// The subscriptions of one process to jobs of one type.
#[derive(Debug)]
pub(crate) struct Table {
    /// The number of this process's notifier in the store.
    pub(crate) nonce: u64,
    /// Notified of the first subscription.
    pub(crate) made: Notify,
    /// `None` once the notifier has stopped.
    jobs: Mutex<Option<BTreeMap<JobId, Vec<Arc<Slot>>>>>,
}

impl Known {
    fn of(notice: &Notice) -> Self {
        Self {
            notice: notice.without_data(),
            data: match notice {
                Notice::Job(_, data) => Some(Sha256::digest(data).into()),
                _ => None,
            },
        }
    }

    /// Whether this adds nothing for a subscriber who knows `other`.
    fn same_as(&self, other: &Self) -> bool {
        match (&self.notice, &other.notice) {
            (Notice::Job(a, _), Notice::Job(b, _)) => {
                (a.state, a.attempts, a.stalls, a.due_ms, self.data)
                    == (b.state, b.attempts, b.stalls, b.due_ms, other.data)
            }
            (a, b) => a == b,
        }
    }
}

impl Slot {
    /// Tells the subscriber this state at a version, unless it has a newer one.
    fn deliver(&self, version: u64, notice: &Notice, known: &Known) {
        let mut seen = self.lock();
        if version < seen.version {
            return;
        }
        seen.version = version;
        let over = |last: &Known| seen.begun && last.notice.is_last();
        let new = (seen.known.as_ref()).is_none_or(|last| !known.same_as(last) && !over(last));
        if new {
            seen.known = Some(known.clone());
            seen.notice = Some(notice.clone());
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Makes the notices delivered so far the initial state.
    pub(crate) fn begin(&mut self) {
        let mut seen = self.slot.lock();
        seen.begun = true;
        if let Some(notice) = seen.notice.take() {
            drop(seen);
            self.last = notice;
        }
    }

    /// The id of the job.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// The last notice; initially, the state at the time of subscribing.
    pub fn now(&self) -> &Notice {
        &self.last
    }

    /// Frees the data of the last notice: from here on, [`now`](Self::now) has it empty.
    pub fn forget_data(&mut self) {
        self.last = self.last.without_data();
    }

    /// The next change; `None` after the last one.
    pub async fn next(&mut self) -> Option<Notice> {
        if self.last.is_last() {
            return None;
        }
        loop {
            let notice = self.slot.lock().notice.take();
            if let Some(notice) = notice {
                self.last = notice.clone();
                return Some(notice);
            }
            self.slot.changed.notified().await;
        }
    }

    /// The next change that satisfies `wanted`, or the last one; `None` after `wait`.
    pub async fn wait(
        &mut self,
        wait: Duration,
        wanted: impl Fn(&Notice) -> bool,
    ) -> Option<Notice> {
        let found = async {
            while let Some(notice) = self.next().await {
                if notice.is_last() || wanted(&notice) {
                    return Some(notice);
                }
            }
            None
        };
        tokio::time::timeout(wait, found).await.unwrap_or(None)
    }

    /// The next change of any of several jobs, and its index; `None` after `wait`, or if all of
    /// them have ended.
    pub async fn wait_any(subscriptions: &mut [Self], wait: Duration) -> Option<(usize, Notice)> {
        let following = (subscriptions.iter_mut().enumerate())
            .filter(|(_, subscription)| !subscription.last.is_last())
            .map(|(n, subscription)| {
                Box::pin(async move { subscription.next().await.map(|notice| (n, notice)) })
            });
        let following: Vec<_> = following.collect();
        if following.is_empty() {
            return None;
        }
        match tokio::time::timeout(wait, select_all(following)).await {
            Ok((told, _, _)) => told,
            Err(_) => None,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut jobs = self.table.lock();
        let Some(jobs) = &mut *jobs else {
            return;
        };
        if let Some(slots) = jobs.get_mut(&self.id) {
            slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
            if slots.is_empty() {
                jobs.remove(&self.id);
            }
        }
    }
}

impl Table {
    pub(crate) fn new(nonce: u64) -> Self {
        Self {
            nonce,
            made: Notify::new(),
            jobs: Mutex::new(Some(BTreeMap::new())),
        }
    }

    /// A subscription to everything delivered from now on; `None` once the notifier has stopped.
    pub(crate) fn register(self: &Arc<Self>, id: &JobId) -> Option<Subscription> {
        let slot = Arc::<Slot>::default();
        let mut jobs = self.lock();
        let slots = jobs.as_mut()?.entry(id.clone()).or_default();
        slots.push(Arc::clone(&slot));
        Some(Subscription {
            id: id.clone(),
            slot,
            last: Notice::Stopped,
            table: Arc::clone(self),
        })
    }

    /// Delivers a job's state at a version to its subscribers, unless they have a newer one.
    pub(crate) fn deliver(&self, id: &JobId, version: u64, notice: &Notice) {
        // Before the table is locked.
        let known = Known::of(notice);
        let jobs = self.lock();
        let slots = jobs.as_ref().and_then(|jobs| jobs.get(id));
        for slot in slots.into_iter().flatten() {
            slot.deliver(version, notice, &known);
        }
    }

    /// The followed jobs.
    pub(crate) fn ids(&self) -> Vec<JobId> {
        let jobs = self.lock();
        jobs.iter().flatten().map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn follows(&self, id: &JobId) -> bool {
        self.lock()
            .as_ref()
            .is_some_and(|jobs| jobs.contains_key(id))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().as_ref().is_none_or(BTreeMap::is_empty)
    }

    /// Ends every subscription to which nothing newer than this version was delivered.
    pub(crate) fn end_all(&self, version: u64, notice: &Notice) {
        for id in self.ids() {
            self.deliver(&id, version, notice);
        }
    }

    /// Ends every subscription, and rejects new ones.
    pub(crate) fn close(&self) {
        let jobs = self.lock().take();
        let (notice, known) = (Notice::Stopped, Known::of(&Notice::Stopped));
        for slot in jobs.iter().flatten().flat_map(|(_, slots)| slots) {
            slot.deliver(u64::MAX, &notice, &known);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<JobId, Vec<Arc<Slot>>>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notifier reads a job that does not exist yet while a subscription is being made: that must
    /// not end the subscription.
    #[test]
    fn no_notice_is_final_before_the_first() {
        let id = JobId::try_from("j").unwrap();
        let table = Arc::new(Table::new(1));
        let mut subscription = table.register(&id).unwrap();
        table.deliver(&id, 1, &Notice::Removed);
        table.deliver(&id, 2, &Notice::TypeCleared);
        subscription.begin();
        assert_eq!(*subscription.now(), Notice::TypeCleared);
        table.deliver(&id, 3, &Notice::Removed);
        subscription.begin();
        assert_eq!(*subscription.now(), Notice::TypeCleared);
    }

    /// A notifier learns late that the type was not registered for a while.
    #[test]
    fn a_later_subscription_is_not_ended() {
        let id = JobId::try_from("j").unwrap();
        let table = Arc::new(Table::new(1));
        let mut subscription = table.register(&id).unwrap();
        table.deliver(&id, 5, &Notice::Removed);
        table.end_all(4, &Notice::TypeCleared);
        subscription.begin();
        assert_eq!(*subscription.now(), Notice::Removed);
    }
}
