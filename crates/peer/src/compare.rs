//! Compares the contents of two databases.

mod remote;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use document::json::Json;
use document::rev::Rev;
use serde_json::Value;

use crate::db::Database;

/// Everything in a database that replication copies, and the `_local` documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The leaf revisions of each document.
    pub documents: BTreeMap<String, BTreeMap<Rev, Leaf>>,
    /// The bodies of `_local` documents, by id with `_local/`.
    pub locals: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub deleted: bool,
    /// Its ancestors, newest first.
    pub ancestors: Vec<Rev>,
    /// The client's members, as JSON text.
    pub body: String,
    /// Attachments by name: content type, generation they came with, and bytes (uncompressed).
    pub attachments: BTreeMap<String, (String, Value, Bytes)>,
}

/// A difference between a target and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    MissingDocument(String),
    ExtraDocument(String),
    MissingLeaf(String, Rev),
    ExtraLeaf(String, Rev),
    /// Only one of them is a deletion.
    Deleted(String, Rev),
    /// Their ancestors differ. A history may be longer on one side.
    History(String, Rev),
    Body(String, Rev),
    /// An attachment is missing on one side, or its type, generation or bytes differ.
    Attachment(String, Rev, String),
    /// A `_local` document is missing on one side, or its members differ.
    Local(String),
}

impl Contents {
    pub(crate) fn of(db: &Database) -> Self {
        let state = db.read();
        let leaf = |document: &crate::db::Document, rev: &Rev, deleted: bool| {
            let node = document.tree.get(rev)?;
            let version = node.value?;
            let attachment = |part: &crate::attachment::Attachment| {
                (
                    part.name.to_string(),
                    (
                        part.content_type.to_string(),
                        part.revpos.clone(),
                        part.plain(),
                    ),
                )
            };
            let ancestors = document
                .tree
                .path(rev)
                .skip(1)
                .map(|node| node.rev.clone())
                .collect();
            let attachments = version.attachments.iter().map(attachment).collect();
            Some(Leaf {
                deleted,
                ancestors,
                body: version.body.to_string(),
                attachments,
            })
        };
        let documents = state.docs.iter().map(|(id, document)| {
            let leaves = document.tree.leaves().into_iter();
            let leaves = leaves.filter_map(|node| {
                Some((node.rev.clone(), leaf(document, node.rev, node.deleted)?))
            });
            (id.to_string(), leaves.collect())
        });
        let locals = state
            .locals
            .iter()
            .map(|(id, local)| (id.to_string(), local.body.to_string()));
        Self {
            documents: documents.collect(),
            locals: locals.collect(),
        }
    }

    /// Drops the `_local` documents, for replications without checkpoints.
    #[must_use]
    pub fn without_locals(self) -> Self {
        Self {
            locals: BTreeMap::new(),
            ..self
        }
    }
}

/// Lists the differences. Histories may be longer on one side, and revisions of `_local` documents may differ.
pub fn compare(source: &Contents, target: &Contents) -> Vec<Difference> {
    let mut differences = Vec::new();
    for id in keys(&source.documents, &target.documents) {
        match (source.documents.get(id), target.documents.get(id)) {
            (Some(source), Some(target)) => compare_leaves(&mut differences, id, source, target),
            (Some(_), None) => differences.push(Difference::MissingDocument(id.clone())),
            (None, _) => differences.push(Difference::ExtraDocument(id.clone())),
        }
    }
    for id in keys(&source.locals, &target.locals) {
        let same = source
            .locals
            .get(id)
            .zip(target.locals.get(id))
            .is_some_and(|(a, b)| same_json(a, b));
        if !same {
            differences.push(Difference::Local(id.clone()));
        }
    }
    differences
}

fn keys<'a, K: Ord, V>(a: &'a BTreeMap<K, V>, b: &'a BTreeMap<K, V>) -> BTreeSet<&'a K> {
    a.keys().chain(b.keys()).collect()
}

fn compare_leaves(
    differences: &mut Vec<Difference>,
    id: &str,
    source: &BTreeMap<Rev, Leaf>,
    target: &BTreeMap<Rev, Leaf>,
) {
    for rev in keys(source, target) {
        let at = || (id.to_owned(), rev.clone());
        let (Some(a), Some(b)) = (source.get(rev), target.get(rev)) else {
            let (id, rev) = at();
            let missing = source.contains_key(&rev);
            differences.push(if missing {
                Difference::MissingLeaf(id, rev)
            } else {
                Difference::ExtraLeaf(id, rev)
            });
            continue;
        };
        if a.deleted != b.deleted {
            differences.push(Difference::Deleted(id.to_owned(), rev.clone()));
        }
        if a.ancestors.iter().zip(&b.ancestors).any(|(a, b)| a != b) {
            differences.push(Difference::History(id.to_owned(), rev.clone()));
        }
        if !same_json(&a.body, &b.body) {
            differences.push(Difference::Body(id.to_owned(), rev.clone()));
        }
        for name in keys(&a.attachments, &b.attachments) {
            if a.attachments.get(name) != b.attachments.get(name) {
                differences.push(Difference::Attachment(
                    id.to_owned(),
                    rev.clone(),
                    name.clone(),
                ));
            }
        }
    }
}

/// Whether two texts are equal JSON: members in order, numbers by value.
fn same_json(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    match (Json::parse(a), Json::parse(b)) {
        (Ok(a), Ok(b)) => same(&a, &b),
        _ => false,
    }
}

fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => {
            let value = |digits: &str| digits.parse::<f64>().unwrap_or(f64::NAN).to_bits();
            let whole = |digits: &str| !digits.contains(['.', 'e', 'E']);
            a == b || (!whole(a) && !whole(b) && value(a) == value(b))
        }
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && same(&a.1, &b.1))
        }
        (a, b) => a == b,
    }
}
