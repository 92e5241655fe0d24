//! Which keys may have sealed something in the store.
//!
//! A key has a row as long as something may be sealed with it. The row says `sealing`, or `leaving` once a pass over
//! the whole store has begun to reseal everything. A transaction that seals with a key ensures that its row says
//! `sealing`. A pass (`scheduler/src/create/reseal.rs`) reads the rows in each of its transactions, and its last one clears those
//! that still say `leaving`: these keys have sealed nothing since the pass began, and everything they sealed before is
//! resealed. A node started before the keys were changed continues to seal with the old one, and so keeps it in use; a
//! later pass completes the change.
//!
//! A name identifies one key. From the first start with a key until nothing is sealed with it any more, a check value
//! distinguishes it from other keys of that name. A node with a different key of the name is rejected: it could not
//! open what other nodes sealed, nor they what it seals, and without the check neither would notice in time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use store::{RangeOptions, Store, Transaction};

use crate::sealer::Check;
use crate::{Error, Result, Sealer, Unreadable, keys};

const SEALING: &[u8] = b"1";
const LEAVING: &[u8] = b"0";

/// A pass over the store that reseals everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resealing {
    /// The new key.
    pub to: String,
    pub began_ms: i64,
    /// When it ended; `None` while in progress.
    pub ended_ms: Option<i64>,
    /// Documents and jobs checked.
    pub looked: u64,
    /// Bodies and jobs resealed.
    pub resealed: u64,
    /// Values that could not be opened, and were left unchanged.
    pub unreadable: u64,
    pub place: Place,
}

/// The position of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// After a document of a database; `None` before the first one.
    Documents {
        db: Option<String>,
        after: Option<String>,
    },
    /// After a replication's job.
    Jobs { after: Option<Vec<u8>> },
    /// After a job of another type; `None` before the first one.
    Data {
        ty: Option<String>,
        after: Option<Vec<u8>>,
    },
    /// After another value; `None` before the first one.
    Values { after: Option<String> },
}

impl Resealing {
    pub fn put_in(&self, tx: &Transaction) {
        let row = serde_json::to_vec(self).expect("a pass is JSON");
        tx.set(&keys::pass(), &row);
    }
}

impl Place {
    pub fn first() -> Self {
        Self::Documents {
            db: None,
            after: None,
        }
    }
}

/// The state of a store's keys, without the keys themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysInUse {
    /// The first key of the node that was started last: everything is to be sealed with it.
    pub newest: Option<String>,
    /// All keys that may be in use. A node without one of them is rejected.
    pub used: Vec<String>,
    /// The last pass, if any.
    pub pass: Option<Resealing>,
    /// The check values by name.
    checks: BTreeMap<String, Check>,
}

impl KeysInUse {
    /// Old keys that are still needed.
    pub fn old(&self) -> impl Iterator<Item = &str> {
        let newest = self.newest.as_deref();
        (self.used.iter().map(String::as_str)).filter(move |name| Some(*name) != newest)
    }

    /// Names whose key differs from the one that the store knows.
    pub fn others<'a>(&self, sealer: &'a Sealer) -> impl Iterator<Item = &'a str> {
        let other = |(name, check): &(&str, Check)| {
            let known = self.checks.get(*name);
            known.is_some_and(|known| known != check)
        };
        sealer.checks().filter(other).map(|(name, _)| name)
    }

    pub async fn read(tx: &Transaction) -> Result<Self> {
        let newest = tx.get(&keys::seal()).await?;
        let rows = tx.get_range(keys::uses(), RangeOptions::default());
        let rows = rows.collect().await?;
        let used = rows.iter().map(|row| keys::name(&row.key));
        let rows = tx.get_range(keys::checks(), RangeOptions::default());
        let mut checks = BTreeMap::new();
        for row in rows.collect().await? {
            let check = Check::try_from(&*row.value)
                .map_err(|_| Error::corrupt("what a key is known by cannot be decoded"))?;
            checks.insert(keys::name(&row.key)?, check);
        }
        let pass = tx.get(&keys::pass()).await?;
        let pass = pass.map(|row| serde_json::from_slice(&row)).transpose();
        Ok(Self {
            newest: newest.map(|row| String::from_utf8_lossy(&row).into_owned()),
            used: used.collect::<Result<_>>()?,
            pass: pass.map_err(|_| Error::corrupt("a pass cannot be decoded"))?,
            checks,
        })
    }

    /// Begins a pass that seals everything with this key.
    pub fn begin_pass_in(&self, tx: &Transaction, to: &str, now_ms: i64) {
        for name in self.old() {
            tx.set(&keys::used(name), LEAVING);
        }
        let pass = Resealing {
            to: to.to_owned(),
            began_ms: now_ms,
            ended_ms: None,
            looked: 0,
            resealed: 0,
            unreadable: 0,
            place: Place::first(),
        };
        pass.put_in(tx);
    }

    /// Releases the keys that were not used for sealing since the pass began, and returns them.
    pub async fn end_pass_in(&self, tx: &Transaction) -> Result<Vec<String>> {
        let mut gone = Vec::new();
        for name in self.old() {
            let row = keys::used(name);
            if tx.get(&row).await?.as_deref() == Some(LEAVING) {
                tx.clear(&row);
                tx.clear(&keys::check(name));
                gone.push(name.to_owned());
            }
        }
        Ok(gone)
    }
}

/// A node with other keys than earlier nodes could not open what they sealed, nor they what it seals. Makes the first
/// key of the ring the newest.
pub async fn check_keys_in(tx: &Transaction, sealer: &Sealer) -> Result<()> {
    let Some(newest) = sealer.newest() else {
        return Ok(());
    };
    let known = KeysInUse::read(tx).await?;
    let needed = known.used.iter().chain(&known.newest);
    if let Some(missing) = needed.into_iter().find(|name| !sealer.has(name)) {
        return Err(Unreadable::NoKey(missing.clone()).into());
    }
    if let Some(other) = known.others(sealer).next() {
        return Err(Unreadable::OtherKey(other.to_owned()).into());
    }
    // Unused keys too: a difference between nodes shows before the key is needed.
    for (name, check) in sealer.checks() {
        if !known.checks.contains_key(name) {
            tx.set(&keys::check(name), &check);
        }
    }
    if known.newest.as_deref() != Some(newest) {
        tx.set(&keys::seal(), newest.as_bytes());
    }
    if known.used.is_empty() && known.newest.is_some() {
        // Written by a version without these rows: anything may be sealed with any key.
        for name in sealer.names() {
            tx.set(&keys::used(name), SEALING);
        }
    }
    sealing_in(tx, sealer, newest).await
}

/// Must be called in each transaction that writes sealed values.
pub async fn sealing_in(tx: &Transaction, sealer: &Sealer, key: &str) -> Result<()> {
    let row = keys::used(key);
    if tx.get(&row).await?.as_deref() != Some(SEALING) {
        tx.set(&row, SEALING);
        // A pass may have released the name.
        if let Some((_, check)) = sealer.checks().find(|(name, _)| *name == key) {
            tx.set(&keys::check(key), &check);
        }
    }
    Ok(())
}

/// Which keys a store needs.
pub async fn keys_in_use(store: &Store) -> Result<KeysInUse> {
    let read = |tx: Transaction| async move { KeysInUse::read(&tx).await };
    store.transact("read_keys", read).await
}
