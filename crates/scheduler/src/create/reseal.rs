//! Reseals everything in the background after keys were changed.
//!
//! `seal/src/in_use.rs` describes the rows that record which keys are needed. Any node that seals with the newest key can
//! continue a pass. A pass changes no revision, notifies no feed and no waiting client, and takes no job from its
//! holder.

mod everything;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use docstore::{Db, DocStore};
use jobs::{Clock, Entropy, JobId, JobType, Jobs};
use seal::{KeysInUse, Place, Resealing, Unreadable, key_of, key_of_data};
use store::{Call, Store, Transaction};

use self::everything::{Everything, Page, Rewrite};
use crate::data::JobData;
use crate::fault::ServiceError;
use crate::service::{JOB_TYPE, Replications, Scanned};
use crate::{metrics, strip};

/// While some node still seals with an old key, the minimum pause between passes, and the multiple of a pass's own
/// duration.
const PAUSE_MS: i64 = 60_000;

/// How much is sealed with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Bodies of documents, including conflicts and deletions.
    pub documents: u64,
    /// Parameters of replications, and data of users' jobs and schedules.
    pub jobs: u64,
}

/// The result of one transaction of a pass.
enum Step {
    Nothing,
    Some,
    /// The pass is complete; these keys are not needed any more.
    Ended(Vec<String>),
}

/// Counts everything that is sealed, by key. Exact while there are no writes.
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
                let note = |key: Option<&str>| {
                    found
                        .lock()
                        .expect("no holder of the lock panics")
                        .extend(key.map(str::to_owned));
                };
                let body = |_: &Db, _: &str, body: &str| {
                    note(strip::sealed(body).as_deref().and_then(key_of));
                    None
                };
                let job = |_: &JobId, data: JobData| {
                    note(data.sealed().and_then(key_of));
                    None
                };
                let data = |_: &[u8], data: &Bytes| {
                    note(key_of_data(data));
                    None
                };
                let page = all
                    .rewrite_in(
                        &tx,
                        from,
                        &Rewrite {
                            body: &body,
                            job: &job,
                            data: &data,
                        },
                    )
                    .await?;
                Ok::<_, ServiceError>((
                    page.next,
                    found.into_inner().expect("no holder of the lock panics"),
                ))
            })
            .await?;
        for name in found {
            let count = counts.entry(name).or_default();
            match from {
                Place::Documents { .. } => count.documents += 1,
                _ => count.jobs += 1,
            }
        }
        place = next;
    }
    Ok(counts)
}

impl Replications {
    /// Reseals a bounded part of what is sealed with old keys.
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
            known.begin_pass_in(tx, newest, now_ms);
            return Ok((Step::Some, 0));
        };
        if let Some(ended_ms) = pass.ended_ms {
            let pause_ms = PAUSE_MS.max((ended_ms - pass.began_ms).saturating_mul(4));
            if (0..pause_ms).contains(&(now_ms - ended_ms)) {
                return Ok((Step::Nothing, 0));
            }
            known.begin_pass_in(tx, newest, now_ms);
            return Ok((Step::Some, 0));
        }
        let page = self.reseal_page_in(tx, &mut pass).await?;
        let step = if let Some(next) = page.next {
            pass.place = next;
            Step::Some
        } else {
            pass.ended_ms = Some(now_ms);
            Step::Ended(known.end_pass_in(tx).await?)
        };
        pass.put_in(tx);
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
            tracing::warn!(what, %error, "cannot reseal a value");
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
        let data = |context: &[u8], data: &Bytes| {
            let new = sealer.reseal_data(context, data);
            new.unwrap_or_else(|error| {
                left(&String::from_utf8_lossy(context), &error).map(Bytes::from)
            })
        };
        let rewrite = Rewrite {
            body: &body,
            job: &job,
            data: &data,
        };
        let page = all.rewrite_in(tx, &pass.place, &rewrite).await?;
        pass.looked += page.looked;
        pass.resealed += page.written;
        pass.unreadable += unreadable.into_inner();
        Ok(page)
    }
}

#[cfg(test)]
mod tests;
