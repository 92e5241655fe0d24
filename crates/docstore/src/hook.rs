//! The seam at which other layers take part in writes.

use store::{AsStoreError, Transaction};

use crate::{Db, Document, Error};

/// What happens with a write, in the write's own transaction: it is one with what the hook does.
///
/// A hook is pure as a transaction body is: it reads and writes through the transaction and nothing
/// else, and does the same when it is run again. It is not run again for a write that was already
/// committed.
///
/// A hook that refuses a write returns an error before it has written anything. An error that holds
/// a [retryable](store::Error::is_retryable) or other error of the store ends the whole transaction;
/// any other is the answer to this one document, and the others are written.
///
/// Within the transaction the hook may use the `_in` forms of this crate, on the document at hand
/// only to read the revisions before. It cannot read changes or the update sequence of a database
/// that the transaction has written to.
pub trait WriteHook: Sync {
    /// Its own errors, and everybody else's.
    type Error: From<Error> + From<store::Error> + AsStoreError + Send;

    /// Whether the hook wants to hear of this document. What it does not is cheaper to write.
    fn watches(&self, db: &Db, id: &str) -> bool;

    /// A revision is about to be added.
    fn changed(
        &self,
        tx: &Transaction,
        change: &Change<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// A document that was not deleted goes away with its database, which is no more.
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
    /// The document.
    pub id: &'a str,
    /// What a reader saw before; `None` for a new document.
    pub before: Option<&'a Document>,
    /// The revision.
    pub written: &'a Document,
    /// What a reader will see: the revision that was written, or one that wins over it.
    pub after: &'a Document,
}

impl Change<'_> {
    /// True when readers will see something else than before.
    pub fn winner_changed(&self) -> bool {
        self.before
            .is_none_or(|before| before.rev != self.after.rev)
    }
}

/// Nobody takes part.
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
