//! Documents to write.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use document::doc::{Doc, Invalid, check_id};
use document::rev::{Rev, RevId, Revisions};

use crate::error::INVALID_REV;
use crate::keys::ID_BYTES_MAX;
use crate::{Error, Result};

/// The longest revision id that a client may choose.
const REV_ID_BYTES_MAX: usize = 1000;
/// Higher generations could overflow.
const GENERATION_MAX: u64 = u64::MAX / 2;
/// The most ancestors of a revision that are stored.
const ANCESTORS_MAX: usize = 20_000;
/// The most bytes of attachments in a document. New ones and the body are written in one transaction, and all of them may
/// be read at once.
pub(crate) const ATTACHMENTS_BYTES_MAX: usize = 8_000_000;
/// The most bytes of a document with its new attachments.
const EDIT_BYTES_MAX: usize = 9_000_000;

/// One document to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    pub id: String,
    /// The revision to edit; in replication, the revision to add and its ancestors.
    pub revisions: Option<Revisions>,
    pub deleted: bool,
    /// The client's members, as compact JSON.
    pub body: String,
    /// Stored instead of the body: the same with sealed credentials. The revision id is computed from
    /// `body`, so that it is the same as CouchDB's.
    pub sealed: Option<String>,
    pub attachments: Vec<NewAttachment>,
}

/// An attachment of a document to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAttachment {
    pub name: String,
    /// The generation that added it, if the client sent that.
    pub revpos: Option<u64>,
    /// `None` for a stub, which refers to the edited revision's attachment of this name.
    pub content: Option<Content>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub content_type: String,
    pub data: Bytes,
}

impl Edit {
    /// The document `id` as a client sent it.
    pub fn new(id: impl Into<String>, doc: Doc<'_>) -> Result<Self> {
        let attachments = (doc.attachments.iter())
            .map(|(name, json)| parse_attachment(name, json))
            .collect::<Result<_>>()?;
        Ok(Self {
            id: id.into(),
            revisions: doc.revisions,
            deleted: doc.deleted,
            body: doc.body,
            sealed: None,
            attachments,
        })
    }

    /// The deletion of `id` at `rev`.
    pub fn deletion(id: impl Into<String>, rev: Option<Rev>) -> Self {
        Self {
            id: id.into(),
            revisions: rev.map(Revisions::from),
            deleted: true,
            body: "{}".to_owned(),
            ..Self::default()
        }
    }

    /// The revision to edit or (in replication) to add.
    pub fn rev(&self) -> Option<Rev> {
        self.revisions.as_ref().and_then(Revisions::rev)
    }

    /// True for `_local` documents, which have no history and are not replicated.
    pub fn is_local(&self) -> bool {
        self.id.starts_with("_local/")
    }

    pub(crate) fn stored_body(&self) -> &str {
        self.sealed.as_ref().unwrap_or(&self.body)
    }

    /// The approximate size in a transaction.
    pub(crate) fn bytes(&self) -> usize {
        self.stored_body().len() + self.attachment_bytes()
    }

    fn attachment_bytes(&self) -> usize {
        let contents = self
            .attachments
            .iter()
            .filter_map(|new| new.content.as_ref());
        contents.map(|content| content.data.len()).sum()
    }

    /// Checks everything that does not depend on the stored document.
    pub(crate) fn check(&self, document_bytes_max: usize) -> Result<()> {
        check_id(&self.id, None)?;
        if !fits_a_key(&self.id) {
            return Err(Invalid::Id("Document id is too long").into());
        }
        if let Some(revisions) = &self.revisions {
            check_revisions(revisions)?;
        }
        for NewAttachment { name, .. } in &self.attachments {
            if name.starts_with('_') {
                return Err(Error::BadQuery {
                    error: "bad_request",
                    reason: format!(
                        "Attachment name '{name}' starts with prohibited character '_'"
                    ),
                });
            }
        }
        let limits = [
            ("body", self.body.len(), document_bytes_max),
            (
                "attachments",
                self.attachment_bytes(),
                ATTACHMENTS_BYTES_MAX,
            ),
            ("document", self.bytes(), EDIT_BYTES_MAX),
        ];
        match limits
            .into_iter()
            .find(|(_, bytes, bytes_max)| bytes > bytes_max)
        {
            None => Ok(()),
            Some((what, bytes, bytes_max)) => Err(Error::TooLarge {
                id: self.id.clone(),
                what,
                bytes,
                bytes_max,
            }),
        }
    }

    /// The history, truncated.
    pub(crate) fn history(&self) -> Option<Revisions> {
        let mut revisions = self.revisions.clone()?;
        revisions.ids.truncate(ANCESTORS_MAX);
        Some(revisions)
    }
}

pub(crate) fn fits_a_key(id: &str) -> bool {
    id.len() + id.bytes().filter(|byte| *byte == 0).count() <= ID_BYTES_MAX
}

fn check_revisions(revisions: &Revisions) -> Result<()> {
    let fits = |id: &RevId| id.as_bytes().len() <= REV_ID_BYTES_MAX;
    if revisions.start > GENERATION_MAX || !revisions.ids.iter().all(fits) {
        return Err(INVALID_REV.into());
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct RawAttachment<'a> {
    #[serde(default)]
    stub: bool,
    #[serde(default)]
    follows: bool,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content_type: Option<Cow<'a, str>>,
    revpos: Option<u64>,
}

fn parse_attachment(name: &str, json: &str) -> Result<NewAttachment> {
    // Like Erlang's decoder, accept missing padding.
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let refuse = || Error::BadQuery {
        error: "bad_request",
        reason: format!("Invalid attachment data for {name}"),
    };
    let raw: RawAttachment<'_> = serde_json::from_str(json).map_err(|_| refuse())?;
    if raw.follows {
        return Err(Error::Follows);
    }
    let content = if raw.stub {
        None
    } else {
        let data = raw.data.ok_or_else(refuse)?;
        let content_type = raw
            .content_type
            .unwrap_or("application/octet-stream".into());
        Some(Content {
            content_type: content_type.into_owned(),
            data: BASE64.decode(data.as_bytes()).map_err(|_| refuse())?.into(),
        })
    };
    Ok(NewAttachment {
        name: name.to_owned(),
        revpos: raw.revpos,
        content,
    })
}
