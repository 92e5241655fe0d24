//! Hooks by which other layers take part in writes.

use store::{AsStoreError, Transaction};

use crate::{Db, Document, Error};

/// Runs in the transaction of each write.
///
/// A hook is pure, as a transaction body is: all it does is read and write through the transaction. It
/// is not called again for a write that was already committed.
///
/// A hook that rejects a write returns an error before it writes anything. An error of the store ends
/// the whole transaction; any other error is the result for this document, and the others are written.
///
/// The hook may use the `_in` operations of this crate in the transaction. For its own document they
/// return the state before the write. It cannot read the changes or update sequence of a database that
/// the transaction has written to.
pub trait WriteHook: Sync {
    /// The hook's own errors and those of this crate.
    type Error: From<Error> + From<store::Error> + AsStoreError + Send;

    /// Whether to call the hook for this document. Other documents are cheaper to write.
    fn watches(&self, db: &Db, id: &str) -> bool;

    /// Called before a revision is added.
    fn changed(
        &self,
        tx: &Transaction,
        change: &Change<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Called for each live document of a deleted database when it is removed.
    fn dropped(
        &self,
        tx: &Transaction,
        db: &Db,
        id: &str,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A revision that is about to be added to a document.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub db: &'a Db,
    pub id: &'a str,
    /// The winner before; `None` for a new document.
    pub before: Option<&'a Document>,
    pub written: &'a Document,
    /// The winner after the write: the new revision or another one.
    pub after: &'a Document,
    /// Whether it adds a conflict: one more live leaf beside those before.
    pub adds_conflict: bool,
}

impl Change<'_> {
    pub fn winner_changed(&self) -> bool {
        self.before
            .is_none_or(|before| before.rev != self.after.rev)
    }
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHook;

impl WriteHook for NoHook {
    type Error = Error;

    fn watches(&self, _: &Db, _: &str) -> bool {
        false
    }

    async fn changed(&self, _: &Transaction, _: &Change<'_>) -> Result<(), Error> {
        Ok(())
    }

    async fn dropped(&self, _: &Transaction, _: &Db, _: &str) -> Result<(), Error> {
        Ok(())
    }
}
