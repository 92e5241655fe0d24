//! Replications that wait for changes without running: who tells them that their source has changed.
//!
//! Of every server, seen with the same credentials, there is one [`Source`](source::Source), whatever the number of
//! databases on it. It follows `_db_updates` where the server lets it, and asks `_dbs_info` for the sequences of the
//! databases that are listened to: often when there is no feed, now and then when there is, because a feed may be deaf. A
//! server that has neither is not listened to, and its replications keep feeds of their own.
//!
//! Being told once too often costs a few requests. Not being told costs a copy: so an [`Ear`] is armed before the run
//! stops that it stands in for, and hears everything from then on.

mod source;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use couch::{Endpoint, Network};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use source::Ear;
use source::Source;

use crate::witness;

/// How long a server may take to say whether it can be listened to.
const ARM_MAX: Duration = Duration::from_secs(30);

/// The servers that a node listens to.
pub(crate) struct Sources {
    network: Network,
    /// By address; those of one address have different credentials.
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

    /// Listens for changes of a database. `None` if its server does not tell.
    pub(crate) async fn listen(&self, database: &Endpoint) -> Option<Ear> {
        let (server, name) = database.server()?;
        let ear = self.ear(server, &name)?;
        let armed = timeout(ARM_MAX, ear.armed()).await;
        armed.is_ok_and(|armed| armed).then_some(ear)
    }

    fn ear(&self, server: Endpoint, database: &str) -> Option<Ear> {
        let mut servers = (self.servers.lock()).unwrap_or_else(PoisonError::into_inner);
        let same = servers.entry(server.url_text().to_owned()).or_default();
        if let Some(at) = (same.iter()).position(|source| *source.endpoint() == server) {
            if let Some(ear) = same[at].ear(database) {
                return Some(ear);
            }
            same.swap_remove(at);
        }
        let source = Arc::new(Source::new(server));
        same.push(Arc::clone(&source));
        let (network, closed) = (self.network.clone(), self.closed.clone());
        let listening = Arc::clone(&source);
        let serving = Box::pin(listening.serve(network));
        self.tasks.spawn(witness::spawned(async move {
            closed.run_until_cancelled(serving).await;
        }));
        source.ear(database)
    }

    /// Ends all listening.
    pub(crate) async fn close(&self) {
        self.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
