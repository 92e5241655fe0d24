//! Other bytes for the data of jobs, which mean the same: as when they are encrypted with another key.
//!
//! Nothing else changes: state, times, holder and lock stay, no run begins or ends, and nobody is told.

use std::sync::Arc;

use bytes::Bytes;
use store::{RangeOptions, Transaction};

use crate::model::header::{Blob, Header};
use crate::model::keys::Keys;
use crate::{JobId, JobType, Jobs, Result};

/// How many jobs one transaction looks at.
const JOBS_MAX: usize = 200;
/// About how many bytes of data it reads and writes: data beyond that is alone.
const BYTES_MAX: usize = 2_000_000;

/// How far a rewriting has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The job after which to go on; `None` is before the first.
    pub after: Option<JobId>,
    /// That was the last job.
    pub done: bool,
    /// Jobs that were looked at.
    pub looked: u64,
    /// Data that was written.
    pub written: u64,
}

/// The data that a job has, and that it will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Now,
    Next,
}

impl Part {
    fn of(self, header: &Header) -> Option<&Blob> {
        match self {
            Self::Now => Some(&header.data),
            Self::Next => header.next.as_ref().and_then(|next| next.data.as_ref()),
        }
    }

    fn put(self, header: &mut Header, data: Bytes) {
        let label = self.of(header).and_then(|blob| blob.label);
        let blob = Blob {
            label,
            ..header.blob(data)
        };
        match (self, &mut header.next) {
            (Self::Now, _) => header.data = blob,
            (Self::Next, Some(next)) => next.data = Some(blob),
            (Self::Next, None) => {}
        }
    }
}

impl Jobs {
    /// Gives jobs that `rewrite` has other bytes for those bytes as their data, in whatever state they are. A bounded number
    /// of jobs, the next after `after` in the order of their keys. What was rewritten must not be again, or it goes on for ever.
    pub async fn rewrite_in(
        &self,
        tx: &Transaction,
        ty: &JobType,
        after: Option<&JobId>,
        rewrite: &(dyn Fn(&JobId, &Bytes) -> Option<Bytes> + Sync),
    ) -> Result<Rewritten> {
        let mut page = Rewritten {
            after: after.cloned(),
            ..Rewritten::default()
        };
        let all = self.keys().jobs(ty);
        let mut range = all.clone();
        if let Some(after) = after {
            range.begin = [&*self.keys().job(ty, after), &[0]].concat().into();
        }
        // What is only looked at conflicts with nobody.
        let rows = (tx.snapshot()).get_range(range, RangeOptions::limit(JOBS_MAX));
        let rows = rows.collect().await?;
        let done = rows.len() < JOBS_MAX;
        let mut bytes = 0;
        for row in rows {
            let id = Keys::id(&all, &row.key)?;
            // One that cannot be decoded does not keep the others from it.
            let Some(header) = self.listed(ty, &id, row.value) else {
                page.after = Some(id);
                continue;
            };
            let mut header = Arc::new(header);
            for part in [Part::Now, Part::Next] {
                let Some(blob) = part.of(&header) else {
                    continue;
                };
                let data = self.read_blob(tx, ty, &id, blob).await?;
                bytes += data.len();
                let Some(new) = rewrite(&id, &data) else {
                    continue;
                };
                if page.written > 0 && bytes >= BYTES_MAX {
                    return Ok(page);
                }
                header = self.replace_data(tx, ty, &id, &header, part, new);
                page.written += 1;
            }
            page.looked += 1;
            page.after = Some(id);
            if bytes >= BYTES_MAX {
                return Ok(page);
            }
        }
        page.done = done;
        Ok(page)
    }

    fn replace_data(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: &JobId,
        old: &Header,
        part: Part,
        data: Bytes,
    ) -> Arc<Header> {
        let key = self.keys().job(ty, id);
        // Whoever changes the job meanwhile has changed what was read here.
        let end = [&*key, &[0]].concat();
        tx.add_read_conflict_range((key.clone(), end));
        let mut new = old.clone();
        part.put(&mut new, data);
        tx.set(&key, &new.encode());
        self.move_chunks(tx, ty, id, Some(old), Some(&new));
        Arc::new(new)
    }
}
