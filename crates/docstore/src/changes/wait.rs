//! Waiting for changes, with one watch per database and process.
//!
//! A task reads the update sequence, publishes it to all listeners, and sleeps until the watch fires or
//! the poll interval has passed; it ends with the last listener. No write is missed: listeners compare
//! sequences, and a lost watch costs one poll interval.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use store::{Transaction, Watch};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::{Db, DocStore, Error, InstanceId, Result, Seq};

/// The poll interval with a watch, in case it is lost.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The poll interval without a watch, and while the store does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The databases with listeners.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<HashMap<InstanceId, Weak<Hub>>>);

/// A database with listeners.
#[derive(Debug)]
struct Hub {
    news: watch::Receiver<News>,
    task: AbortHandle,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    UpdateSeq(Seq),
    Deleted,
}

/// Waits for changes of a database.
#[derive(Debug)]
pub struct Listener {
    news: watch::Receiver<News>,
    /// Keeps the task alive.
    _hub: Arc<Hub>,
}

impl Listener {
    /// Waits for a write after `seq`, or returns at once if there has been one.
    ///
    /// Returns [`Error::NoDatabase`] if the database is deleted.
    pub async fn changed_since(&mut self, seq: Seq) -> Result<()> {
        let news = self.news.wait_for(|news| match news {
            News::Nothing => false,
            News::UpdateSeq(newest) => *newest > seq,
            News::Deleted => true,
        });
        match news.await.map(|news| *news) {
            Ok(News::UpdateSeq(_) | News::Nothing) => Ok(()),
            Ok(News::Deleted) | Err(_) => Err(Error::NoDatabase),
        }
    }
}

impl DocStore {
    /// Listens to a database. All its listeners share one watch and one task.
    pub fn listen(&self, db: &Db) -> Listener {
        let mut hubs = self
            .0
            .waits
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let hub = if let Some(hub) = hubs.get(&db.instance()).and_then(Weak::upgrade) {
            hub
        } else {
            hubs.retain(|_, hub| hub.strong_count() > 0);
            let hub = self.start(db);
            hubs.insert(db.instance(), Arc::downgrade(&hub));
            hub
        };
        Listener {
            news: hub.news.clone(),
            _hub: hub,
        }
    }

    fn start(&self, db: &Db) -> Arc<Hub> {
        let (sender, news) = watch::channel(News::Nothing);
        // The task must not hold a listener, or it would never end.
        let task = tokio::spawn(follow(self.clone(), db.clone(), sender)).abort_handle();
        Arc::new(Hub { news, task })
    }

    /// The update sequence, and a watch on it.
    async fn watch_update_seq(&self, db: &Db) -> Result<(Seq, Option<Watch>)> {
        let look = |watched: bool| {
            move |tx: Transaction| async move {
                self.check_in(&tx, db).await?;
                let seq = self.update_seq(&tx, db).await?;
                let watch = if watched {
                    Some(tx.watch(&db.keys.update_seq()).await?)
                } else {
                    None
                };
                Ok::<_, Error>((seq, watch))
            }
        };
        match self.0.store.transact("watch_changes", look(true)).await {
            Err(Error::Store(store::Error::TooManyWatches { .. })) => {
                self.0.store.transact("poll_changes", look(false)).await
            }
            watched => watched,
        }
    }
}

/// Publishes the update sequence until the database is deleted.
async fn follow(docstore: DocStore, db: Db, sender: watch::Sender<News>) {
    loop {
        match docstore.watch_update_seq(&db).await {
            Ok((seq, watch)) => {
                let news = News::UpdateSeq(seq);
                sender.send_if_modified(|known| std::mem::replace(known, news) != news);
                match watch {
                    // It fired, failed or timed out: read the sequence again in any case.
                    Some(watch) => drop(timeout(POLL_INTERVAL, watch.changed()).await),
                    None => sleep(RETRY_INTERVAL).await,
                }
            }
            Err(Error::NoDatabase) => {
                sender.send_replace(News::Deleted);
                return;
            }
            Err(error) => {
                tracing::warn!(db = %db.name(), error = %store::chain(&error), "cannot look for changes");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}
