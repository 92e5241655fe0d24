//! The query parameters of documents.

use document::rev::Rev;
use document::revtree::Node;
use std::sync::Arc;

use crate::db::{Document, Version};
use crate::refusal::Refusal;
use crate::render::{Attachments, Shown};
use crate::request::Request;
use crate::seq::Seqs;

/// Which revisions of a document to return, and in what form.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a query parameter")]
pub(super) struct DocQuery {
    pub(super) rev: Option<Rev>,
    pub(super) open_revs: Option<OpenRevs>,
    pub(super) latest: bool,
    pub(super) new_edits: bool,
    pub(super) deleted: bool,
    pub(super) attachments: bool,
    pub(super) atts_since: Option<Vec<Rev>>,
    encoding: bool,
    revs: bool,
    revs_info: bool,
    conflicts: bool,
    deleted_conflicts: bool,
    local_seq: bool,
}

#[derive(Clone, Debug)]
pub(super) enum OpenRevs {
    All,
    These(Vec<Rev>),
}

impl DocQuery {
    pub(super) fn parse(request: &Request) -> Result<Self, Refusal> {
        let meta = request.flag("meta");
        let open_revs = match request.param("open_revs") {
            None => None,
            Some("all") => Some(OpenRevs::All),
            Some(json) => {
                let revs = parse_revs(json)?;
                // CouchDB treats an empty list like a missing parameter.
                (!revs.is_empty()).then_some(OpenRevs::These(revs))
            }
        };
        let atts_since = request.param("atts_since").map(parse_revs).transpose()?;
        Ok(Self {
            rev: request.param("rev").map(str::parse).transpose()?,
            open_revs,
            latest: request.flag("latest"),
            new_edits: request.param("new_edits") != Some("false"),
            deleted: request.flag("deleted"),
            attachments: request.flag("attachments") || atts_since.is_some(),
            atts_since,
            encoding: request.flag("att_encoding_info"),
            revs: request.flag("revs"),
            revs_info: meta || request.flag("revs_info"),
            conflicts: meta || request.flag("conflicts"),
            deleted_conflicts: meta || request.flag("deleted_conflicts"),
            local_seq: request.flag("local_seq"),
        })
    }

    /// The same with the attachments newer than the given revisions, if there are any.
    pub(super) fn since(&self, revs: &[Rev]) -> Self {
        let mut query = self.clone();
        query.attachments |= !revs.is_empty();
        query.atts_since = (!revs.is_empty()).then(|| revs.to_vec());
        query
    }

    /// The form of a revision requested by its id.
    pub(super) fn shown(&self, document: &Document, node: Node<'_, Arc<Version>>) -> Shown {
        let known_generation = self.atts_since.as_ref().map(|revs| {
            let mut path = document.tree.path(node.rev);
            let known = path.find(|node| revs.contains(node.rev));
            known.map_or(0, |node| node.rev.generation)
        });
        Shown {
            revisions: self
                .revs
                .then(|| document.tree.revisions(node.rev))
                .flatten(),
            attachments: if self.attachments {
                Attachments::Inline
            } else {
                Attachments::Stubs
            },
            known_generation,
            encoding: self.encoding,
            ..Shown::default()
        }
    }

    /// The form of the winner.
    pub(super) fn shown_winner(&self, document: &Document, seqs: Seqs) -> Shown {
        let winner = document.winner();
        let conflicts = |wanted: bool, deleted| {
            let revs = if wanted {
                document.tree.conflicts(deleted)
            } else {
                Vec::new()
            };
            revs.into_iter().cloned().collect()
        };
        let info = || {
            document
                .tree
                .revs_info(winner.rev)
                .into_iter()
                .map(|(rev, status)| (rev.clone(), status))
        };
        Shown {
            revs_info: self.revs_info.then(|| info().collect()),
            local_seq: self.local_seq.then(|| seqs.json(document.seq)),
            conflicts: conflicts(self.conflicts, false),
            deleted_conflicts: conflicts(self.deleted_conflicts, true),
            ..self.shown(document, winner)
        }
    }
}

pub(super) fn parse_revs(json: &str) -> Result<Vec<Rev>, Refusal> {
    let revs: Vec<serde_json::Value> =
        serde_json::from_str(json).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => Refusal::bad_request("Invalid list of revisions"),
            _ => Refusal::bad_request("invalid UTF-8 JSON"),
        })?;
    let parse = |rev: &serde_json::Value| {
        rev.as_str()
            .unwrap_or_default()
            .parse()
            .map_err(Refusal::from)
    };
    revs.iter().map(parse).collect()
}
