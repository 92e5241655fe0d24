//! Creating, deleting, listing and configuring databases.

use serde::{Serialize, Serializer};
use store::{RangeOptions, Transaction};

use crate::rows::{DbRow, decode_text, encode_text};
use crate::{
    Db, DbName, DocStore, Error, IdPage, IdRange, InstanceId, Result, Seq, chunks, keys, seq,
};

/// The number of rows of a counter.
pub(crate) const SHARDS: u16 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Documents = 0,
    Deleted = 1,
    Bytes = 2,
}

/// The information about a database, as CouchDB's JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DbInfo {
    #[serde(serialize_with = "as_text")]
    pub db_name: DbName,
    /// Documents that are not deleted, design documents among them.
    pub doc_count: u64,
    pub doc_del_count: u64,
    /// The sequence of the newest write.
    pub update_seq: Seq,
    /// Bytes of all leaves.
    pub sizes: Sizes,
    /// `0`: nothing is purged.
    pub purge_seq: &'static str,
    /// Nothing needs compaction.
    pub compact_running: bool,
    pub disk_format_version: u32,
    /// `0`, as in CouchDB 3.
    pub instance_start_time: &'static str,
    /// Empty: there are no properties.
    pub props: Props,
    /// One shard, one copy, as clients see it.
    pub cluster: Cluster,
}

/// How large a database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// The same as `active`, since the size on disk is unknown.
    pub file: u64,
    /// Bodies and attachments as clients sent them.
    pub external: u64,
    /// Bodies and attachments of leaves.
    pub active: u64,
}

/// An empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Props {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// Shards.
    pub q: u8,
    /// Copies.
    pub n: u8,
    pub w: u8,
    pub r: u8,
}

fn as_text<S: Serializer>(name: &DbName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}

impl DocStore {
    /// Creates a database; `instance` must be random.
    pub async fn create(&self, name: &DbName, instance: InstanceId) -> Result<Db> {
        let create = |tx: Transaction| async move {
            let tx = &tx;
            let key = keys::database(name.as_str());
            match tx.get(&key).await? {
                // The id is random, so an earlier attempt of this call created it.
                Some(row) if DbRow::decode(&row)?.instance == instance => {}
                Some(_) => return Err(Error::DatabaseExists),
                // An earlier attempt created it, and it has been deleted since.
                None if tx.get(&keys::deleted(instance)).await?.is_some() => {}
                None => {
                    let revs_limit = self.0.options.revs_limit;
                    let row = DbRow {
                        instance,
                        revs_limit,
                    };
                    tx.set(&key, &row.encode());
                }
            }
            Ok(Db::new(name.clone(), instance))
        };
        self.0.store.transact("create_database", create).await
    }

    pub async fn open_in(&self, tx: &Transaction, name: &DbName) -> Result<Db> {
        let row = tx.get(&keys::database(name.as_str())).await?;
        let row = DbRow::decode(&row.ok_or(Error::NoDatabase)?)?;
        Ok(Db::new(name.clone(), row.instance))
    }

    pub async fn open(&self, name: &DbName) -> Result<Db> {
        let open = |tx| async move { self.open_in(&tx, name).await };
        self.0.store.transact("open_database", open).await
    }

    /// Deletes a database. [`Self::sweep`] removes its rows and what hooks wrote for its documents.
    pub async fn delete_database(&self, db: &Db) -> Result<()> {
        let delete = |tx: Transaction| async move { self.delete_database_in(&tx, db).await };
        self.0.store.transact("delete_database", delete).await
    }

    pub async fn delete_database_in(&self, tx: &Transaction, db: &Db) -> Result<()> {
        match self.check_in(tx, db).await {
            Ok(_) => {}
            // An earlier attempt or another client has deleted it.
            Err(Error::NoDatabase) if tx.maybe_committed() => return Ok(()),
            Err(error) => return Err(error),
        }
        tx.clear(&keys::database(db.name().as_str()));
        tx.set(
            &keys::deleted(db.instance()),
            &encode_text(db.name().as_str()),
        );
        // Wakes listeners, which then find that the database does not exist. Without any writes the row
        // is new; the sweep removes it with the others.
        let now = seq::template(self.0.store.incarnation(), seq::ordinal(tx));
        tx.set_versionstamped_value(&db.keys.update_seq(), &now);
        Ok(())
    }

    pub async fn databases_page_in(&self, tx: &Transaction, range: &IdRange) -> Result<IdPage<Db>> {
        range
            .page(tx, &keys::databases(), |name, value| {
                let row = DbRow::decode(value)?;
                Ok(Db::new(DbName::stored(name), row.instance))
            })
            .await
    }

    /// A page of the databases, by name.
    pub async fn databases_page(&self, range: &IdRange) -> Result<IdPage<Db>> {
        let list = |tx| async move { self.databases_page_in(&tx, range).await };
        self.0.store.transact("list_databases", list).await
    }

    pub async fn info_in(&self, tx: &Transaction, db: &Db) -> Result<DbInfo> {
        self.check_in(tx, db).await?;
        let bytes = self.count(tx, db, Counter::Bytes).await?;
        Ok(DbInfo {
            db_name: db.name().clone(),
            doc_count: self.count(tx, db, Counter::Documents).await?,
            doc_del_count: self.count(tx, db, Counter::Deleted).await?,
            update_seq: self.update_seq(tx, db).await?,
            sizes: Sizes {
                file: bytes,
                external: bytes,
                active: bytes,
            },
            purge_seq: "0",
            compact_running: false,
            disk_format_version: 1,
            instance_start_time: "0",
            props: Props {},
            cluster: Cluster {
                q: 1,
                n: 1,
                w: 1,
                r: 1,
            },
        })
    }

    pub async fn info(&self, db: &Db) -> Result<DbInfo> {
        let info = |tx| async move { self.info_in(&tx, db).await };
        self.0.store.transact("database_info", info).await
    }

    pub async fn security_in(&self, tx: &Transaction, db: &Db) -> Result<Option<String>> {
        self.check_in(tx, db).await?;
        let range = keys::below(&db.keys.security());
        let (value, _) = chunks::read(tx.get_range(range, RangeOptions::default())).await?;
        if value.is_empty() {
            return Ok(None);
        }
        decode_text(&value).map(Some)
    }

    /// The security object; `None` if it was never set.
    pub async fn security(&self, db: &Db) -> Result<Option<String>> {
        let read = |tx| async move { self.security_in(&tx, db).await };
        self.0.store.transact("read_security", read).await
    }

    /// Sets the security object, which the caller has validated.
    pub async fn set_security(&self, db: &Db, security: &str) -> Result<()> {
        let bytes_max = self.0.options.document_bytes_max;
        if security.len() > bytes_max {
            return Err(Error::TooLarge {
                id: "_security".to_owned(),
                what: "object",
                bytes: security.len(),
                bytes_max,
            });
        }
        let set = |tx: Transaction| async move {
            self.check_in(&tx, db).await?;
            let key = db.keys.security();
            tx.clear_range(keys::below(&key));
            chunks::write(&tx, &key, &encode_text(security));
            Ok(())
        };
        self.0.store.transact("set_security", set).await
    }

    /// How many revisions of each branch are kept.
    pub async fn revs_limit(&self, db: &Db) -> Result<u32> {
        let read = |tx| async move { Ok(self.check_in(&tx, db).await?.revs_limit) };
        self.0.store.transact("read_revs_limit", read).await
    }

    /// Sets how many revisions of each branch are kept, from the next write of each document on.
    pub async fn set_revs_limit(&self, db: &Db, limit: u32) -> Result<()> {
        let set = |tx: Transaction| async move {
            let row = self.check_in(&tx, db).await?;
            let row = DbRow {
                revs_limit: limit.max(1),
                ..row
            };
            tx.set(&keys::database(db.name().as_str()), &row.encode());
            Ok(())
        };
        self.0.store.transact("set_revs_limit", set).await
    }

    /// Checks that the database is still the one that was opened. A transaction that calls this conflicts
    /// with the deletion of the database.
    pub(crate) async fn check_in(&self, tx: &Transaction, db: &Db) -> Result<DbRow> {
        let row = tx.get(&keys::database(db.name().as_str())).await?;
        let row = DbRow::decode(&row.ok_or(Error::NoDatabase)?)?;
        if row.instance != db.instance() {
            return Err(Error::NoDatabase);
        }
        Ok(row)
    }

    /// The value of a counter, without a conflict range.
    pub(crate) async fn count(&self, tx: &Transaction, db: &Db, counter: Counter) -> Result<u64> {
        let range = db.keys.counters(counter as u16);
        let rows = tx.snapshot().get_range(range, RangeOptions::default());
        let mut sum = 0_i64;
        for row in rows.collect().await? {
            let bytes = <[u8; 8]>::try_from(&*row.value);
            sum += i64::from_le_bytes(
                bytes.map_err(|_| Error::corrupt("a counter cannot be decoded"))?,
            );
        }
        u64::try_from(sum).map_err(|_| Error::corrupt("a counter is below zero"))
    }

    /// The sequence of the newest write, without a conflict range.
    pub(crate) async fn update_seq(&self, tx: &Transaction, db: &Db) -> Result<Seq> {
        match tx.snapshot().get(&db.keys.update_seq()).await? {
            Some(value) => Seq::decode(&value),
            None => Ok(Seq::ZERO),
        }
    }
}

/// Adds to a counter, in a shard chosen by the document's id.
pub(crate) fn add(tx: &Transaction, db: &Db, counter: Counter, id: &str, delta: i64) {
    if delta != 0 {
        // FNV-1a, which is the same in every version of the standard library.
        let hash = (id.bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let shard = (hash >> 32) % u64::from(SHARDS);
        let shard = u16::try_from(shard).unwrap_or_default();
        tx.add(&db.keys.counter(counter as u16, shard), delta);
    }
}

#[cfg(test)]
mod tests {
    use store::Store;

    use super::*;
    use crate::Options;

    /// A watch fires only if the value changes, and this row was never written.
    #[tokio::test]
    async fn deleting_an_empty_database_changes_what_is_watched() {
        let store = Store::open("memory:").await.expect("opened");
        let docs = DocStore::new(store.clone(), Options::default());
        let name = DbName::parse("_replicator", &["_replicator"]).expect("a name");
        let db = docs
            .create(&name, InstanceId([7; 16]))
            .await
            .expect("created");
        let watched = || async {
            let read = async |tx: Transaction| tx.get(&db.keys.update_seq()).await;
            store.transact("read", read).await.expect("read")
        };
        let before = watched().await;
        docs.delete_database(&db).await.expect("deleted");
        assert_ne!(watched().await, before);
    }
}
