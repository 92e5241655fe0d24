//! Commits: passes the pending writes to the client's transaction and commits that.

use std::pin::Pin;

use bytes::Bytes;
use foundationdb::FdbResult;
use foundationdb::options::{ConflictRangeType, MutationType};
use tokio::sync::oneshot;

use super::Fdb;
use super::prefix::Prefix;
use crate::pending::{CommitRequest, Mutation, Stamp};
use crate::{Error, Result};

/// A future of the client, which outlives its transaction.
pub(super) type ClientFuture<T> = Pin<Box<dyn Future<Output = FdbResult<T>> + Send + Sync>>;

/// A watch that the commit creates and arms.
pub(super) struct PlannedWatch {
    pub(super) key: Bytes,
    /// How many of the writes precede it: the watch is for the value they leave.
    pub(super) after: usize,
    /// Dropped if there is no commit.
    pub(super) armed: oneshot::Sender<ClientFuture<()>>,
}

/// A watch of the client, and where to send it after the commit.
type MadeWatch = (oneshot::Sender<ClientFuture<()>>, ClientFuture<()>);

pub(super) struct Commit {
    pub(super) client: foundationdb::Transaction,
    pub(super) request: CommitRequest,
    pub(super) watches: Vec<PlannedWatch>,
    /// As [`crate::limits`] counts it.
    pub(super) size: usize,
}

impl Commit {
    /// Commits and arms the watches. `None` if nothing was written.
    ///
    /// There is no time-out: only the cluster knows whether the commit was applied, and answers once it
    /// is available again. A caller that stops waiting has an unknown outcome.
    pub(super) async fn run(self, fdb: &Fdb) -> Result<Option<Stamp>> {
        self.add_conflict_ranges(fdb)?;
        let Self {
            client,
            request,
            watches,
            size,
        } = self;
        let armed = write(&client, &fdb.prefix, &request, watches);
        let stamp = (!request.is_read_only()).then(|| client.get_versionstamp());
        let committed =
            (client.commit().await).map_err(|error| fdb.committing(error.into(), size))?;
        for (armed, watch) in armed {
            // If the receiver was dropped, this cancels the watch.
            let _ = armed.send(watch);
        }
        let Some(stamp) = stamp else {
            return Ok(None);
        };
        let stamp = (stamp.await).map_err(|error| fdb.committing(error, size))?;
        drop(committed);
        match Stamp::try_from(&*stamp) {
            Ok(stamp) => Ok(Some(stamp)),
            Err(_) => Err(Error::corrupt(
                "the cluster sent a versionstamp of the wrong length",
            )),
        }
    }

    /// Must precede the writes: the client removes a transaction's own writes from read conflict ranges
    /// that are added after them.
    fn add_conflict_ranges(&self, fdb: &Fdb) -> Result<()> {
        for (ranges, kind) in [
            (&self.request.reads, ConflictRangeType::Read),
            (&self.request.writes, ConflictRangeType::Write),
        ] {
            for range in ranges.iter().filter(|range| !range.is_empty()) {
                let (begin, end) = fdb.prefix.add_range(range);
                (self.client.add_conflict_range(&begin, &end, kind))
                    .map_err(|error| fdb.reading(error))?;
            }
        }
        Ok(())
    }
}

/// Applies the writes and creates each watch at its position among them, so that it sees the value
/// that the body saw.
fn write(
    client: &foundationdb::Transaction,
    prefix: &Prefix,
    request: &CommitRequest,
    watches: Vec<PlannedWatch>,
) -> Vec<MadeWatch> {
    let mut made = Vec::with_capacity(watches.len());
    let mut watches = watches.into_iter().peekable();
    for written in 0..=request.mutations.len() {
        while let Some(watch) = watches.next_if(|watch| watch.after == written) {
            if !watch.armed.is_closed() {
                let fires: ClientFuture<()> = Box::pin(client.watch(&prefix.add(&watch.key)));
                made.push((watch.armed, fires));
            }
        }
        if let Some(mutation) = request.mutations.get(written) {
            apply(client, prefix, mutation);
        }
    }
    made
}

fn apply(client: &foundationdb::Transaction, prefix: &Prefix, mutation: &Mutation) {
    match mutation {
        Mutation::Set { key, value } => client.set(&prefix.add(key), value),
        Mutation::Clear { key } => client.clear(&prefix.add(key)),
        Mutation::ClearRange { range } => {
            let (begin, end) = prefix.add_range(range);
            client.clear_range(&begin, &end);
        }
        Mutation::Add { key, delta } => {
            client.atomic_op(&prefix.add(key), &delta.to_le_bytes(), MutationType::Add);
        }
        Mutation::StampedKey { key, offset, value } => {
            let key = Prefix::template(&prefix.add(key), offset + prefix.len());
            client.atomic_op(&key, value, MutationType::SetVersionstampedKey);
        }
        Mutation::StampedValue { key, value, offset } => {
            let value = Prefix::template(value, *offset);
            let kind = MutationType::SetVersionstampedValue;
            client.atomic_op(&prefix.add(key), &value, kind);
        }
    }
}
