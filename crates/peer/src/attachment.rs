//! Attachments as sent and as stored.

use std::io::Write;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use document::doc::Doc;
use flate2::Compression;
use flate2::write::GzEncoder;
use md5::{Digest, Md5};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::options::Limits;
use crate::refusal::Refusal;

const COMPRESSION_LEVEL: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub name: Arc<str>,
    pub content_type: Arc<str>,
    /// The generation of the revision that added it; in a replicated document, whatever JSON the document has there.
    pub revpos: Value,
    pub md5: [u8; 16],
    /// The length without compression, if known.
    pub length: u64,
    pub gzip: bool,
    pub data: Bytes,
}

/// An attachment as declared by a document that is written.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) name: String,
    pub(crate) content_type: String,
    pub(crate) revpos: Option<Value>,
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) length: Option<u64>,
    pub(crate) encoded_length: Option<u64>,
    pub(crate) gzip: bool,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A stub: the attachment that the document has already.
    Stub,
    /// It follows the document in a separate part.
    Follows,
    Here(Bytes),
}

impl Sent {
    pub(crate) fn parse_all(doc: &Doc<'_>) -> Result<Vec<Self>, Refusal> {
        doc.attachments
            .iter()
            .map(|(name, json)| Self::parse(name.clone(), json))
            .collect()
    }

    fn parse(name: String, json: &str) -> Result<Self, Refusal> {
        #[derive(serde::Deserialize)]
        struct Raw<'a> {
            content_type: Option<String>,
            stub: Option<bool>,
            follows: Option<bool>,
            revpos: Option<Value>,
            digest: Option<String>,
            length: Option<u64>,
            encoding: Option<String>,
            encoded_length: Option<u64>,
            #[serde(borrow)]
            data: Option<&'a RawValue>,
        }
        check_name(&name)?;
        let bad_data = || Refusal::bad_request(format!("Invalid attachment data for {name}"));
        let raw: Raw<'_> = serde_json::from_str(json).map_err(|_| bad_data())?;
        let gzip = match raw.encoding.as_deref() {
            None | Some("identity") => false,
            Some("gzip") => true,
            Some(_) => return Err(Refusal::internal("unknown_error", "badarg")),
        };
        let digest = raw
            .digest
            .as_deref()
            .and_then(|digest| digest.strip_prefix("md5-"));
        let md5 = digest
            .and_then(|digest| BASE64.decode(digest).ok())
            .and_then(|md5| md5.try_into().ok());
        let content = if raw.stub == Some(true) {
            Content::Stub
        } else if raw.follows == Some(true) {
            Content::Follows
        } else {
            let json = raw.data.ok_or_else(bad_data)?.get();
            // Usually nothing in it is escaped, so it is not copied.
            let decoded = match serde_json::from_str::<&str>(json) {
                Ok(text) => BASE64.decode(text),
                Err(_) => {
                    BASE64.decode(serde_json::from_str::<String>(json).map_err(|_| bad_data())?)
                }
            };
            Content::Here(decoded.map_err(|_| bad_data())?.into())
        };
        let inline = matches!(content, Content::Here(_));
        let content_type = raw
            .content_type
            .unwrap_or_else(|| "application/octet-stream".to_owned());
        Ok(Self {
            name,
            content_type,
            revpos: raw.revpos,
            // Inline data is never compressed, and CouchDB ignores its `digest` and `length`.
            md5: md5.filter(|_| !inline),
            length: raw.length.filter(|_| !inline),
            encoded_length: raw.encoded_length.filter(|_| gzip && !inline),
            gzip: gzip && !inline,
            content,
        })
    }

    /// The declared length of the part that follows.
    pub(crate) fn following_bytes(&self) -> Option<u64> {
        self.encoded_length.or(self.length)
    }

    /// Compresses and hashes the bytes.
    pub(crate) fn store(
        &self,
        data: Bytes,
        revpos: Value,
        rules: &Rules,
    ) -> Result<Attachment, Refusal> {
        if data.len() > rules.limits.attachment_bytes_max {
            return Err(Refusal::attachment_too_large(&self.name));
        }
        let plain: [u8; 16] = Md5::digest(&data).into();
        if self.md5.is_some_and(|md5| md5 != plain) {
            return Err(Refusal::internal("unknown_error", "md5_mismatch"));
        }
        let length = if self.gzip { self.length } else { None }.unwrap_or(data.len() as u64);
        let (data, md5, gzip) =
            if !self.gzip && rules.compress && compresses_well(&self.content_type) {
                let compressed = compress(&data);
                let md5 = Md5::digest(&compressed).into();
                (compressed, md5, true)
            } else {
                (data, plain, self.gzip)
            };
        let name = self.name.as_str().into();
        let content_type = self.content_type.as_str().into();
        Ok(Attachment {
            name,
            content_type,
            revpos,
            md5,
            length,
            gzip,
            data,
        })
    }
}

/// How the server stores attachments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    pub(crate) compress: bool,
}

impl Attachment {
    /// Whether it is newer than a generation. A `revpos` that is not a number counts as newer than any.
    #[expect(clippy::cast_precision_loss, reason = "a generation has few digits")]
    pub(crate) fn is_after(&self, generation: u64) -> bool {
        self.revpos
            .as_f64()
            .is_none_or(|revpos| revpos > generation as f64)
    }

    /// The bytes without compression.
    pub fn plain(&self) -> Bytes {
        if !self.gzip {
            return self.data.clone();
        }
        match wire::gzip::gunzip(self.data.clone(), usize::MAX) {
            Ok(plain) => plain.into(),
            Err(_) => self.data.clone(),
        }
    }

    /// `md5-…`, the form in documents.
    pub fn digest(&self) -> String {
        format!("md5-{}", BASE64.encode(self.md5))
    }

    pub(crate) fn base64_md5(&self) -> String {
        BASE64.encode(self.md5)
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.starts_with('_') {
        let reason = format!("Attachment name '{name}' starts with prohibited character '_'");
        return Err(Refusal::bad_request(reason));
    }
    Ok(())
}

fn compresses_well(content_type: &str) -> bool {
    let kind = wire::media_type(content_type);
    kind.starts_with("text/")
        || [
            "application/javascript",
            "application/json",
            "application/xml",
        ]
        .contains(&kind.as_str())
}

fn compress(data: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(COMPRESSION_LEVEL));
    let written = encoder.write_all(data).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail").into()
}
