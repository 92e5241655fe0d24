//! The full recount: whether indexes, counters and chunks are what the headers say.
//!
//! Reads everything, page by page, so what it finds is only sure while nobody writes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use store::{Call, KeyRange, KeyValue, RangeOptions};

use crate::model::header::{Header, State};
use crate::model::keys::{Keys, Position};
use crate::operations::effects::CHUNK_BYTES;
use crate::{Counts, JobId, JobType, Jobs, Result};

/// How many rows one transaction reads.
const ROWS: usize = 1_000;

/// What a recount found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    /// How many jobs there are.
    pub jobs: u64,
    /// What is not as it should be: nothing, unless the queue or its store has a bug.
    pub problems: Vec<String>,
}

impl Jobs {
    /// [`Self::check`] of every type of which anything is stored, registered or not.
    pub async fn check_all(&self) -> Result<BTreeMap<JobType, Check>> {
        let mut types: BTreeSet<JobType> = self.types().await?.into_keys().collect();
        for table in self.keys().of_jobs() {
            let mut rest = table.clone();
            while let Some(key) = self.first_key(&rest).await? {
                let (ty, after) = Keys::type_of(&table, &key)?;
                types.insert(ty);
                rest = after;
            }
        }
        let mut checks = BTreeMap::new();
        for ty in types {
            let check = self.check(&ty).await?;
            checks.insert(ty, check);
        }
        Ok(checks)
    }

    async fn first_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.read(Call::batch("check"), |tx| async move {
            let first = RangeOptions::limit(1);
            let rows = tx.snapshot().get_range(range.clone(), first);
            Ok(rows.collect().await?.into_iter().next().map(|row| row.key))
        })
        .await
    }

    /// Compares every index row, counter and chunk of a type with the headers of its jobs.
    pub async fn check(&self, ty: &JobType) -> Result<Check> {
        let mut found = Check::default();
        let mut expected: BTreeMap<JobId, Position> = BTreeMap::new();
        let mut chunks = BTreeSet::new();
        let mut recount = Counts::default();
        let mut labels: BTreeMap<(State, u8), u64> = BTreeMap::new();
        let range = self.keys().jobs(ty);
        for row in self.rows(range.clone()).await? {
            let id = Keys::id(&range, &row.key)?;
            let header = Header::decode(row.value)?;
            match header.state() {
                State::Pending => recount.pending += 1,
                State::Running => recount.running += 1,
                State::Finished => recount.finished += 1,
            }
            *labels.entry((header.state(), header.label())).or_default() += 1;
            found.look_at(&id, &header);
            for blob in header.chunked() {
                let count = (blob.len as usize).div_ceil(CHUNK_BYTES);
                for n in (0..).take(count) {
                    chunks.insert(self.keys().chunk(ty, &id, blob.slot, n));
                }
            }
            expected.insert(id, Position::of(&header));
            found.jobs += 1;
        }
        self.check_indexes(ty, &mut found, expected).await?;
        for row in self.rows(self.keys().data(ty)).await? {
            if !chunks.remove(&*row.key) {
                found.say(format!("orphan chunk {}", row.key.escape_ascii()));
            }
        }
        for key in chunks {
            found.say(format!("missing chunk {}", key.escape_ascii()));
        }
        let counts = self.counts(ty).await?;
        for (state, counted, jobs) in [
            ("pending", counts.pending, recount.pending),
            ("running", counts.running, recount.running),
            ("finished", counts.finished, recount.finished),
        ] {
            if counted != jobs {
                found.say(format!(
                    "{counted} {state} jobs are counted and {jobs} are there"
                ));
            }
        }
        found.compare_labels(self.counts_by_label(ty).await?, &labels);
        Ok(found)
    }

    async fn check_indexes(
        &self,
        ty: &JobType,
        found: &mut Check,
        mut expected: BTreeMap<JobId, Position>,
    ) -> Result<()> {
        for state in [State::Pending, State::Running, State::Finished] {
            for row in self.rows(self.keys().state(ty, state)).await? {
                let (position, id) = self.keys().position(ty, state, &row.key)?;
                let same = expected.get(&id) == Some(&position);
                if same && *row.key == *self.keys().index(ty, &id, position) {
                    expected.remove(&id);
                } else {
                    found.say(format!("orphan row of job {id}: {position:?}"));
                }
            }
        }
        for (id, position) in expected {
            found.say(format!("job {id} has no row {position:?}"));
        }
        Ok(())
    }

    /// All rows of a range, in as many transactions as it takes.
    pub(crate) async fn rows(&self, mut range: KeyRange) -> Result<Vec<KeyValue>> {
        let mut all = Vec::new();
        loop {
            let from = &range;
            let mut rows = self
                .read(Call::batch("check"), |tx| async move {
                    let rows = tx
                        .snapshot()
                        .get_range(from.clone(), RangeOptions::limit(ROWS));
                    Ok(rows.collect().await?)
                })
                .await?;
            let last = rows.last().filter(|_| rows.len() == ROWS);
            let next = last.map(|row| [&*row.key, &[0]].concat());
            all.append(&mut rows);
            match next {
                Some(next) => range.begin = next.into(),
                None => return Ok(all),
            }
        }
    }
}

impl Check {
    fn say(&mut self, problem: String) {
        self.problems.push(problem);
    }

    fn compare_labels(
        &mut self,
        counted: BTreeMap<(State, u8), u64>,
        there: &BTreeMap<(State, u8), u64>,
    ) {
        let mut all = counted;
        for kind in there.keys() {
            all.entry(*kind).or_default();
        }
        for ((state, label), counted) in all {
            let jobs = there.get(&(state, label)).copied().unwrap_or_default();
            if counted != jobs {
                self.say(format!(
                    "{counted} jobs in state {state:?} with label {label} are counted and {jobs} are there"
                ));
            }
        }
    }

    /// What must hold within a header.
    fn look_at(&mut self, id: &JobId, header: &Header) {
        let ended = header.last.as_ref().map(|last| last.end.is_some());
        let running = header.state() == State::Running;
        if ended == Some(running) || (running && ended.is_none()) {
            self.say(format!("job {id}: its state and its last run disagree"));
        }
        if header.next.is_some() && !running {
            self.say(format!("job {id}: asked to run again, and not running"));
        }
        if header.last.as_ref().map_or(0, |last| last.number) != header.attempts {
            self.say(format!("job {id}: its last run is not its last attempt"));
        }
        if !header.watchers.is_empty() && header.state() == State::Finished {
            self.say(format!(
                "job {id}: finished, and its subscribers were not told"
            ));
        }
    }
}
