//! Subscriptions to jobs, and the table of those of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::select_all;
use tokio::sync::{Notify, watch};

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

    /// Whether this adds nothing for a subscriber who knows `other`.
    fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Job(a, data_a), Self::Job(b, data_b)) => {
                (a.state, a.attempts, a.stalls, a.due_ms, data_a)
                    == (b.state, b.attempts, b.stalls, b.due_ms, data_b)
            }
            _ => self == other,
        }
    }
}

/// Follows a job until it is finished or removed, or this is dropped.
#[derive(Debug)]
pub struct Subscription {
    id: JobId,
    receiver: watch::Receiver<Seen>,
    last: Notice,
    table: Arc<Table>,
}

/// A job's state at a version.
#[derive(Debug)]
struct Seen {
    version: u64,
    notice: Option<Notice>,
    /// Whether the subscriber knows the initial state; before that, no notice is the last.
    begun: bool,
}

/// The subscriptions of one process to jobs of one type.
#[derive(Debug)]
pub(crate) struct Table {
    /// The number of this process's notifier in the store.
    pub(crate) nonce: u64,
    /// Notified of the first subscription.
    pub(crate) made: Notify,
    /// `None` once the notifier has stopped.
    jobs: Mutex<Option<BTreeMap<JobId, Vec<watch::Sender<Seen>>>>>,
}

impl Subscription {
    /// The id of the job.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// The last notice; initially, the state at the time of subscribing.
    pub fn now(&self) -> &Notice {
        &self.last
    }

    /// The next change; `None` after the last one.
    pub async fn next(&mut self) -> Option<Notice> {
        if self.last.is_last() {
            return None;
        }
        let notice = match self.receiver.changed().await {
            Ok(()) => self.receiver.borrow_and_update().notice.clone(),
            Err(_) => None,
        };
        self.last = notice.unwrap_or(Notice::Stopped);
        Some(self.last.clone())
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
        if let Some(senders) = jobs.get_mut(&self.id) {
            let receiver = &self.receiver;
            senders.retain(|sender| !sender.subscribe().same_channel(receiver));
            if senders.is_empty() {
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
        let (sender, receiver) = watch::channel(Seen {
            version: 0,
            notice: None,
            begun: false,
        });
        let mut jobs = self.lock();
        jobs.as_mut()?.entry(id.clone()).or_default().push(sender);
        Some(Subscription {
            id: id.clone(),
            receiver,
            last: Notice::Stopped,
            table: Arc::clone(self),
        })
    }

    /// Delivers a job's state at a version to its subscribers, unless they have a newer one.
    pub(crate) fn deliver(&self, id: &JobId, version: u64, notice: &Notice) {
        let mut jobs = self.lock();
        let Some(jobs) = &mut *jobs else {
            return;
        };
        for sender in jobs.get(id).into_iter().flatten() {
            sender.send_if_modified(|seen| {
                if version < seen.version {
                    return false;
                }
                seen.version = version;
                let known = seen.notice.as_ref();
                let over = |known: &Notice| seen.begun && known.is_last();
                let new = known.is_none_or(|known| !notice.same_as(known) && !over(known));
                if new {
                    seen.notice = Some(notice.clone());
                }
                new
            });
        }
    }

    /// Makes the notices delivered so far the initial state of a new subscription.
    pub(crate) fn begin(&self, subscription: &mut Subscription) {
        let jobs = self.lock();
        let senders = jobs.as_ref().and_then(|jobs| jobs.get(&subscription.id));
        let own =
            |sender: &&watch::Sender<Seen>| sender.subscribe().same_channel(&subscription.receiver);
        if let Some(sender) = senders.into_iter().flatten().find(own) {
            sender.send_if_modified(|seen| {
                seen.begun = true;
                false
            });
        }
        if let Some(notice) = &subscription.receiver.borrow_and_update().notice {
            subscription.last = notice.clone();
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

    /// Ends every subscription.
    pub(crate) fn end_all(&self, notice: &Notice) {
        for id in self.ids() {
            self.deliver(&id, u64::MAX, notice);
        }
    }

    /// Ends every subscription, and rejects new ones.
    pub(crate) fn close(&self) {
        self.end_all(&Notice::Stopped);
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<JobId, Vec<watch::Sender<Seen>>>>> {
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
        table.begin(&mut subscription);
        assert_eq!(*subscription.now(), Notice::TypeCleared);
        table.deliver(&id, 3, &Notice::Removed);
        table.begin(&mut subscription);
        assert_eq!(*subscription.now(), Notice::TypeCleared);
    }
}
