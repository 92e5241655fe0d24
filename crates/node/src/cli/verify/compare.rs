//! What differs between two databases, some documents at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use couch::{Change, ChangesFilter, ChangesRequest, Database, DocId, Error, Rev, Seq, WantedRev};
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Changes that are read at a time.
const PAGE: u64 = 1_000;
/// Documents in one request to the other side: CouchDB looks up so many by id, and reads its whole feed for more.
const BATCH: usize = 100;
const BATCHES_AT_A_TIME: usize = 4;
const TRIES: u32 = 5;

/// What is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub(super) enum Difference {
    MissingAtTarget {
        id: String,
    },
    MissingAtSource {
        id: String,
    },
    Leaves {
        id: String,
        only_at_source: Vec<String>,
        only_at_target: Vec<String>,
    },
    Attachments {
        id: String,
        rev: String,
        names: Vec<String>,
    },
    /// A leaf that one side lists and does not return.
    Unreadable {
        id: String,
        rev: String,
    },
    Security,
}

/// What is compared of an attachment.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Stub {
    content_type: String,
    digest: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stubs {
    #[serde(rename = "_attachments")]
    attachments: BTreeMap<String, Stub>,
}

type Leaves = BTreeMap<DocId, BTreeSet<String>>;
/// The attachments of revisions, by their place in the request; `None` if one cannot be read.
type Attached = BTreeMap<usize, Option<BTreeMap<String, Stub>>>;

/// The two databases, and how they are compared.
pub(super) struct Pair {
    /// The source, and the target.
    pub(super) sides: [Database; 2],
    /// How many documents they had at the start, deleted ones included. Not all servers count these.
    pub(super) documents: [Option<u64>; 2],
    pub(super) attachments: bool,
    /// How long a document that differs has to become the same.
    pub(super) settle: Duration,
}

/// Some documents of one side.
pub(super) struct Page {
    pub(super) documents: u64,
    pub(super) differences: Vec<Difference>,
    /// Where the next page starts.
    pub(super) last: Value,
}

impl Pair {
    /// Compares the next documents of one side with the other side. What both have is compared from the source.
    pub(super) async fn next(&self, reversed: bool, since: &Value) -> Result<Page, Error> {
        let mut tries = 1;
        loop {
            let page = async {
                let (changes, last) = self.changes(reversed, since).await?;
                let differences = self.compare(reversed, &changes).await?;
                Ok(Page {
                    documents: changes.len() as u64,
                    differences,
                    last,
                })
            };
            match page.await {
                // An answer broke off.
                Err(Error::Interrupted { .. }) if tries < TRIES => tries += 1,
                page => return page,
            }
        }
    }

    /// Whether a side has been read to its end, after `read` changes and this page. A database that is written to always
    /// has changes: it is enough to have read those of the start. They come first, but for shards, which are not read at
    /// the same speed.
    pub(super) fn is_read(&self, reversed: bool, page: &Page, read: u64) -> bool {
        let documents = self.documents[usize::from(reversed)].unwrap_or(0);
        page.documents == 0 || (page.documents < PAGE && read >= documents)
    }

    /// Whether a side has so many more documents than at the start that it may be written to faster than it is read.
    pub(super) fn has_grown(&self, reversed: bool, read: u64) -> bool {
        let documents = self.documents[usize::from(reversed)];
        documents.is_some_and(|documents| read >= 2 * documents + 10 * PAGE)
    }

    /// The next changes of one side, and where they end.
    async fn changes(&self, reversed: bool, since: &Value) -> Result<(Vec<Change>, Value), Error> {
        let request = ChangesRequest {
            since: Seq::from_value(since),
            limit: Some(PAGE),
            ..ChangesRequest::default()
        };
        let mut feed = self.sides[usize::from(reversed)].changes(&request).await?;
        let mut changes = Vec::new();
        while let Some(change) = feed.next().await? {
            changes.push(change);
        }
        let last = feed.last_seq().or(changes.last().map(|change| &change.seq));
        let last = last.and_then(|seq| serde_json::from_str(seq.as_json()).ok());
        Ok((changes, last.unwrap_or_default()))
    }

    async fn compare(&self, reversed: bool, changes: &[Change]) -> Result<Vec<Difference>, Error> {
        let batches = stream::iter(changes.chunks(BATCH)).map(|batch| self.batch(reversed, batch));
        let found = batches.buffered(BATCHES_AT_A_TIME);
        let found: Vec<Vec<Difference>> = found.try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn batch(&self, reversed: bool, changes: &[Change]) -> Result<Vec<Difference>, Error> {
        let ours = changes
            .iter()
            .map(|change| (change.id.clone(), set(&change.revs)));
        let found = self.differences(reversed, ours.collect()).await?;
        if found.is_empty() || self.settle.is_zero() {
            return Ok(found);
        }
        tokio::time::sleep(self.settle).await;
        let again: BTreeSet<&str> = found.iter().filter_map(Difference::id).collect();
        let again: Vec<DocId> = again.into_iter().map(DocId::new).collect();
        let ours = self.leaves(reversed, &again).await?;
        self.differences(reversed, ours).await
    }

    async fn differences(&self, reversed: bool, ours: Leaves) -> Result<Vec<Difference>, Error> {
        let ids: Vec<DocId> = ours.keys().cloned().collect();
        let theirs = self.leaves(!reversed, &ids).await?;
        let (mut found, mut same) = (Vec::new(), Vec::new());
        for (doc, ours) in ours {
            let id = doc.as_str().to_owned();
            match theirs.get(&doc) {
                None if reversed => found.push(Difference::MissingAtSource { id }),
                None => found.push(Difference::MissingAtTarget { id }),
                Some(_) if reversed => {}
                Some(theirs) if ours == *theirs => {
                    same.extend(ours.into_iter().map(|rev| WantedRev {
                        id: doc.clone(),
                        rev: Some(Rev::new(rev)),
                        atts_since: Vec::new(),
                    }));
                }
                Some(theirs) => found.push(Difference::Leaves {
                    id,
                    only_at_source: ours.difference(theirs).cloned().collect(),
                    only_at_target: theirs.difference(&ours).cloned().collect(),
                }),
            }
        }
        if self.attachments && !same.is_empty() {
            found.extend(self.of_attachments(&same).await?);
        }
        Ok(found)
    }

    /// The leaves of documents of one side. A document that it does not have is left out.
    async fn leaves(&self, of_target: bool, ids: &[DocId]) -> Result<Leaves, Error> {
        let mut leaves = Leaves::new();
        if ids.is_empty() {
            return Ok(leaves);
        }
        let request = ChangesRequest {
            filter: ChangesFilter::DocIds(ids.to_vec()),
            ..ChangesRequest::default()
        };
        let side = &self.sides[usize::from(of_target)];
        let mut feed = side.changes(&request).await?;
        while let Some(change) = feed.next().await? {
            leaves.insert(change.id, set(&change.revs));
        }
        Ok(leaves)
    }

    /// Compares the attachments of revisions that both sides have.
    async fn of_attachments(&self, wanted: &[WantedRev]) -> Result<Vec<Difference>, Error> {
        let [source, target] = &self.sides;
        let (source, target) =
            future::try_join(attached(source, wanted), attached(target, wanted)).await?;
        let mut found = Vec::new();
        for (at, source) in &source {
            let (Some(target), wanted) = (target.get(at), &wanted[*at]) else {
                continue;
            };
            let id = wanted.id.as_str().to_owned();
            let rev = wanted.rev.as_ref().map_or("", Rev::as_str).to_owned();
            let (Some(source), Some(target)) = (source, target) else {
                found.push(Difference::Unreadable { id, rev });
                continue;
            };
            let names: BTreeSet<&String> = source.keys().chain(target.keys()).collect();
            let differs = |name: &&String| source.get(*name) != target.get(*name);
            let names: Vec<String> = names.into_iter().filter(differs).cloned().collect();
            if !names.is_empty() {
                found.push(Difference::Attachments { id, rev, names });
            }
        }
        Ok(found)
    }

    /// Compares `_security`, in which the order of names and roles does not matter.
    pub(super) async fn is_security_same(&self) -> Result<bool, Error> {
        let [source, target] = &self.sides;
        let (source, target) = future::try_join(source.security(), target.security()).await?;
        Ok(sorted(source) == sorted(target))
    }
}

impl Difference {
    fn id(&self) -> Option<&str> {
        match self {
            Self::MissingAtTarget { id }
            | Self::MissingAtSource { id }
            | Self::Leaves { id, .. }
            | Self::Attachments { id, .. }
            | Self::Unreadable { id, .. } => Some(id),
            Self::Security => None,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingAtTarget { id } => write!(f, "{id}: only at the source"),
            Self::MissingAtSource { id } => write!(f, "{id}: only at the target"),
            Self::Leaves {
                id,
                only_at_source,
                only_at_target,
            } => {
                write!(f, "{id}: leaves differ")?;
                for (side, revs) in [("source", only_at_source), ("target", only_at_target)] {
                    if !revs.is_empty() {
                        write!(f, "; only at the {side}: {}", revs.join(", "))?;
                    }
                }
                Ok(())
            }
            Self::Attachments { id, rev, names } => {
                write!(f, "{id}: attachments of {rev} differ: {}", names.join(", "))
            }
            Self::Unreadable { id, rev } => write!(f, "{id}: {rev} cannot be read on both sides"),
            Self::Security => f.write_str("_security differs"),
        }
    }
}

fn set(revs: &[Rev]) -> BTreeSet<String> {
    revs.iter().map(|rev| rev.as_str().to_owned()).collect()
}

async fn attached(database: &Database, wanted: &[WantedRev]) -> Result<Attached, Error> {
    let mut fetched = database.bulk_get(wanted, false).await?;
    let mut attached = Attached::new();
    while let Some(one) = fetched.next().await? {
        let Ok(document) = one.result else {
            attached.insert(one.index, None);
            continue;
        };
        // Otherwise a newer one has been written meanwhile.
        if document.rev == wanted[one.index].rev {
            let stubs = serde_json::from_slice(document.json()).ok();
            attached.insert(one.index, stubs.map(|stubs: Stubs| stubs.attachments));
        }
    }
    Ok(attached)
}

fn sorted(security: Value) -> Value {
    match security {
        Value::Array(mut items) => {
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        Value::Object(members) => {
            let members = members.into_iter();
            Value::Object(members.map(|(name, value)| (name, sorted(value))).collect())
        }
        other => other,
    }
}
