//! Replaces data of jobs by an equivalent, for example when it is encrypted with another key.
//!
//! Nothing else changes: state, times, holder and lock stay, no run starts or ends, and no subscriber is notified.

use std::sync::Arc;

use bytes::Bytes;
use store::{RangeOptions, Transaction};

use crate::model::header::{Blob, Header};
use crate::model::keys::Keys;
use crate::{JobId, JobType, Jobs, Result};

/// Jobs per transaction.
const JOBS_MAX: usize = 200;
/// Approximate maximum of data read and written per transaction; larger data is rewritten alone.
const BYTES_MAX: usize = 2_000_000;

/// The progress of a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The job to continue after; `None` starts at the first.
    pub after: Option<JobId>,
    /// Whether that was the last job.
    pub done: bool,
    /// Jobs read.
    pub looked: u64,
    /// Values written.
    pub written: u64,
}

/// A job's current data, or that of its next run.
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
    /// Replaces the data of jobs in any state by what `rewrite` returns for it. Handles a bounded number of jobs after
    /// `after`, in key order. `rewrite` must return `None` for data that it returned before, or the rewrite never ends.
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
        // Jobs that are only read cause no conflict.
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
        // Conflicts with any concurrent change of the job.
        let end = [&*key, &[0]].concat();
        tx.add_read_conflict_range((key.clone(), end));
        let mut new = old.clone();
        part.put(&mut new, data);
        tx.set(&key, &new.encode());
        self.move_chunks(tx, ty, id, Some(old), Some(&new));
        Arc::new(new)
    }
}
