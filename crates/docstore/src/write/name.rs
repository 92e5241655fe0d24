//! The revision that an edit creates: its attachments and its id.

use document::rev::Rev;
use document::revid;
use document::revtree::{Node, RevTree};
use md5::{Digest, Md5};

use crate::edit::ATTACHMENTS_BYTES_MAX;
use crate::rows::{AttachmentRow, Leaf};
use crate::{Edit, Error, NewAttachment, Result};

/// The attachments of an edit, with stubs resolved.
///
/// `known` are those of the edited revision, `generation` is that of the new one. Attachments with data
/// have part 0 until one is assigned.
pub(super) fn resolve(
    edit: &Edit,
    known: &[AttachmentRow],
    generation: u64,
) -> Result<Vec<AttachmentRow>> {
    let resolve = |new: &NewAttachment| match &new.content {
        Some(content) => Ok(AttachmentRow {
            name: new.name.clone(),
            content_type: content.content_type.clone(),
            md5: Md5::digest(&content.data).into(),
            bytes: content.data.len() as u64,
            revpos: new.revpos.unwrap_or(generation).min(generation),
            part: 0,
        }),
        None => (known.iter())
            .find(|row| row.name == new.name && new.revpos.is_none_or(|pos| pos == row.revpos))
            .cloned()
            .ok_or_else(|| Error::MissingStub {
                id: edit.id.clone(),
                name: new.name.clone(),
            }),
    };
    let attachments: Vec<_> = edit
        .attachments
        .iter()
        .map(resolve)
        .collect::<Result<_>>()?;
    let bytes: u64 = attachments.iter().map(|row| row.bytes).sum();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes > ATTACHMENTS_BYTES_MAX {
        return Err(Error::TooLarge {
            id: edit.id.clone(),
            what: "attachments",
            bytes,
            bytes_max: ATTACHMENTS_BYTES_MAX,
        });
    }
    Ok(attachments)
}

/// The id of the revision that an edit of `parent` creates.
pub(super) fn new_rev(parent: Option<&Rev>, edit: &Edit, attachments: &[AttachmentRow]) -> Rev {
    let attachments = attachments.iter().map(|row| revid::Attachment {
        name: &row.name,
        content_type: &row.content_type,
        md5: row.md5,
    });
    revid::new_rev(parent, edit.deleted, &edit.body, attachments)
}

/// The revision that an earlier attempt of this edit created, if any. Called only if the edit conflicts.
///
/// A revision id is a hash of the edit and its parent, so if it exists the edit is done, even if another
/// client did it.
pub(super) fn find_own(tree: &RevTree<Leaf>, edit: &Edit) -> Option<Rev> {
    let made = |parent: Option<&Rev>, made: &Node<'_, Leaf>| {
        let known = made.value.map_or(&[][..], |leaf| &leaf.attachments);
        let attachments = resolve(edit, known, made.rev.generation).ok()?;
        let rev = new_rev(parent, edit, &attachments);
        (rev == *made.rev).then_some(rev)
    };
    let at = |generation| {
        tree.nodes()
            .filter(move |node| node.rev.generation == generation)
    };
    match edit.rev() {
        Some(base) => at(base.generation + 1).find_map(|node| made(Some(&base), &node)),
        None if edit.deleted => at(1).find_map(|node| made(None, &node)),
        None => {
            // The document may have been created with the same body before, and deleted: only the current
            // branch since the last deletion counts.
            let winner = tree.winner().filter(|winner| !winner.deleted)?;
            let mut path = tree.path(winner.rev);
            let first = path.by_ref().take_while(|node| !node.deleted).last()?;
            let parent = tree.path(first.rev).nth(1);
            made(parent.map(|node| node.rev), &first)
        }
    }
}
