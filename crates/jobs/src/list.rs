//! Listings, page by page: by type, by state, by range of ids.
//!
//! A listing by state merges the buckets of that state's index, so its order is that of the index:
//! pending jobs by their turn, running ones by id, finished ones by the time they will be forgotten.
//! Each page is a transaction of its own, so jobs that change between two pages may be missed or
//! seen twice.

use bytes::Bytes;
use futures::future::try_join_all;
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::header::Header;
use crate::ids::BUCKETS;
use crate::keys::{Keys, after_stamp};
use crate::{Error, JobId, JobInfo, JobType, Jobs, Result, State};

/// The largest page.
pub const PAGE_JOBS_MAX: usize = 1_000;

/// What is listed.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Jobs in this state; `None` in any, by id.
    pub state: Option<State>,
    /// Only ids from this one on. Only without a state.
    pub from: Option<JobId>,
    /// Only ids before this one. Only without a state.
    pub to: Option<JobId>,
    /// From the last to the first.
    pub reverse: bool,
    /// With the jobs' data.
    pub data: bool,
}

/// Where a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(Bytes);

impl Cursor {
    /// A cursor from what [`Self::as_bytes`] gave for the same query.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The cursor as an opaque page token.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A job in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The job.
    pub info: JobInfo,
    /// Its data, if the query asked for it.
    pub data: Option<Bytes>,
    /// When its holder was heard of last, by the holder's clock. Only in a listing of running jobs.
    pub beat_ms: Option<i64>,
}

/// A part of a listing.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The jobs; may be fewer than asked for, even none, although more follow.
    pub jobs: Vec<Listed>,
    /// Where to go on; `None` at the end.
    pub cursor: Option<Cursor>,
}

/// Some rows of one bucket.
struct Bucket {
    range: KeyRange,
    rows: std::iter::Peekable<std::vec::IntoIter<KeyValue>>,
    /// There is more in the bucket than was read.
    more: bool,
}

impl Jobs {
    /// A page of up to `limit` jobs, at most [`PAGE_JOBS_MAX`].
    pub async fn list(
        &self,
        ty: &JobType,
        query: &Query,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page> {
        if query.state.is_some() && (query.from.is_some() || query.to.is_some()) {
            return Err(Error::Invalid(
                "a listing is by state or by a range of ids, not both",
            ));
        }
        let limit = limit.clamp(1, PAGE_JOBS_MAX);
        self.read("list", |tx| async move {
            match query.state {
                Some(state) => (self.list_state(&tx, ty, state, query, cursor, limit)).await,
                None => self.list_ids(&tx, ty, query, cursor, limit).await,
            }
        })
        .await
    }

    async fn list_ids(
        &self,
        tx: &Transaction,
        ty: &JobType,
        query: &Query,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page> {
        let all = self.keys().jobs(ty);
        let mut range = all.clone();
        if let Some(from) = &query.from {
            range.begin = self.keys().job(ty, from).into();
        }
        if let Some(to) = &query.to {
            range.end = self.keys().job(ty, to).into();
        }
        resume(&mut range, &all, cursor, query.reverse);
        if range.is_empty() {
            return Ok(Page::default());
        }
        let options = RangeOptions {
            limit: Some(limit),
            reverse: query.reverse,
        };
        let rows = tx.snapshot().get_range(range, options).collect().await?;
        let last = (rows.last().filter(|_| rows.len() == limit))
            .map(|row| Cursor(row.key.slice(all.begin.len()..)));
        let jobs = rows.into_iter().map(|row| {
            let all = &all;
            async move {
                let id = Keys::id(all, &row.key)?;
                let header = Header::decode(row.value)?;
                self.listed(tx, ty, id, &header, query, None).await
            }
        });
        Ok(Page {
            jobs: try_join_all(jobs).await?,
            cursor: last,
        })
    }

    async fn list_state(
        &self,
        tx: &Transaction,
        ty: &JobType,
        state: State,
        query: &Query,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page> {
        // Ids are spread evenly: this is more than a bucket's share of a page, most of the time.
        let share = limit / usize::from(BUCKETS) * 2 + 8;
        let buckets = (0..BUCKETS).map(|bucket| async move {
            let all = self.keys().bucket(state, ty, bucket);
            let mut range = all.clone();
            resume(&mut range, &all, cursor, query.reverse);
            let options = RangeOptions {
                limit: Some(share),
                reverse: query.reverse,
            };
            let rows = tx.snapshot().get_range(range, options).collect().await?;
            Ok::<_, Error>(Bucket {
                range: all,
                more: rows.len() == share,
                rows: rows.into_iter().peekable(),
            })
        });
        let mut buckets = try_join_all(buckets).await?;
        let mut found = Vec::new();
        let mut cursor = None;
        while let Some((suffix, range, row)) = next_of(&mut buckets, query.reverse) {
            let (_, id) = Keys::position(state, &range, &row.key)?;
            let beat_ms = match state {
                State::Running => after_stamp(&row.value).first_chunk().copied(),
                _ => None,
            };
            found.push((id, beat_ms.map(i64::from_be_bytes)));
            cursor = Some(Cursor(suffix));
            if found.len() == limit {
                break;
            }
        }
        let done = (buckets.iter_mut()).all(|bucket| !bucket.more && bucket.rows.peek().is_none());
        let jobs = found.into_iter().map(|(id, beat_ms)| async move {
            let value = tx.snapshot().get(&self.keys().job(ty, &id)).await?;
            match value.map(Header::decode).transpose()? {
                Some(header) => (self.listed(tx, ty, id, &header, query, beat_ms).await).map(Some),
                None => Ok(None),
            }
        });
        Ok(Page {
            jobs: try_join_all(jobs).await?.into_iter().flatten().collect(),
            cursor: cursor.filter(|_| !done),
        })
    }

    async fn listed(
        &self,
        tx: &Transaction,
        ty: &JobType,
        id: JobId,
        header: &Header,
        query: &Query,
        beat_ms: Option<i64>,
    ) -> Result<Listed> {
        let data = if query.data {
            Some(self.read_blob(tx, ty, &id, &header.data).await?)
        } else {
            None
        };
        Ok(Listed {
            info: JobInfo::of(id, header),
            data,
            beat_ms,
        })
    }
}

/// Cuts from a range what the pages before have shown.
fn resume(range: &mut KeyRange, all: &KeyRange, cursor: Option<&Cursor>, reverse: bool) {
    let Some(Cursor(suffix)) = cursor else {
        return;
    };
    let mut key = all.begin.to_vec();
    key.extend_from_slice(suffix);
    if reverse {
        range.end = range.end.clone().min(key.into());
    } else {
        key.push(0);
        range.begin = range.begin.clone().max(key.into());
    }
}

/// The next row over all buckets, as far as it can be told from what was read of each.
fn next_of(buckets: &mut [Bucket], reverse: bool) -> Option<(Bytes, KeyRange, KeyValue)> {
    let mut best: Option<(usize, Bytes)> = None;
    for (n, bucket) in buckets.iter_mut().enumerate() {
        let Some(row) = bucket.rows.peek() else {
            if bucket.more {
                // Its next row was not read, and may be the next of all.
                return None;
            }
            continue;
        };
        let suffix = row.key.slice(bucket.range.begin.len()..);
        let better = match &best {
            None => true,
            Some((_, least)) if reverse => suffix > *least,
            Some((_, least)) => suffix < *least,
        };
        if better {
            best = Some((n, suffix));
        }
    }
    let (n, suffix) = best?;
    let bucket = &mut buckets[n];
    let row = bucket.rows.next()?;
    Some((suffix, bucket.range.clone(), row))
}
