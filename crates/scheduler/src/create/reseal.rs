//! Changing keys: which of them something may be sealed with, and the background work that seals it anew.
//!
//! A key has a row as long as something may be sealed with it. The row says `sealing`, or `leaving` once a pass over the whole
//! store has begun to seal everything anew. Whoever seals with a key makes sure in the same transaction that its row says
//! `sealing`. A pass reads the rows in each of its transactions, and the last one clears those that still say `leaving`: since
//! the pass began nobody has sealed with these keys, and what was sealed before it has sealed anew. A node that was started
//! before keys were changed goes on sealing with the old one, and so keeps it in use; a later pass finishes.
//!
//! A name stands for one key: what tells it from others is kept from the first start with it until nothing is sealed with it
//! any more, and a node that has another key of that name is refused. It could open nothing that others have sealed, nor they
//! what it seals, and neither would find out before.
//!
//! Rows are read by everybody and written when something changes. A pass can be continued by any node that seals with the
//! newest key; it changes no revision, tells no feed and no waiting client, and takes no job from its holder.

mod everything;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use docstore::{Db, DocStore};
use jobs::{Clock, Entropy, JobId, JobType, Jobs};
use serde::{Deserialize, Serialize};
use store::{Call, RangeOptions, Store, Transaction};

use self::everything::{Everything, Page, Place};
use super::{JOB_TYPE, Replications, Scanned};
use crate::data::JobData;
use crate::fault::ServiceError;
use crate::seal::{Check, Sealer, Unreadable, key_of};
use crate::{keys, metrics, strip};

const SEALING: &[u8] = b"1";
const LEAVING: &[u8] = b"0";
/// While some node still seals with an old key, passes follow each other no faster than this, and than four times as long
/// as one takes.
const PAUSE_MS: i64 = 60_000;

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
    place: Place,
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

/// How much is sealed with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Bodies of documents, conflicts and deletions among them.
    pub documents: u64,
    /// What jobs were asked to do.
    pub jobs: u64,
}

/// What one transaction of a pass has done.
enum Step {
    Nothing,
    Some,
    /// The pass is over; these keys are not needed any more.
    Ended(Vec<String>),
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

    async fn read(tx: &Transaction) -> Result<Self, ServiceError> {
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
pub(super) async fn check_keys_in(tx: &Transaction, sealer: &Sealer) -> Result<(), ServiceError> {
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
async fn sealing_in(tx: &Transaction, sealer: &Sealer, key: &str) -> Result<(), ServiceError> {
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

/// Looks at everything that may be sealed, and counts by key. Exact while nobody writes.
pub async fn count_seals(store: &Store) -> Result<BTreeMap<String, Sealed>, ServiceError> {
    let docs = DocStore::new(store.clone(), docstore::Options::default());
    let jobs = Jobs::new(store.clone(), Clock::system(), Entropy::from_os());
    let ty = JobType::new(JOB_TYPE)?;
    let all = Everything {
        docs: &docs,
        jobs: &jobs,
        ty: &ty,
    };
    let mut counts: BTreeMap<String, Sealed> = BTreeMap::new();
    let mut place = Some(Place::first());
    while let Some(from) = place.take() {
        let (from, all) = (&from, &all);
        let (next, found) = store
            .transact(Call::batch("count_seals"), |tx| async move {
                let found = Mutex::new(Vec::new());
                let note = |sealed: Option<String>| {
                    let name = sealed.as_deref().and_then(key_of).map(str::to_owned);
                    found.lock().expect("nobody panics with it").extend(name);
                };
                let body = |_: &Db, _: &str, body: &str| {
                    note(strip::sealed(body));
                    None
                };
                let job = |_: &JobId, data: JobData| {
                    note(data.sealed().map(str::to_owned));
                    None
                };
                let page = all.rewrite_in(&tx, from, &body, &job).await?;
                Ok::<_, ServiceError>((
                    page.next,
                    found.into_inner().expect("nobody panics with it"),
                ))
            })
            .await?;
        for name in found {
            let count = counts.entry(name).or_default();
            match from {
                Place::Documents { .. } => count.documents += 1,
                Place::Jobs { .. } => count.jobs += 1,
            }
        }
        place = next;
    }
    Ok(counts)
}

impl Replications {
    /// To be called in each transaction that writes the data of a job that was not read in it.
    pub(crate) async fn seals_job_in(
        &self,
        tx: &Transaction,
        data: &JobData,
    ) -> Result<(), ServiceError> {
        match data.sealed().and_then(key_of) {
            Some(key) => sealing_in(tx, &self.0.sealer, key).await,
            None => Ok(()),
        }
    }

    /// To be called in each transaction that writes this body.
    pub(super) async fn seals_body_in(
        &self,
        tx: &Transaction,
        body: &str,
    ) -> Result<(), ServiceError> {
        match strip::sealed(body).as_deref().and_then(key_of) {
            Some(key) => sealing_in(tx, &self.0.sealer, key).await,
            None => Ok(()),
        }
    }

    /// Seals a bounded part of what is sealed with old keys with the newest one.
    pub async fn reseal_a_little(&self) -> Result<Scanned, ServiceError> {
        let Some(newest) = self.0.sealer.newest() else {
            return Ok(Scanned::Nothing);
        };
        let now_ms = self.0.jobs.clock().now_ms();
        let (step, resealed) = (self.0.jobs.store())
            .transact(Call::batch("reseal"), |tx| async move {
                self.reseal_in(&tx, newest, now_ms).await
            })
            .await?;
        metrics::resealed(resealed);
        match step {
            Step::Nothing => Ok(Scanned::Nothing),
            Step::Some => Ok(Scanned::Some),
            Step::Ended(keys) => {
                for key in keys {
                    tracing::info!(key, "nothing is sealed with this key any more");
                }
                Ok(Scanned::Some)
            }
        }
    }

    async fn reseal_in(
        &self,
        tx: &Transaction,
        newest: &str,
        now_ms: i64,
    ) -> Result<(Step, u64), ServiceError> {
        let known = KeysInUse::read(tx).await?;
        metrics::keys(known.used.len());
        let sealer = &self.0.sealer;
        // A node with an older configuration leaves it to others, and so does one that lacks a key.
        let able = known.newest.as_deref() == Some(newest);
        if !able || known.old().next().is_none() || known.old().any(|name| !sealer.has(name)) {
            return Ok((Step::Nothing, 0));
        }
        let Some(mut pass) = known.pass.clone().filter(|pass| pass.to == newest) else {
            return Ok((begin_in(tx, &known, newest, now_ms), 0));
        };
        if let Some(ended_ms) = pass.ended_ms {
            let pause_ms = PAUSE_MS.max((ended_ms - pass.began_ms).saturating_mul(4));
            if (0..pause_ms).contains(&(now_ms - ended_ms)) {
                return Ok((Step::Nothing, 0));
            }
            return Ok((begin_in(tx, &known, newest, now_ms), 0));
        }
        let page = self.reseal_page_in(tx, &mut pass).await?;
        let step = if let Some(next) = page.next {
            pass.place = next;
            Step::Some
        } else {
            pass.ended_ms = Some(now_ms);
            Step::Ended(end_in(tx, &known).await?)
        };
        put_in(tx, &pass);
        Ok((step, page.written))
    }

    async fn reseal_page_in(
        &self,
        tx: &Transaction,
        pass: &mut Resealing,
    ) -> Result<Page, ServiceError> {
        let sealer = &self.0.sealer;
        let unreadable = AtomicU64::new(0);
        let left = |what: &str, error: &Unreadable| {
            tracing::warn!(what, %error, "this cannot be sealed anew");
            unreadable.fetch_add(1, Ordering::Relaxed);
            None
        };
        let all = Everything {
            docs: &self.0.docs,
            jobs: &self.0.jobs,
            ty: &self.0.ty,
        };
        let body = |db: &Db, id: &str, body: &str| {
            let new = strip::reseal_body(sealer, db, id, body);
            new.unwrap_or_else(|error| left(id, &error))
        };
        let job = |job: &JobId, mut data: JobData| match data.reseal(sealer, job) {
            Ok(changed) => changed.then_some(data),
            Err(error) => {
                left(&crate::data::job_text(job), &error);
                None
            }
        };
        let page = all.rewrite_in(tx, &pass.place, &body, &job).await?;
        pass.looked += page.looked;
        pass.resealed += page.written;
        pass.unreadable += unreadable.into_inner();
        Ok(page)
    }
}

fn begin_in(tx: &Transaction, known: &KeysInUse, to: &str, now_ms: i64) -> Step {
    for name in known.old() {
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
    put_in(tx, &pass);
    Step::Some
}

/// Lets go of the keys that nobody has sealed with since the pass began.
async fn end_in(tx: &Transaction, known: &KeysInUse) -> Result<Vec<String>, ServiceError> {
    let mut gone = Vec::new();
    for name in known.old() {
        let row = keys::used(name);
        if tx.get(&row).await?.as_deref() == Some(LEAVING) {
            tx.clear(&row);
            tx.clear(&keys::check(name));
            gone.push(name.to_owned());
        }
    }
    Ok(gone)
}

fn put_in(tx: &Transaction, pass: &Resealing) {
    let row = serde_json::to_vec(pass).expect("a pass is JSON");
    tx.set(&keys::pass(), &row);
}

#[cfg(test)]
mod tests;
