//! Whole databases: scanning all documents again, and removing the jobs of deleted databases.
//!
//! Jobs are created with documents, so a new database needs no scan. A scan finds documents that arrived in another
//! way, such as an import of rows, or that were rejected under a configuration that has changed since. A marker records
//! its position, so any node can continue it.

use std::time::Duration;

use docstore::{AllDocsQuery, Db, IdRange, InstanceId, ReadOptions, Swept};
use jobs::Op;
use store::{Call, RangeOptions, Transaction};
use tokio::time::timeout;

use super::owner::Writer;
use crate::fault::ServiceError;
use crate::keys;
use crate::service::{Replications, Scanned};

/// How long a deletion takes to remove the jobs of a database.
const SWEEP_MAX: Duration = Duration::from_secs(5);
/// Documents per transaction.
const DOCUMENTS_MAX: u64 = 100;

impl Replications {
    /// Requests a background scan of a database.
    pub async fn rescan(&self, db: &Db) -> Result<(), ServiceError> {
        (self.0.jobs.store())
            .transact("rescan", |tx| async move {
                self.0.docs.open_in(&tx, db.name()).await?;
                self.rescan_in(&tx, db);
                Ok(())
            })
            .await
    }

    /// [`Self::rescan`] in the caller's transaction.
    pub fn rescan_in(&self, tx: &Transaction, db: &Db) {
        tx.set(&keys::scan(db.instance()), &marker(db.name().as_str(), ""));
    }

    /// Does a bounded piece of background work: scans a database, removes jobs of a deleted one, or reseals. Every node
    /// calls this until there is nothing to do, and periodically after that.
    pub async fn work_a_little(&self) -> Result<Scanned, ServiceError> {
        let op = self.0.jobs.op();
        let scanned = (self.0.jobs.store())
            .transact(Call::batch("scan_documents"), |tx| async move {
                self.scan_in(&tx, &op).await
            })
            .await?;
        if scanned == Scanned::Some {
            return Ok(scanned);
        }
        match self.0.docs.sweep(&self.hook(Writer::Replicator)).await? {
            Swept::Nothing => self.reseal_a_little().await,
            Swept::Some(_) | Swept::Last(_) => Ok(Scanned::Some),
        }
    }

    async fn scan_in(&self, tx: &Transaction, op: &Op) -> Result<Scanned, ServiceError> {
        let rows = tx
            .get_range(keys::scans(), RangeOptions::limit(1))
            .collect();
        let Some(row) = rows.await?.into_iter().next() else {
            return Ok(Scanned::Nothing);
        };
        let (name, after) = serde_json::from_slice::<(String, String)>(&row.value)
            .map_err(|_| ServiceError::corrupt("a marker of a scan cannot be decoded"))?;
        let name = self.0.docs.name(&name)?;
        let db = match self.0.docs.open_in(tx, &name).await {
            Ok(db) if keys::scan(db.instance()) == *row.key => db,
            // The database was deleted or recreated: the sweep of deleted databases does the rest.
            Ok(_) | Err(docstore::Error::NoDatabase) => {
                tx.clear(&row.key);
                return Ok(Scanned::Some);
            }
            Err(error) => return Err(error.into()),
        };
        let query = AllDocsQuery {
            range: IdRange {
                after: (!after.is_empty()).then_some(after),
                limit: Some(DOCUMENTS_MAX),
                ..IdRange::default()
            },
            keys: None,
            include_docs: Some(ReadOptions::default()),
        };
        let page = self.0.docs.all_docs_page_in(tx, &db, &query).await?;
        let hook = self.replicators_hook(*op);
        let mut last = None;
        for row in page.rows {
            last = Some(row.id.clone());
            let doc = row.value.and_then(|value| value.doc);
            if let Some(doc) = doc.filter(|doc| !doc.id.starts_with("_design/")) {
                let op = hook.op(&db, &doc.id, &doc.rev.to_string());
                self.document_in(tx, &op, &db, &doc, None).await?;
            }
        }
        match last {
            Some(last) => tx.set(&row.key, &marker(db.name().as_str(), &last)),
            None => tx.clear(&row.key),
        }
        Ok(Scanned::Some)
    }

    pub async fn create_database(&self, name: &str) -> Result<Db, ServiceError> {
        let name = self.0.docs.name(name)?;
        let instance = InstanceId(self.entropy().bits().to_be_bytes());
        Ok(self.0.docs.create(&name, instance).await?)
    }

    /// Deletes a database, then its jobs, whose holders are notified.
    pub async fn delete_database(&self, db: &Db) -> Result<(), ServiceError> {
        self.0.docs.delete_database(db).await?;
        self.sweep_deleted().await;
        Ok(())
    }

    /// Removes what deleted databases leave, for a while. [`Self::work_a_little`] removes later what takes longer.
    pub async fn sweep_deleted(&self) {
        let hook = &self.hook(Writer::Replicator);
        let sweep = async {
            while self.0.docs.sweep(hook).await? != Swept::Nothing {}
            Ok::<_, ServiceError>(())
        };
        if let Ok(Err(error)) = timeout(SWEEP_MAX, sweep).await {
            tracing::debug!(error = %wire::chain(&error), "sweep a deleted database");
        }
    }
}

fn marker(name: &str, after: &str) -> Vec<u8> {
    serde_json::to_vec(&(name, after)).expect("two texts are JSON")
}
