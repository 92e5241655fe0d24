//! Writing documents.
//!
//! The documents of a transaction are read, edited in memory, and then written, each at most once.

mod draft;
mod name;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use document::rev::Rev;
use futures::future::try_join_all;
use store::{AsStoreError, Limit, Transaction};

use crate::rows::DbRow;
use crate::{Db, DocStore, Edit, Error, WriteHook, local_docs, seq};
use draft::Draft;

/// The most documents in one transaction.
const GROUP_EDITS_MAX: usize = 100;
/// The most bytes of documents in one transaction, which leaves room for the writes of hooks.
const GROUP_BYTES_MAX: usize = 2_000_000;

/// The meaning of an edit's revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditMode {
    /// The revision to edit, which must be a leaf: `new_edits=true`.
    NewEdits,
    /// The revision to add, as in replication: `new_edits=false`. It never conflicts.
    Replicated,
}

/// The result of each edit, in order.
pub type Written<E> = Vec<Result<Rev, E>>;

impl DocStore {
    pub async fn put_in<H: WriteHook>(
        &self,
        tx: &Transaction,
        db: &Db,
        edit: &Edit,
        mode: EditMode,
        hook: &H,
    ) -> Result<Rev, H::Error> {
        let edits = std::slice::from_ref(edit);
        let mut written = self.bulk_docs_in(tx, db, edits, mode, hook).await?;
        written.pop().expect("one answer to one edit")
    }

    /// Writes a document and returns its new revision.
    pub async fn put<H: WriteHook>(
        &self,
        db: &Db,
        edit: &Edit,
        mode: EditMode,
        hook: &H,
    ) -> Result<Rev, H::Error> {
        let put = |tx| async move { self.put_in(&tx, db, edit, mode, hook).await };
        self.0.store.transact("put_document", put).await
    }

    pub async fn delete_in<H: WriteHook>(
        &self,
        tx: &Transaction,
        db: &Db,
        id: &str,
        rev: Option<&Rev>,
        hook: &H,
    ) -> Result<Rev, H::Error> {
        let edit = Edit::deletion(id, rev.cloned());
        if edit.is_local() {
            return self.put_in(tx, db, &edit, EditMode::NewEdits, hook).await;
        }
        let (row, mut drafts) = self.load(tx, db, std::slice::from_ref(&edit)).await?;
        if !tx.maybe_committed() {
            for draft in &drafts {
                draft.exists()?;
            }
        }
        let edits = [&edit];
        let mut written = self
            .apply(tx, db, row, &edits, &mut drafts, EditMode::NewEdits, hook)
            .await?;
        written.pop().expect("one answer to one edit")
    }

    /// Deletes an existing document at the revision `rev`; returns the revision of the deletion.
    pub async fn delete<H: WriteHook>(
        &self,
        db: &Db,
        id: &str,
        rev: Option<&Rev>,
        hook: &H,
    ) -> Result<Rev, H::Error> {
        let delete = |tx| async move { self.delete_in(&tx, db, id, rev, hook).await };
        self.0.store.transact("delete_document", delete).await
    }

    /// Writes documents, `_local` ones included, in one transaction, except for those with errors.
    ///
    /// A transaction that deletes a document and also edits it does not recognise its own success: use
    /// [`Self::bulk_docs`] for that.
    pub async fn bulk_docs_in<H: WriteHook>(
        &self,
        tx: &Transaction,
        db: &Db,
        edits: &[Edit],
        mode: EditMode,
        hook: &H,
    ) -> Result<Written<H::Error>, H::Error> {
        let (row, mut drafts) = self.load(tx, db, edits).await?;
        let edits: Vec<_> = edits.iter().collect();
        self.apply(tx, db, row, &edits, &mut drafts, mode, hook)
            .await
    }

    /// Writes any number of documents, `_local` ones included, in transactions of bounded size.
    ///
    /// An error is the store's, and some of the documents may have been written before it.
    pub async fn bulk_docs<H: WriteHook>(
        &self,
        db: &Db,
        edits: &[Edit],
        mode: EditMode,
        hook: &H,
    ) -> Result<Written<H::Error>, H::Error> {
        let mut written = Vec::with_capacity(edits.len());
        let mut groups = groups(edits, mode);
        groups.reverse();
        while let Some(group) = groups.pop() {
            let edits = &edits[group.clone()];
            let write = |tx| async move { self.bulk_docs_in(&tx, db, edits, mode, hook).await };
            match self.0.store.transact("bulk_docs", write).await {
                Ok(answers) => written.extend(answers),
                Err(error) if is_too_large(&error) && group.len() > 1 => {
                    let middle = group.start + group.len() / 2;
                    groups.push(middle..group.end);
                    groups.push(group.start..middle);
                }
                Err(error) if is_too_large(&error) => written.push(Err(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    async fn load<'a>(
        &self,
        tx: &Transaction,
        db: &Db,
        edits: &'a [Edit],
    ) -> Result<(DbRow, Vec<Draft<'a>>), Error> {
        let row = self.check_in(tx, db).await?;
        let mut ids: Vec<&str> = (edits.iter())
            .filter(|edit| !edit.is_local() && crate::edit::fits_a_key(&edit.id))
            .map(|edit| &*edit.id)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let drafts = ids.into_iter().map(|id| Draft::load(tx, db, id));
        Ok((row, try_join_all(drafts).await?))
    }

    #[expect(clippy::too_many_arguments, reason = "what a write needs")]
    async fn apply<H: WriteHook>(
        &self,
        tx: &Transaction,
        db: &Db,
        row: DbRow,
        edits: &[&Edit],
        drafts: &mut [Draft<'_>],
        mode: EditMode,
        hook: &H,
    ) -> Result<Written<H::Error>, H::Error> {
        let by_id: HashMap<String, usize> = (drafts.iter().enumerate())
            .map(|(index, draft)| (draft.id.to_owned(), index))
            .collect();
        let mut written = Vec::with_capacity(edits.len());
        for edit in edits {
            let answer = match (
                edit.check(self.0.options.document_bytes_max),
                by_id.get(&edit.id),
            ) {
                (Err(error), _) => Err(error.into()),
                (Ok(()), None) => local_docs::write_in(tx, db, edit)
                    .await
                    .map_err(H::Error::from),
                (Ok(()), Some(&index)) => drafts[index].edit(tx, db, row, edit, mode, hook).await,
            };
            match answer {
                // An error of the store ends the whole transaction.
                Err(error) if error.as_store_error().is_some() => return Err(error),
                answer => written.push(answer),
            }
        }
        let mut touched = false;
        for draft in drafts.iter_mut().filter(|draft| draft.is_changed()) {
            draft.save(tx, db, self.0.store.incarnation()).await?;
            touched = true;
        }
        if touched {
            let seq = seq::template(self.0.store.incarnation(), seq::ordinal(tx));
            tx.set_versionstamped_value(&db.keys.update_seq(), &seq);
        }
        Ok(written)
    }
}

/// Splits edits into transactions.
///
/// Several edits of one document go into separate transactions unless they are replicated: a retry
/// finds the result of the last edit, so it could accept an edit that the first attempt rejected.
fn groups(edits: &[Edit], mode: EditMode) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut ids = HashSet::new();
    let mut bytes = 0;
    for (index, edit) in edits.iter().enumerate() {
        bytes += edit.bytes();
        let alone = mode == EditMode::NewEdits && !ids.insert(&edit.id);
        match groups.last_mut() {
            Some(group) if !alone && group.len() < GROUP_EDITS_MAX && bytes <= GROUP_BYTES_MAX => {
                group.end = index + 1;
            }
            _ => {
                bytes = edit.bytes();
                ids = HashSet::from([&edit.id]);
                groups.push(index..index + 1);
            }
        }
    }
    groups
}

fn is_too_large(error: &impl AsStoreError) -> bool {
    matches!(
        error.as_store_error(),
        Some(store::Error::TooLarge {
            limit: Limit::Transaction,
            ..
        })
    )
}
