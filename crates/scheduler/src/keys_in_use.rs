//! Which keys something in the store may be sealed with.
//!
//! A key has a row as long as something may be sealed with it. The row says `sealing`, or `leaving` once a pass over the whole
//! store has begun to seal everything anew. A transaction that seals with a key makes sure that its row says `sealing`. A pass
//! (`create/reseal.rs`) reads the rows in each of its transactions, and its last one clears those that still say `leaving`:
//! nothing has been sealed with these keys since the pass began, and it has sealed anew what was sealed before. A node that
//! was started before the keys were changed goes on sealing with the old one, and so keeps it in use; a later pass finishes.
//!
//! A name stands for one key. A check value tells it from others, from the first start with it until nothing is sealed with it
//! any more, and a node that has another key of that name is refused: it could not open what other nodes have sealed, nor they
//! what it seals, and neither would find out before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use store::{RangeOptions, Store, Transaction};

use crate::fault::ServiceError;
use crate::keys;
use crate::seal::{Check, Sealer, Unreadable};

pub(crate) const SEALING: &[u8] = b"1";
pub(crate) const LEAVING: &[u8] = b"0";

/// A pass over the store that seals everything anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resealing {
    /// The key that everything is sealed with.
    pub to: String,
    pub began_ms: i64,
    /// When it ended; `None` while it lasts.
    pub ended_ms: Option<i64>,
    /// Documents and jobs that were looked at.
    pub looked: u64,
    /// Bodies and jobs that were sealed anew.
    pub resealed: u64,
    /// What could not be opened, and was left as it is.
    pub unreadable: u64,
    pub(crate) place: Place,
}

/// Where a pass stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// After a document of a database; before the first ones.
    Documents {
        db: Option<String>,
        after: Option<String>,
    },
    Jobs {
        after: Option<Vec<u8>>,
    },
}

impl Place {
    pub(crate) fn first() -> Self {
        Self::Documents {
            db: None,
            after: None,
        }
    }
}

/// What is known of the keys of a store, without any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysInUse {
    /// The key of the node that was started last: everything is to be sealed with it.
    pub newest: Option<String>,
    /// All keys that something may be sealed with. A node without one of them is refused.
    pub used: Vec<String>,
    /// The last pass, if there was one.
    pub pass: Option<Resealing>,
    /// What the keys of these names are known by.
    checks: BTreeMap<String, Check>,
}

impl KeysInUse {
    /// Keys that are needed although nothing should be sealed with them any more.
    pub fn old(&self) -> impl Iterator<Item = &str> {
        let newest = self.newest.as_deref();
        (self.used.iter().map(String::as_str)).filter(move |name| Some(*name) != newest)
    }

    /// Names of keys that are others than those that the store knows by these names.
    pub fn others<'a>(&self, sealer: &'a Sealer) -> impl Iterator<Item = &'a str> {
        let other = |(name, check): &(&str, Check)| {
            let known = self.checks.get(*name);
            known.is_some_and(|known| known != check)
        };
        sealer.checks().filter(other).map(|(name, _)| name)
    }

    pub(crate) async fn read(tx: &Transaction) -> Result<Self, ServiceError> {
        let newest = tx.get(&keys::seal()).await?;
        let rows = tx.get_range(keys::uses(), RangeOptions::default());
        let rows = rows.collect().await?;
        let used = rows.iter().map(|row| keys::used_key(&row.key));
        let rows = tx.get_range(keys::checks(), RangeOptions::default());
        let mut checks = BTreeMap::new();
        for row in rows.collect().await? {
            let check = Check::try_from(&*row.value)
                .map_err(|_| ServiceError::corrupt("what a key is known by cannot be decoded"))?;
            checks.insert(keys::used_key(&row.key)?, check);
        }
        let pass = tx.get(&keys::pass()).await?;
        let pass = pass.map(|row| serde_json::from_slice(&row)).transpose();
        Ok(Self {
            newest: newest.map(|row| String::from_utf8_lossy(&row).into_owned()),
            used: used.collect::<Result<_, _>>()?,
            pass: pass.map_err(|_| ServiceError::corrupt("a pass cannot be decoded"))?,
            checks,
        })
    }
}

/// A node with other keys than those before it could read nothing of what they sealed, nor they of its. Makes the first
/// key of the ring the newest.
pub(crate) async fn check_keys_in(tx: &Transaction, sealer: &Sealer) -> Result<(), ServiceError> {
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
    // Those too that nothing is sealed with yet: that nodes have different ones shows before one of them is needed.
    for (name, check) in sealer.checks() {
        if !known.checks.contains_key(name) {
            tx.set(&keys::check(name), &check);
        }
    }
    if known.newest.as_deref() != Some(newest) {
        tx.set(&keys::seal(), newest.as_bytes());
    }
    if known.used.is_empty() && known.newest.is_some() {
        // Nobody has kept these rows so far: what is there may be sealed with any key.
        for name in sealer.names() {
            tx.set(&keys::used(name), SEALING);
        }
    }
    sealing_in(tx, sealer, newest).await
}

/// To be called in each transaction that writes what is sealed with a key.
pub(crate) async fn sealing_in(
    tx: &Transaction,
    sealer: &Sealer,
    key: &str,
) -> Result<(), ServiceError> {
    let row = keys::used(key);
    if tx.get(&row).await?.as_deref() != Some(SEALING) {
        tx.set(&row, SEALING);
        // A pass may have let the name go.
        if let Some((_, check)) = sealer.checks().find(|(name, _)| *name == key) {
            tx.set(&keys::check(key), &check);
        }
    }
    Ok(())
}

/// Which keys a store needs.
pub async fn keys_in_use(store: &Store) -> Result<KeysInUse, ServiceError> {
    let read = |tx: Transaction| async move { KeysInUse::read(&tx).await };
    store.transact("read_keys", read).await
}
