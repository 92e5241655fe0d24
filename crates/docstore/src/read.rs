//! Reading documents by id.

use std::collections::HashSet;

use document::rev::{Rev, Revisions};
use document::revtree::{Node, RevTree};
use futures::future::try_join_all;
use store::Transaction;

use crate::record::{self, Record, leaf};
use crate::rows::{Leaf, Winner};
use crate::{Db, DocStore, Document, Error, Meta, Result, Seq};

/// The bytes of documents in a page, without the last document.
pub(crate) const PAGE_BYTES: usize = 1024 * 1024;
/// How many documents are read concurrently.
pub(crate) const BATCH: usize = 32;
/// The most ids in one transaction of `revs_diff`.
const DIFFS_MAX: usize = 200;

/// What to return besides a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a query parameter of its own"
)]
pub struct ReadOptions {
    /// `_revisions`
    pub revs: bool,
    /// `_revs_info`, of the winner
    pub revs_info: bool,
    /// `_conflicts`, of the winner
    pub conflicts: bool,
    /// `_deleted_conflicts`, of the winner
    pub deleted_conflicts: bool,
    /// `_local_seq`, of the winner
    pub local_seq: bool,
    /// Which attachments to return with their data.
    pub attachments: Attachments,
}

impl ReadOptions {
    /// True if only conflicts or attachments need the record.
    fn is_plain(&self) -> bool {
        !self.revs && !self.revs_info && !self.local_seq
    }
}

/// Which attachments are returned with their data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attachments {
    #[default]
    Stubs,
    All,
    /// The one with this name.
    Named(String),
    /// Those that are newer than the newest ancestor among these revisions.
    Since(Vec<Rev>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenRevs {
    /// Every leaf, including deletions.
    All,
    These(Vec<Rev>),
}

/// A revision, or its id if it is unknown or has no body.
pub type Opened = Result<Document, Rev>;

/// Some revisions of a document, and those to open next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenedPage {
    pub found: Vec<Opened>,
    pub rest: Vec<Rev>,
}

/// One request of a `_bulk_get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkGet {
    pub id: String,
    pub revs: OpenRevs,
    pub options: ReadOptions,
}

/// The revisions of a document that a database does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevsDiff {
    pub id: String,
    /// Requested revisions that are unknown.
    pub missing: Vec<Rev>,
    /// Leaves that may be their ancestors.
    pub possible_ancestors: Vec<Rev>,
}

impl DocStore {
    pub async fn get_in(
        &self,
        tx: &Transaction,
        db: &Db,
        id: &str,
        options: &ReadOptions,
    ) -> Result<Document> {
        let record = self.record_in(tx, db, id).await?;
        let winner = record.tree.winner().ok_or(Error::Missing)?;
        if winner.deleted {
            return Err(Error::Deleted);
        }
        read_winner(tx, db, id, &record, options).await
    }

    /// Reads the winning revision of a document.
    pub async fn get(&self, db: &Db, id: &str, options: &ReadOptions) -> Result<Document> {
        let get = |tx| async move { self.get_in(&tx, db, id, options).await };
        self.0.store.transact("read_document", get).await
    }

    /// Reads a revision of a document, or with `latest` its newest descendant.
    pub async fn get_rev(
        &self,
        db: &Db,
        id: &str,
        rev: &Rev,
        latest: bool,
        options: &ReadOptions,
    ) -> Result<Document> {
        let get = |tx: Transaction| async move {
            let record = self.record_in(&tx, db, id).await?;
            let revs = OpenRevs::These(vec![rev.clone()]);
            let (nodes, _) = choose(&record.tree, &revs, latest);
            // With several leaves as descendants, the winner among them is the last.
            let node = nodes.into_iter().next_back().ok_or(Error::Missing)?;
            read_leaf(&tx, db, id, &record.tree, node, options).await
        };
        self.0.store.transact("read_revision", get).await
    }

    async fn open_revs_in(
        &self,
        tx: &Transaction,
        db: &Db,
        id: &str,
        revs: &OpenRevs,
        latest: bool,
        options: &ReadOptions,
    ) -> Result<OpenedPage> {
        let record = self.record_in(tx, db, id).await?;
        let (nodes, missing) = choose(&record.tree, revs, latest);
        let (nodes, later) = nodes.split_at(fitting(&record.tree, &nodes, options)?);
        let read = (nodes.iter()).map(|node| read_leaf(tx, db, id, &record.tree, *node, options));
        let mut found: Vec<_> = try_join_all(read).await?.into_iter().map(Ok).collect();
        let mut rest: Vec<_> = later.iter().map(|node| node.rev.clone()).collect();
        if rest.is_empty() {
            found.extend(missing.into_iter().map(Err));
        } else {
            rest.extend(missing);
        }
        Ok(OpenedPage { found, rest })
    }

    /// Reads revisions of a document, or with `latest` the leaves that descend from them: at least the first, and as
    /// many as fit into a page.
    pub async fn open_revs_page(
        &self,
        db: &Db,
        id: &str,
        revs: &OpenRevs,
        latest: bool,
        options: &ReadOptions,
    ) -> Result<OpenedPage> {
        let open = |tx| async move { self.open_revs_in(&tx, db, id, revs, latest, options).await };
        self.0.store.transact("open_revisions", open).await
    }

    /// Answers at least the first of `requests`, and as many as fit into a page. The last answer may have a rest.
    pub async fn bulk_get_page(
        &self,
        db: &Db,
        requests: &[BulkGet],
        latest: bool,
    ) -> Result<Vec<OpenedPage>> {
        let get = |tx: Transaction| async move {
            let tx = &tx;
            let mut answers = Vec::new();
            let mut bytes = 0;
            for batch in requests.chunks(BATCH) {
                for request in batch {
                    let BulkGet { id, revs, options } = request;
                    let opened = self.open_revs_in(tx, db, id, revs, latest, options).await?;
                    let found = opened.found.iter().flatten();
                    bytes += found.map(Document::bytes).sum::<usize>();
                    let is_full = bytes >= PAGE_BYTES || !opened.rest.is_empty();
                    answers.push(opened);
                    if is_full {
                        return Ok(answers);
                    }
                }
                if answers.len() >= 10 * BATCH {
                    break;
                }
            }
            Ok(answers)
        };
        self.0.store.transact("bulk_get", get).await
    }

    async fn revs_diff_in(
        &self,
        tx: &Transaction,
        db: &Db,
        named: &[(String, Vec<Rev>)],
    ) -> Result<Vec<RevsDiff>> {
        self.check_in(tx, db).await?;
        let mut diffs = Vec::new();
        for batch in named.chunks(BATCH) {
            let records = batch.iter().map(|(id, _)| load(tx, db, id));
            for ((id, revs), record) in batch.iter().zip(try_join_all(records).await?) {
                let missing = record.tree.missing(revs);
                if !missing.is_empty() {
                    diffs.push(RevsDiff {
                        id: id.clone(),
                        possible_ancestors: record.tree.possible_ancestors(&missing),
                        missing,
                    });
                }
            }
        }
        Ok(diffs)
    }

    /// Returns the documents for which revisions are missing. Reads in transactions of bounded size.
    pub async fn revs_diff(&self, db: &Db, named: &[(String, Vec<Rev>)]) -> Result<Vec<RevsDiff>> {
        let mut diffs = Vec::new();
        for named in named.chunks(DIFFS_MAX) {
            let diff = |tx| async move { self.revs_diff_in(&tx, db, named).await };
            let diff: Result<Vec<_>> = self.0.store.transact("revs_diff", diff).await;
            diffs.extend(diff?);
        }
        Ok(diffs)
    }

    async fn record_in(&self, tx: &Transaction, db: &Db, id: &str) -> Result<Record> {
        let (_, record) =
            futures::future::try_join(self.check_in(tx, db), load(tx, db, id)).await?;
        Ok(record)
    }
}

impl Document {
    /// The approximate size in memory.
    pub(crate) fn bytes(&self) -> usize {
        let data = self
            .attachments
            .iter()
            .filter_map(|attachment| attachment.data.as_ref());
        let revisions = self
            .meta
            .revisions
            .as_ref()
            .map_or(0, |revs| 24 * revs.ids.len());
        self.body.len() + revisions + data.map(bytes::Bytes::len).sum::<usize>()
    }
}

async fn load(tx: &Transaction, db: &Db, id: &str) -> Result<Record> {
    // A document cannot have such an id.
    if !crate::edit::fits_a_key(id) {
        return Ok(Record::default());
    }
    Record::load(tx, db, id).await
}

/// The leaves to open, and the revisions that cannot be opened.
fn choose<'a>(
    tree: &'a RevTree<Leaf>,
    revs: &OpenRevs,
    latest: bool,
) -> (Vec<Node<'a, Leaf>>, Vec<Rev>) {
    match revs {
        OpenRevs::All => (tree.leaves(), Vec::new()),
        OpenRevs::These(revs) if latest => {
            let (mut nodes, missing) = tree.latest(revs);
            nodes.sort_by_key(|node| !node.deleted);
            (nodes, missing)
        }
        OpenRevs::These(revs) => {
            let mut nodes = Vec::new();
            let mut missing = Vec::new();
            let mut seen = HashSet::new();
            for rev in revs.iter().filter(|rev| seen.insert(*rev)) {
                match tree.get(rev).filter(|node| node.value.is_some()) {
                    Some(node) => nodes.push(node),
                    None => missing.push(rev.clone()),
                }
            }
            (nodes, missing)
        }
    }
}

/// How many of the leaves fit into a page: at least one.
fn fitting(tree: &RevTree<Leaf>, nodes: &[Node<'_, Leaf>], options: &ReadOptions) -> Result<usize> {
    let mut bytes = 0;
    for (count, node) in nodes.iter().enumerate() {
        if bytes >= PAGE_BYTES as u64 || count == 10 * BATCH {
            return Ok(count);
        }
        let leaf = leaf(*node)?;
        bytes += leaf.bytes;
        if options.attachments != Attachments::Stubs {
            bytes += leaf.attachments.iter().map(|row| row.bytes).sum::<u64>();
        }
        if options.revs {
            bytes += 24 * node.rev.generation.min(tree.len() as u64);
        }
    }
    Ok(nodes.len())
}

/// Reads a leaf, with the options that apply to any revision.
async fn read_leaf(
    tx: &Transaction,
    db: &Db,
    id: &str,
    tree: &RevTree<Leaf>,
    node: Node<'_, Leaf>,
    options: &ReadOptions,
) -> Result<Document> {
    let leaf = leaf(node)?;
    let body = record::body(tx, db, id, leaf.part).await?;
    let mut document = record::document(id, node.rev, node.deleted, leaf, body);
    let revisions = tree.revisions(node.rev);
    let after = match &options.attachments {
        Attachments::Stubs | Attachments::Named(_) => u64::MAX,
        Attachments::All => 0,
        Attachments::Since(revs) => (revisions.as_ref()).map_or(0, |known| newest(known, revs)),
    };
    for (attachment, row) in document.attachments.iter_mut().zip(&leaf.attachments) {
        let is_named =
            matches!(&options.attachments, Attachments::Named(name) if *name == row.name);
        if is_named || row.revpos > after || after == 0 {
            let data = record::attachment(tx, db, id, row.part, row.bytes).await?;
            attachment.data = Some(data);
        }
    }
    document.meta.revisions = revisions.filter(|_| options.revs);
    Ok(document)
}

/// The generation of the newest revision of a history that is in `revs`, or 0.
fn newest(history: &Revisions, revs: &[Rev]) -> u64 {
    let mut generations = (1..=history.start).rev().zip(&history.ids);
    let known = generations.find(|(generation, id)| {
        revs.iter()
            .any(|rev| rev.generation == *generation && rev.id == **id)
    });
    known.map_or(0, |(generation, _)| generation)
}

/// Reads the winner, with the options that apply only to it.
async fn read_winner(
    tx: &Transaction,
    db: &Db,
    id: &str,
    record: &Record,
    options: &ReadOptions,
) -> Result<Document> {
    let tree = &record.tree;
    let winner = tree.winner().ok_or(Error::Missing)?;
    let mut document = read_leaf(tx, db, id, tree, winner, options).await?;
    let conflicts = |asked: bool, deleted: bool| {
        let revs = if asked {
            tree.conflicts(deleted)
        } else {
            Vec::new()
        };
        revs.into_iter().cloned().collect()
    };
    let info = |(rev, status): (&Rev, _)| (rev.clone(), status);
    let revs_info = |rev| tree.revs_info(rev).into_iter().map(info).collect();
    document.meta = Meta {
        revs_info: options.revs_info.then(|| revs_info(winner.rev)),
        conflicts: conflicts(options.conflicts, false),
        deleted_conflicts: conflicts(options.deleted_conflicts, true),
        ..document.meta
    };
    if options.local_seq {
        let seq = tx.snapshot().get(&db.keys.seq(id)).await?;
        let seq = seq.ok_or_else(|| Error::corrupt("a document without sequence"))?;
        document.meta.local_seq = Some(Seq::decode(&seq)?);
    }
    Ok(document)
}

/// Reads a winner found by a listing, deleted or not.
pub(crate) async fn read_listed(
    tx: &Transaction,
    db: &Db,
    id: &str,
    winner: &Winner,
    options: &ReadOptions,
) -> Result<Document> {
    let conflicts = options.conflicts || options.deleted_conflicts;
    if options.is_plain() && !winner.attachments && !(winner.branched && conflicts) {
        let leaf = Leaf::default();
        let body = record::body(tx, db, id, winner.part).await?;
        return Ok(record::document(
            id,
            &winner.rev,
            winner.deleted,
            &leaf,
            body,
        ));
    }
    let record = Record::load(tx, db, id).await?;
    read_winner(tx, db, id, &record, options).await
}

/// Reads every leaf, the winner first.
pub(crate) async fn read_leaves(tx: &Transaction, db: &Db, id: &str) -> Result<Vec<Document>> {
    let record = Record::load(tx, db, id).await?;
    let options = ReadOptions::default();
    let leaves = record.tree.leaves().into_iter();
    try_join_all(leaves.map(|node| read_leaf(tx, db, id, &record.tree, node, &options))).await
}

/// The revisions of all leaves, the winner first.
pub(crate) async fn leaf_revs(tx: &Transaction, db: &Db, id: &str) -> Result<Vec<Rev>> {
    let record = Record::load(tx, db, id).await?;
    Ok((record.tree.leaves().iter())
        .map(|leaf| leaf.rev.clone())
        .collect())
}
