//! The end of an attempt: everything it did goes to the client's transaction, and that is committed.

use std::pin::Pin;

use bytes::Bytes;
use foundationdb::FdbResult;
use foundationdb::options::{ConflictRangeType, MutationType};
use tokio::sync::oneshot;

use super::Fdb;
use super::prefix::Prefix;
use crate::pending::{CommitRequest, Mutation, Stamp};
use crate::{Error, Result};

/// A future of the client; it needs no transaction to be alive.
pub(super) type ClientFuture<T> = Pin<Box<dyn Future<Output = FdbResult<T>> + Send + Sync>>;

/// A watch, which the commit makes and arms.
pub(super) struct PlannedWatch {
    pub(super) key: Bytes,
    /// How many of the writes came before it: it sees what they leave.
    pub(super) after: usize,
    /// Dropped when there is no commit.
    pub(super) armed: oneshot::Sender<ClientFuture<()>>,
}

/// A watch of the client, and whom to give it when the commit is done.
type MadeWatch = (oneshot::Sender<ClientFuture<()>>, ClientFuture<()>);

/// What an attempt leaves to be committed.
pub(super) struct Commit {
    pub(super) client: foundationdb::Transaction,
    pub(super) request: CommitRequest,
    pub(super) watches: Vec<PlannedWatch>,
    /// By our own formula.
    pub(super) size: usize,
}

impl Commit {
    /// Commits and arms the watches. `None` when there was nothing to write.
    ///
    /// Waits without end: only the cluster can say whether the commit was done, and says so when it
    /// is back. Whoever stops waiting does not know.
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
            // Nobody may be waiting any more; then this cancels the watch.
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
                "the cluster sent a versionstamp that is none",
            )),
        }
    }

    /// To be done before the writes: the client takes own writes out of what is read after them.
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

/// Does the writes, and makes each watch among them where it saw the key.
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
