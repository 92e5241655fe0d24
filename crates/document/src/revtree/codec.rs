//! Binary encoding of trees.
//!
//! ```text
//! tree  = 1 (version), count, node*             numbers are LEB128; nodes ascend by revision
//! node  = generation - that of the node before, flags, [parent], id, [value]
//! flags = 1 has a parent | 2 deleted | 4 has a value | 8 id is text
//! parent = own index - parent's index
//! id    = 16 bytes, or length and UTF-8
//! value = whatever the owner writes, which must know its own end
//! ```
//! A revision of a long history takes 20 bytes.

use super::{NONE, RevTree, Slot};
use crate::Error;
use crate::rev::{Rev, RevId};

const VERSION: u8 = 1;
const HAS_PARENT: u8 = 1;
const DELETED: u8 = 2;
const HAS_VALUE: u8 = 4;
const TEXT_ID: u8 = 8;

impl<V> RevTree<V> {
    /// Appends the tree; `value` appends one value.
    pub fn encode(&self, out: &mut Vec<u8>, mut value: impl FnMut(&V, &mut Vec<u8>)) {
        out.push(VERSION);
        put_number(out, self.nodes.len() as u64);
        let mut generation = 0;
        for (index, slot) in self.nodes.iter().enumerate() {
            put_number(out, slot.rev.generation - generation);
            generation = slot.rev.generation;
            let flag = |on: bool, flag: u8| if on { flag } else { 0 };
            out.push(
                flag(slot.parent != NONE, HAS_PARENT)
                    | flag(slot.deleted, DELETED)
                    | flag(slot.value.is_some(), HAS_VALUE)
                    | flag(matches!(slot.rev.id, RevId::Text(_)), TEXT_ID),
            );
            if slot.parent != NONE {
                put_number(out, index as u64 - u64::from(slot.parent));
            }
            if let RevId::Text(text) = &slot.rev.id {
                put_number(out, text.len() as u64);
            }
            out.extend_from_slice(slot.rev.id.as_bytes());
            if let Some(stored) = &slot.value {
                value(stored, out);
            }
        }
    }

    /// Decodes a tree from the front of `bytes`; `value` decodes one value.
    pub fn decode(
        bytes: &mut &[u8],
        mut value: impl FnMut(&mut &[u8]) -> Result<V, Error>,
    ) -> Result<Self, Error> {
        if take(bytes, 1)? != [VERSION] {
            return Err(Error::Corrupt("unknown version"));
        }
        let count = take_number(bytes)?;
        // A node has at least 3 bytes: a forged count must not cause a large allocation.
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= bytes.len() / 3);
        let count = count.ok_or(Error::Corrupt("more nodes than bytes"))?;
        let mut nodes: Vec<Slot<V>> = Vec::with_capacity(count);
        let mut generation: u64 = 0;
        for index in 0..count {
            let step = take_number(bytes)?;
            generation = generation
                .checked_add(step)
                .ok_or(Error::Corrupt("generation"))?;
            let flags = take(bytes, 1)?[0];
            let parent = if flags & HAS_PARENT == 0 {
                None
            } else {
                Some(take_number(bytes)?)
            };
            let id = take_id(bytes, flags)?;
            let stored = if flags & HAS_VALUE == 0 {
                None
            } else {
                Some(value(bytes)?)
            };
            let rev = Rev { generation, id };
            if nodes.last().is_some_and(|before| before.rev >= rev) {
                return Err(Error::Corrupt("order"));
            }
            let parent = match parent {
                None => NONE,
                Some(distance) => {
                    let parent = (index as u64)
                        .checked_sub(distance)
                        .filter(|_| distance > 0);
                    let parent = parent.and_then(|parent| u32::try_from(parent).ok());
                    let parent = parent.ok_or(Error::Corrupt("parent"))?;
                    let slot = &mut nodes[parent as usize];
                    if slot.rev.generation.checked_add(1) != Some(generation) {
                        return Err(Error::Corrupt("parent's generation"));
                    }
                    slot.leaf = false;
                    parent
                }
            };
            nodes.push(Slot {
                rev,
                parent,
                leaf: true,
                deleted: flags & DELETED != 0,
                value: stored,
            });
        }
        Ok(Self { nodes })
    }
}

fn take_id(bytes: &mut &[u8], flags: u8) -> Result<RevId, Error> {
    if flags & TEXT_ID == 0 {
        let id = take(bytes, 16)?;
        return Ok(RevId::Md5(id.try_into().expect("16 bytes were taken")));
    }
    let length = usize::try_from(take_number(bytes)?).map_err(|_| Error::Corrupt("id length"))?;
    let text = std::str::from_utf8(take(bytes, length)?).map_err(|_| Error::Corrupt("id text"))?;
    Ok(RevId::Text(text.into()))
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, Error> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Error::Corrupt("number"))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Error> {
    let (taken, rest) = bytes
        .split_at_checked(length)
        .ok_or(Error::Corrupt("cut short"))?;
    *bytes = rest;
    Ok(taken)
}
