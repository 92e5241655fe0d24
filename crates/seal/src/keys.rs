//! The data model of this crate, and the only place that knows bytes of its keys. The other rows of layer 52 are those of
//! `scheduler`.
//!
//! ```text
//! (52, 8)                 = name      of the key that seals
//! (52, 9, name of a key)  = 1 or 0    something may be sealed with it; 0 since a pass began
//! (52, 10)                = JSON      the last pass that resealed everything
//! (52, 11, name of a key) = 16 bytes  check value: a hash of the key of this name
//! (52, 20, name)          = sealed    a value that is no data of a job
//! ```

use store::KeyRange;
use store::tuple::{below, pack, unpack};

use crate::{Error, Result};

const LAYER: u16 = 52;
const SEAL: u16 = 8;
const USED: u16 = 9;
const PASS: u16 = 10;
const CHECKS: u16 = 11;
const VALUES: u16 = 20;

pub(crate) fn seal() -> Vec<u8> {
    pack(&(LAYER, SEAL))
}

pub(crate) fn used(key: &str) -> Vec<u8> {
    pack(&(LAYER, USED, key))
}

pub(crate) fn uses() -> KeyRange {
    below(&(LAYER, USED))
}

pub(crate) fn check(key: &str) -> Vec<u8> {
    pack(&(LAYER, CHECKS, key))
}

pub(crate) fn checks() -> KeyRange {
    below(&(LAYER, CHECKS))
}

pub(crate) fn value(name: &str) -> Vec<u8> {
    pack(&(LAYER, VALUES, name))
}

pub(crate) fn values() -> KeyRange {
    below(&(LAYER, VALUES))
}

/// The name at the end of a row's key.
pub(crate) fn name(row: &[u8]) -> Result<String> {
    let (_, _, name) = unpack::<(u16, u16, String)>(row)
        .map_err(|_| Error::corrupt("the row of a key cannot be decoded"))?;
    Ok(name)
}

pub(crate) fn pass() -> Vec<u8> {
    pack(&(LAYER, PASS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_pinned() {
        for (key, bytes) in [
            (seal(), r"\x154\x15\x08"),
            (used("k"), r"\x154\x15\t\x02k\x00"),
            (pass(), r"\x154\x15\n"),
            (check("k"), r"\x154\x15\x0b\x02k\x00"),
            (value("k"), r"\x154\x15\x14\x02k\x00"),
        ] {
            assert_eq!(key.escape_ascii().to_string(), bytes);
        }
        assert!(uses().contains(&used("k")) && !uses().contains(&pass()));
        assert_eq!(name(&used("k")).unwrap(), "k");
        assert!(checks().contains(&check("k")) && !uses().contains(&check("k")));
        assert_eq!(name(&check("k")).unwrap(), "k");
    }
}
