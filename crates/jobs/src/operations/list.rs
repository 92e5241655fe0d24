//! Listings, page by page: by type, by state, by range of ids.
//!
//! A listing by id is in the order of ids: it merges the buckets that JOB is divided into. A listing by state follows the index of the state, whose
//! order is that of a hash: the same on every page, and of no other meaning. Each page is a
//! transaction of its own, so jobs that change between two pages may be missed or seen twice. Jobs that cannot be decoded are
//! reported and left out.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::future::try_join_all;
use store::{KeyRange, KeyValue, RangeOptions, Transaction};

use crate::model::header::Header;
use crate::model::ids::BUCKETS;
use crate::model::keys::{Keys, after_stamp};
use crate::{Error, JobId, JobInfo, JobType, Jobs, Result, State, telemetry};

/// Maximum jobs per page.
pub const PAGE_JOBS_MAX: usize = 1_000;
/// Approximate maximum of data per page.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A query for jobs.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Only jobs in this state; `None` lists all, by id.
    pub state: Option<State>,
    /// Only ids from this one on. Not with a state.
    pub from: Option<JobId>,
    /// Only ids before this one. Not with a state.
    pub to: Option<JobId>,
    /// Lists in reverse order.
    pub reverse: bool,
    /// Includes the jobs' data.
    pub data: bool,
}

/// The position where a listing continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(Bytes);

impl Cursor {
    /// A cursor from [`Self::as_bytes`] for the same query.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// By state, the key without its prefix; by id, the id.
    fn after(key: &Bytes, all: &KeyRange) -> Self {
        Self(key.slice(all.begin.len()..))
    }

    /// The cursor as an opaque page token.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A job in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The job itself.
    pub info: JobInfo,
    /// Its data, if requested.
    pub data: Option<Bytes>,
    /// The last heartbeat, by the holder's clock. Only in a listing of running jobs.
    pub beat_ms: Option<i64>,
}

/// A page of a listing.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The jobs; possibly fewer than requested although more follow: with data, some 8 MB of it.
    pub jobs: Vec<Listed>,
    /// Where the next page starts; `None` at the end.
    pub cursor: Option<Cursor>,
}

/// The pages of a listing, one after the other.
#[derive(Debug)]
pub struct Pages<'a> {
    jobs: &'a Jobs,
    ty: &'a JobType,
    query: Query,
    limit: usize,
    /// Where the next page begins, after the first one.
    cursor: Option<Cursor>,
    ended: bool,
}

impl Pages<'_> {
    /// The next page, which may be empty; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        if self.ended {
            return Ok(None);
        }
        let (cursor, limit) = (self.cursor.as_ref(), self.limit);
        let page = self.jobs.list(self.ty, &self.query, cursor, limit).await?;
        (self.ended, self.cursor) = (page.cursor.is_none(), page.cursor);
        Ok(Some(page.jobs))
    }
}

impl Jobs {
    /// All pages of a listing, of up to `limit` jobs each.
    pub fn pages<'a>(&'a self, ty: &'a JobType, query: Query, limit: usize) -> Pages<'a> {
        Pages {
            jobs: self,
            ty,
            query,
            limit,
            cursor: None,
            ended: false,
        }
    }

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
        let buckets =
            (0..BUCKETS).map(|bucket| Bucket::new(self.keys(), ty, bucket, query, cursor));
        let mut buckets: Vec<Bucket> = buckets.collect();
        let mut found = Vec::new();
        while found.len() < limit {
            let empty = (buckets.iter_mut()).filter(|b| b.rows.is_empty() && !b.range.is_empty());
            try_join_all(empty.map(|bucket| bucket.read(tx, &all, query.reverse, limit))).await?;
            let heads = buckets.iter_mut().filter(|bucket| !bucket.rows.is_empty());
            let first = if query.reverse {
                heads.max_by(|a, b| a.head().cmp(&b.head()))
            } else {
                heads.min_by(|a, b| a.head().cmp(&b.head()))
            };
            let Some((id, value)) = first.and_then(|bucket| bucket.rows.pop_front()) else {
                break;
            };
            found.push(Found {
                cursor: Cursor(Bytes::copy_from_slice(id.as_bytes())),
                job: (self.listed(ty, &id, value)).map(|header| (id, header, None)),
            });
        }
        let last = found.last().filter(|_| found.len() == limit);
        let cursor = last.map(|last| last.cursor.clone());
        self.page_of(tx, ty, query, found, cursor).await
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
        let all = &self.keys().state(ty, state);
        let (rows, cursor) = page(tx, all, query, cursor, limit).await?;
        let found = rows.into_iter().map(|row| async move {
            let cursor = Cursor::after(&row.key, all);
            let position = self.keys().position(ty, state, &row.key);
            let position =
                position.inspect_err(|error| telemetry::undecodable(ty, &row.key, error));
            let Ok((_, id)) = position else {
                return Ok(Found { cursor, job: None });
            };
            let beat_ms = match state {
                State::Running => after_stamp(&row.value).first_chunk().copied(),
                _ => None,
            };
            let value = tx.snapshot().get(&self.keys().job(ty, &id)).await?;
            let header = value.and_then(|value| self.listed(ty, &id, value));
            let job = header.map(|header| (id, header, beat_ms.map(i64::from_be_bytes)));
            Ok::<_, Error>(Found { cursor, job })
        });
        let found = try_join_all(found).await?;
        self.page_of(tx, ty, query, found, cursor).await
    }

    /// The page of the jobs found, as many as fit if their data is requested.
    async fn page_of(
        &self,
        tx: &Transaction,
        ty: &JobType,
        query: &Query,
        mut found: Vec<Found>,
        mut cursor: Option<Cursor>,
    ) -> Result<Page> {
        let mut bytes = 0;
        let fitting = found.iter().take_while(|found| {
            let first = bytes == 0;
            bytes += found
                .job
                .as_ref()
                .map_or(0, |(_, header, _)| header.data.len as usize);
            first || bytes <= PAGE_BYTES_MAX
        });
        let fitting = fitting.count();
        if query.data && fitting < found.len() {
            found.truncate(fitting);
            cursor = found.last().map(|last| last.cursor.clone());
        }
        let jobs = found.into_iter().filter_map(|found| found.job);
        let jobs = jobs.map(|(id, header, beat_ms)| async move {
            let data = if query.data {
                match self.try_blob(tx, ty, &id, &header.data).await? {
                    Ok(data) => Some(data),
                    Err(error) => {
                        telemetry::undecodable(ty, &self.keys().job(ty, &id), &error);
                        return Ok(None);
                    }
                }
            } else {
                None
            };
            Ok::<_, Error>(Some(Listed {
                info: JobInfo::of(id, &header),
                data,
                beat_ms,
            }))
        });
        let jobs = try_join_all(jobs).await?.into_iter().flatten().collect();
        Ok(Page { jobs, cursor })
    }

    /// The header of a job, unless it cannot be decoded.
    pub(crate) fn listed(&self, ty: &JobType, id: &JobId, value: Bytes) -> Option<Header> {
        let report = |error: &Error| telemetry::undecodable(ty, &self.keys().job(ty, id), error);
        Header::decode(value).inspect_err(report).ok()
    }
}

/// The part of a listing by id in one bucket of JOB.
struct Bucket {
    /// The part not read yet.
    range: KeyRange,
    rows: VecDeque<(JobId, Bytes)>,
}

impl Bucket {
    fn new(keys: &Keys, ty: &JobType, bucket: u16, query: &Query, cursor: Option<&Cursor>) -> Self {
        let mut range = keys.jobs_of(ty, bucket);
        let key = |id: &[u8]| keys.jobs_from(ty, bucket, id);
        if let Some(from) = &query.from {
            range.begin = key(from.as_bytes());
        }
        if let Some(to) = &query.to {
            range.end = key(to.as_bytes());
        }
        match cursor {
            Some(Cursor(id)) if query.reverse => range.end = range.end.min(key(id)),
            Some(Cursor(id)) => range.begin = range.begin.max(key(&[id, &[0][..]].concat())),
            None => {}
        }
        let rows = VecDeque::new();
        Self { range, rows }
    }

    /// Reads about as many rows as the page needs from this bucket: ids are spread evenly.
    async fn read(
        &mut self,
        tx: &Transaction,
        all: &KeyRange,
        reverse: bool,
        page: usize,
    ) -> Result<()> {
        let limit = 4 + (2 * page).div_ceil(usize::from(BUCKETS));
        let options = RangeOptions {
            limit: Some(limit),
            reverse,
        };
        let read = tx.snapshot().get_range(self.range.clone(), options);
        let rows = read.collect().await?;
        match rows.last().filter(|_| rows.len() == limit) {
            Some(last) if reverse => self.range.end = last.key.clone(),
            Some(last) => self.range.begin = [&*last.key, &[0]].concat().into(),
            None => self.range.begin = self.range.end.clone(),
        }
        for row in rows {
            self.rows.push_back((Keys::id(all, &row.key)?, row.value));
        }
        Ok(())
    }

    fn head(&self) -> Option<&JobId> {
        self.rows.front().map(|(id, _)| id)
    }
}

/// A row of an index, and its job: id, header, last heartbeat.
struct Found {
    cursor: Cursor,
    job: Option<(JobId, Header, Option<i64>)>,
}

/// The rows of a page, and where the next one starts.
async fn page(
    tx: &Transaction,
    all: &KeyRange,
    query: &Query,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Result<(Vec<KeyValue>, Option<Cursor>)> {
    let mut range = all.clone();
    if let Some(Cursor(suffix)) = cursor {
        let mut key = [&*all.begin, suffix].concat();
        if query.reverse {
            range.end = range.end.min(key.into());
        } else {
            key.push(0);
            range.begin = range.begin.max(key.into());
        }
    }
    if range.is_empty() {
        return Ok((Vec::new(), None));
    }
    let options = RangeOptions {
        limit: Some(limit),
        reverse: query.reverse,
    };
    let rows = tx.snapshot().get_range(range, options).collect().await?;
    let last = rows.last().filter(|_| rows.len() == limit);
    let cursor = last.map(|row| Cursor::after(&row.key, all));
    Ok((rows, cursor))
}

#[cfg(test)]
mod tests {
    use store::Store;

    use super::*;
    use crate::{Add, Clock, Entropy, TypeConfig};

    #[tokio::test]
    async fn pages_have_each_job_once() {
        let store = Store::open("memory:").await.unwrap();
        let jobs = Jobs::new(store, Clock::standing(1_000), Entropy::seeded(1));
        let ty = JobType::new("t").unwrap();
        jobs.set_type(&ty, TypeConfig::new(60_000)).await.unwrap();
        for count in [0, 4, 5] {
            let ids = (0..count).map(|n| JobId::new(format!("job-{n}")).unwrap());
            let adds: Vec<Add> = ids.clone().map(|id| Add::new(id, "")).collect();
            jobs.add_many(&ty, &adds).await.unwrap();
            let (mut found, mut pages) = (Vec::new(), jobs.pages(&ty, Query::default(), 2));
            while let Some(page) = pages.next().await.unwrap() {
                assert!(page.len() <= 2);
                found.extend(page.into_iter().map(|listed| listed.info.id));
            }
            assert!(found.into_iter().eq(ids));
            assert_eq!(pages.next().await.unwrap(), None);
        }
    }
}
