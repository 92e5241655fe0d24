//! The encoding of values. Each begins with a format byte; numbers are big endian.

use document::rev::{Rev, RevId};
use document::revtree::RevTree;

use crate::{Error, InstanceId, Result};

const FORMAT: u8 = 1;

/// The value of a database's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DbRow {
    pub(crate) instance: InstanceId,
    pub(crate) revs_limit: u32,
}

impl DbRow {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut value = vec![FORMAT];
        value.extend(self.instance.0);
        value.extend(self.revs_limit.to_be_bytes());
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value, "invalid row of a database")?;
        Ok(Self {
            instance: InstanceId(reader.array()?),
            revs_limit: reader.u32()?,
        })
    }
}

/// What listings return without reading the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Winner {
    pub(crate) rev: Rev,
    pub(crate) deleted: bool,
    /// It has other leaves.
    pub(crate) branched: bool,
    pub(crate) attachments: bool,
    /// The part of its body.
    pub(crate) part: u64,
}

const DELETED: u8 = 1;
const BRANCHED: u8 = 2;
const ATTACHMENTS: u8 = 4;
const TEXT_ID: u8 = 8;

impl Winner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let id = self.rev.id.as_bytes();
        let length = u16::try_from(id.len()).expect("revisions that are longer are refused");
        let mut value = vec![FORMAT];
        value.push(
            flag(self.deleted, DELETED)
                | flag(self.branched, BRANCHED)
                | flag(self.attachments, ATTACHMENTS)
                | flag(matches!(self.rev.id, RevId::Text(_)), TEXT_ID),
        );
        value.extend(self.part.to_be_bytes());
        value.extend(self.rev.generation.to_be_bytes());
        value.extend(length.to_be_bytes());
        value.extend_from_slice(id);
        value
    }

    /// The winner and the bytes after it.
    pub(crate) fn decode(value: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = Reader::new(value, "invalid winner of a document")?;
        let flags = reader.u8()?;
        let part = reader.u64()?;
        let generation = reader.u64()?;
        let length = usize::from(reader.u16()?);
        let id = reader.take(length)?;
        let id = if flags & TEXT_ID == 0 {
            RevId::Md5(id.try_into().map_err(|_| reader.corrupt())?)
        } else {
            RevId::Text((std::str::from_utf8(id).map_err(|_| reader.corrupt())?).into())
        };
        let winner = Self {
            rev: Rev { generation, id },
            deleted: flags & DELETED != 0,
            branched: flags & BRANCHED != 0,
            attachments: flags & ATTACHMENTS != 0,
            part,
        };
        Ok((winner, reader.rest))
    }

    /// The value of a row of the changes.
    pub(crate) fn encode_change(&self, id: &str) -> Vec<u8> {
        let mut value = self.encode();
        value.extend_from_slice(id.as_bytes());
        value
    }

    pub(crate) fn decode_change(value: &[u8]) -> Result<(Self, String)> {
        let (winner, id) = Self::decode(value)?;
        let id = std::str::from_utf8(id).map_err(|_| Error::corrupt("invalid id of a change"))?;
        Ok((winner, id.to_owned()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The part of the body.
    pub(crate) part: u64,
    pub(crate) bytes: u64,
    pub(crate) attachments: Vec<AttachmentRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachmentRow {
    pub(crate) name: String,
    pub(crate) content_type: String,
    pub(crate) md5: [u8; 16],
    pub(crate) bytes: u64,
    /// The generation that added it.
    pub(crate) revpos: u64,
    pub(crate) part: u64,
}

/// The transaction that wrote a record, and the number of the write in it.
///
/// A transaction that finds its own read version here has already written the document: a record of
/// another transaction that it can read was written with an earlier read version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) incarnation: u32,
    pub(crate) read_version: u64,
    pub(crate) ordinal: u16,
}

/// The value of a document's record.
#[derive(Clone, Debug)]
pub(crate) struct RecordRow {
    pub(crate) mark: Mark,
    /// The number of the next part.
    pub(crate) next_part: u64,
    pub(crate) tree: RevTree<Leaf>,
}

impl RecordRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![FORMAT];
        value.extend(self.mark.incarnation.to_be_bytes());
        value.extend(self.mark.read_version.to_be_bytes());
        value.extend(self.mark.ordinal.to_be_bytes());
        value.extend(self.next_part.to_be_bytes());
        self.tree.encode(&mut value, put_leaf);
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(value, "invalid record of a document")?;
        let mark = Mark {
            incarnation: reader.u32()?,
            read_version: reader.u64()?,
            ordinal: reader.u16()?,
        };
        let next_part = reader.u64()?;
        let take = |rest: &mut &[u8]| take_leaf(rest).map_err(|_| document::Error::Corrupt("leaf"));
        let tree = RevTree::decode(&mut reader.rest, take)?;
        if !reader.rest.is_empty() {
            return Err(reader.corrupt());
        }
        Ok(Self {
            mark,
            next_part,
            tree,
        })
    }
}

fn put_leaf(leaf: &Leaf, out: &mut Vec<u8>) {
    let put_text = |text: &str, out: &mut Vec<u8>| {
        out.extend((text.len() as u64).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    };
    out.extend(leaf.part.to_be_bytes());
    out.extend(leaf.bytes.to_be_bytes());
    out.extend((leaf.attachments.len() as u64).to_be_bytes());
    for attachment in &leaf.attachments {
        put_text(&attachment.name, out);
        put_text(&attachment.content_type, out);
        out.extend(attachment.md5);
        out.extend(attachment.bytes.to_be_bytes());
        out.extend(attachment.revpos.to_be_bytes());
        out.extend(attachment.part.to_be_bytes());
    }
}

fn take_leaf(bytes: &mut &[u8]) -> Result<Leaf> {
    let mut reader = Reader {
        rest: bytes,
        what: "invalid leaf of a document",
    };
    let mut leaf = Leaf {
        part: reader.u64()?,
        bytes: reader.u64()?,
        attachments: Vec::new(),
    };
    for _ in 0..reader.u64()? {
        leaf.attachments.push(AttachmentRow {
            name: reader.text()?,
            content_type: reader.text()?,
            md5: reader.array()?,
            bytes: reader.u64()?,
            revpos: reader.u64()?,
            part: reader.u64()?,
        });
    }
    *bytes = reader.rest;
    Ok(leaf)
}

/// The value of a `_local` document.
pub(crate) fn encode_local(number: u64, body: &str) -> Vec<u8> {
    let mut value = vec![FORMAT];
    value.extend(number.to_be_bytes());
    value.extend_from_slice(body.as_bytes());
    value
}

pub(crate) fn decode_local(value: &[u8]) -> Result<(u64, String)> {
    let mut reader = Reader::new(value, "invalid local document")?;
    let number = reader.u64()?;
    let body = std::str::from_utf8(reader.rest).map_err(|_| reader.corrupt())?;
    Ok((number, body.to_owned()))
}

pub(crate) fn encode_text(text: &str) -> Vec<u8> {
    let mut value = vec![FORMAT];
    value.extend_from_slice(text.as_bytes());
    value
}

pub(crate) fn decode_text(value: &[u8]) -> Result<String> {
    let reader = Reader::new(value, "invalid text")?;
    let text = std::str::from_utf8(reader.rest).map_err(|_| reader.corrupt())?;
    Ok(text.to_owned())
}

struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    fn new(value: &'a [u8], what: &'static str) -> Result<Self> {
        let rest = (value.strip_prefix(&[FORMAT])).ok_or_else(|| Error::corrupt(what))?;
        Ok(Self { rest, what })
    }

    fn corrupt(&self) -> Error {
        Error::corrupt(self.what)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = (self.rest.split_at_checked(length)).ok_or_else(|| self.corrupt())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = (self.rest.split_first_chunk()).ok_or_else(|| self.corrupt())?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = usize::try_from(self.u64()?).map_err(|_| self.corrupt())?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| self.corrupt())?;
        Ok(text.to_owned())
    }
}
