//! Update sequences: the order of all writes to a store, which survives moving the store.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use store::Transaction;

use crate::{Error, Result};

/// The sequence of a write; opaque to clients.
///
/// The incarnation comes first: it grows when the store is moved, and versions of the new backend start
/// anywhere. Then the commit's versionstamp and the number of the write in that commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq {
    pub(crate) incarnation: u32,
    pub(crate) stamp: [u8; 12],
}

impl Seq {
    /// Before the first write: `0`.
    pub const ZERO: Self = Self {
        incarnation: 0,
        stamp: [0; 12],
    };

    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let corrupt = || Error::corrupt("invalid sequence");
        let rest = value.strip_prefix(&[FORMAT]).ok_or_else(corrupt)?;
        let (incarnation, stamp) = rest.split_first_chunk().ok_or_else(corrupt)?;
        Ok(Self {
            incarnation: u32::from_be_bytes(*incarnation),
            stamp: stamp.try_into().map_err(|_| corrupt())?,
        })
    }
}

const FORMAT: u8 = 1;

/// The value that the commit completes to the sequence of a write.
pub(crate) fn template(incarnation: u32, ordinal: u16) -> Vec<u8> {
    let mut value = vec![FORMAT];
    value.extend(incarnation.to_be_bytes());
    value.extend([0xff; 10]);
    value.extend(ordinal.to_be_bytes());
    value.extend(5_u32.to_le_bytes());
    value
}

/// A number that increases with each write of a transaction.
///
/// It is derived from the transaction's size, the only state that all its operations share, which grows
/// by about a thousand bytes with each document. The largest transaction fits into 16 bits.
pub(crate) fn ordinal(tx: &Transaction) -> u16 {
    const STEP_BYTES: usize = store::limits::TRANSACTION_BYTES_MAX / u16::MAX as usize + 1;
    u16::try_from(tx.approximate_size() / STEP_BYTES).unwrap_or(u16::MAX)
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ZERO {
            return f.write_str("0");
        }
        write!(f, "{}-", self.incarnation)?;
        self.stamp
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Seq {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Seq {
    type Err = Error;

    /// Also takes the text with its JSON quotes, as CouchDB 4's replicator sends it.
    fn from_str(text: &str) -> Result<Self> {
        let quoted = (text.strip_prefix('"')).and_then(|text| text.strip_suffix('"'));
        let text = quoted.unwrap_or(text);
        if text == "0" {
            return Ok(Self::ZERO);
        }
        let (incarnation, digits) = text.split_once('-').ok_or(Error::BadSeq)?;
        let is_digits = |text: &str, hex: u32| text.chars().all(|digit| digit.is_digit(hex));
        if !is_digits(incarnation, 10) || digits.len() != 24 || !is_digits(digits, 16) {
            return Err(Error::BadSeq);
        }
        let number = u128::from_str_radix(digits, 16).map_err(|_| Error::BadSeq)?;
        let mut stamp = [0; 12];
        stamp.copy_from_slice(&number.to_be_bytes()[4..]);
        Ok(Self {
            incarnation: incarnation.parse().map_err(|_| Error::BadSeq)?,
            stamp,
        })
    }
}

/// The starting point of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Seq(Seq),
    /// After the newest write: `now`.
    Now,
}

impl Default for Since {
    fn default() -> Self {
        Self::Seq(Seq::ZERO)
    }
}

impl From<Seq> for Since {
    fn from(seq: Seq) -> Self {
        Self::Seq(seq)
    }
}

impl FromStr for Since {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "now" | "\"now\"" => Ok(Self::Now),
            _ => text.parse().map(Self::Seq),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_text_that_comes_back() {
        let seq = Seq {
            incarnation: 7,
            stamp: [0, 0, 0, 0, 0, 0, 1, 0xab, 0, 0, 0, 3],
        };
        assert_eq!(seq.to_string(), "7-00000000000001ab00000003");
        assert_eq!(seq.to_string().parse::<Seq>().unwrap(), seq);
        assert_eq!(format!("\"{seq}\"").parse::<Since>().unwrap(), seq.into());
        assert_eq!("0".parse::<Since>().unwrap(), Since::default());
        assert_eq!("now".parse::<Since>().unwrap(), Since::Now);
        for text in [
            "",
            "1",
            "-",
            "x",
            "NOW",
            "0-",
            "7-00000000000001ab0000000",
            "7-00000000000001ab0000000g",
            "7-+0000000000001ab00000003",
            "+7-00000000000001ab00000003",
            "-00000000000001ab00000003",
            "99999999999-00000000000001ab00000003",
            "7-00000000000001ab000000030",
            "7-é0000000000001ab0000000",
        ] {
            assert!(
                matches!(text.parse::<Since>(), Err(Error::BadSeq)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_new_incarnation_is_after_the_old() {
        let old = Seq {
            incarnation: 1,
            stamp: [0xff; 12],
        };
        let new = Seq {
            incarnation: 2,
            stamp: [0; 12],
        };
        assert!(Seq::ZERO < old && old < new);
    }

    #[test]
    fn a_template_completed_is_a_sequence() {
        let mut value = template(9, 0x0102);
        let offset = value.split_off(value.len() - 4);
        assert_eq!(offset, [5, 0, 0, 0]);
        assert_eq!(&value[5..15], [0xff; 10]);
        let seq = Seq::decode(&value).unwrap();
        assert_eq!(seq.incarnation, 9);
        assert_eq!(seq.stamp[10..], [1, 2]);
        assert!(Seq::decode(&value[1..]).is_err());
    }
}
