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
use std::sync::{Arc, Mutex, PoisonError};
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

/// The servers that a node watches.
pub(crate) struct Sources {
    network: Network,
    /// By address; entries with the same address have different credentials.
    servers: Mutex<HashMap<String, Vec<Arc<Source>>>>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

impl Sources {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            servers: Mutex::default(),
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
        let mut servers = (self.servers.lock()).unwrap_or_else(PoisonError::into_inner);
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
        let listening = Arc::clone(&source);
        let serving = Box::pin(listening.serve(network));
        self.tasks.spawn(testing::spawned(async move {
            closed.run_until_cancelled(serving).await;
        }));
        source.listener(database)
    }

    /// Stops watching.
    pub(crate) async fn close(&self) {
        self.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
