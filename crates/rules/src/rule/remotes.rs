//! Remotes as they are in the store.

use scheduler::{RemoteId, ServiceError, remote_document};
use store::Transaction;

use super::document::Task;
use super::remote::Remote;
use super::set::Compiled;
use super::store::Rules;
use crate::keys;

/// Whether the source of a remote is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// A node follows its server.
    pub followed: bool,
    /// Each database that was there when the remote was written has its replications.
    pub looked_up: bool,
}

impl Rules {
    /// A remote as it is now, enabled or not.
    pub async fn remote(&self, name: &str) -> Result<Option<Compiled>, ServiceError> {
        let (db, doc_id) = remote_document(name);
        if super::KINDS
            .iter()
            .all(|kind| db != *kind && !db.ends_with(&format!("/{kind}")))
        {
            return Ok(None);
        }
        let rule = self.named(db, doc_id).await?;
        let rule = rule.and_then(Result::ok);
        Ok(rule.filter(|rule| rule.remote().is_some()))
    }

    /// Whether the source of a remote is watched.
    pub async fn watched(&self, rule: &Compiled) -> Result<Watched, ServiceError> {
        let Some(server) = rule.rule.databases.server() else {
            return Ok(Watched {
                followed: false,
                looked_up: false,
            });
        };
        let (server, replications) = (server.as_str(), self.replications());
        let look = |tx: Transaction| async move {
            let followed = replications.following_in(&tx, server).await?.is_some();
            let row = tx.snapshot().get(&keys::seeded(server, &rule.id)).await?;
            let looked_up = row.is_some_and(|row| keys::is_seeded_in(&row, &rule.rev));
            Ok::<_, ServiceError>(Watched {
                followed,
                looked_up,
            })
        };
        let store = replications.docs().store();
        store.transact("look_at_remote", look).await
    }
}

impl Compiled {
    /// The remote that the rule is, if it is one.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.rule.task {
            Task::Copy(remote) => Some(remote),
            Task::Replicate(_) | Task::Call(_) => None,
        }
    }

    /// For [`scheduler::Replications::remote_jobs`] and the like.
    pub fn remote_id(&self) -> RemoteId<'_> {
        RemoteId {
            instance: self.id.instance,
            doc_id: &self.id.doc,
            rev: &self.rev,
        }
    }
}
