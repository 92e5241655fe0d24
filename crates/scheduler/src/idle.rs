//! Watches sources for idle replications, which do not run.
//!
//! There is one [`Source`](source::Source) per server and credentials, however many of its databases are watched. It follows
//! `_db_updates` if the server allows that, and polls `_dbs_info` for the sequences of the watched databases: often without
//! a feed, rarely with one, because a feed may miss updates. A server that offers neither is not watched; its replications
//! keep feeds of their own.
//!
//! A false notification costs a few requests. A missed one would leave the target behind, so a [`ChangeListener`] is
//! armed before the run that it replaces stops, and sees every change from then on.

mod source;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use couch::{Endpoint, Network};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use source::ChangeListener;
use source::Source;

use crate::testing;

/// Time limit for finding out whether a server can be watched.
const ARM_MAX: Duration = Duration::from_secs(30);

/// By address; entries with the same address have different credentials.
type Servers = HashMap<String, Vec<Arc<Source>>>;

/// The servers that a node watches.
pub(crate) struct Sources {
    network: Network,
    servers: Arc<Mutex<Servers>>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

impl Sources {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            servers: Arc::default(),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Watches a database for changes. `None` if its server does not support it.
    pub(crate) async fn listen(&self, database: &Endpoint) -> Option<ChangeListener> {
        let (server, name) = database.server()?;
        let listener = self.listener(server, &name)?;
        let armed = timeout(ARM_MAX, listener.armed()).await;
        armed.is_ok_and(|armed| armed).then_some(listener)
    }

    fn listener(&self, server: Endpoint, database: &str) -> Option<ChangeListener> {
        let mut servers = self.servers();
        let same = servers.entry(server.url_text().to_owned()).or_default();
        if let Some(at) = (same.iter()).position(|source| *source.endpoint() == server) {
            if let Some(listener) = same[at].listener(database) {
                return Some(listener);
            }
            same.swap_remove(at);
        }
        let source = Arc::new(Source::new(server));
        same.push(Arc::clone(&source));
        let (network, closed) = (self.network.clone(), self.closed.clone());
        let (servers, ended) = (Arc::clone(&self.servers), Arc::clone(&source));
        let serving = Box::pin(Arc::clone(&source).serve(network));
        self.tasks.spawn(testing::spawned(async move {
            closed.run_until_cancelled(serving).await;
            forget(&servers, &ended);
        }));
        source.listener(database)
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        locked(&self.servers)
    }

    /// Stops watching.
    pub(crate) async fn close(&self) {
        self.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn locked(servers: &Mutex<Servers>) -> MutexGuard<'_, Servers> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops a source that has ended, and the credentials that it holds.
fn forget(servers: &Mutex<Servers>, source: &Arc<Source>) {
    let mut servers = locked(servers);
    let address = source.endpoint().url_text();
    if let Some(same) = servers.get_mut(address) {
        same.retain(|other| !Arc::ptr_eq(other, source));
        if same.is_empty() {
            servers.remove(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use couch::{EgressOptions, NetworkOptions};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn servers_that_are_not_watched_any_more_are_forgotten() {
        let options = NetworkOptions {
            egress: EgressOptions::open(),
            ..NetworkOptions::default()
        };
        let sources = Sources::new(Network::new(options, [7; 32]).unwrap());
        let watched = || sources.servers().values().map(Vec::len).sum::<usize>();
        for n in 1..=3 {
            let url = format!("http://user{n}:secret@127.0.0.1:9/db");
            let database = Endpoint::from_url(&url).unwrap();
            assert!(sources.listen(&database).await.is_none());
            assert_eq!(watched(), n);
        }
        sleep(Duration::from_mins(20)).await;
        assert!(sources.servers().is_empty());
        sources.close().await;
    }
}
