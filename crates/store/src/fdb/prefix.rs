//! The prefix of a store's keys in the cluster.

use crate::tuple::pack;
use crate::{Error, KeyRange, Result};

const NAME_DEFAULT: &str = "davenport";
/// [`crate::limits`] allows for prefixes of this size.
const NAME_BYTES_MAX: usize = 24;

/// A tuple-packed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prefix(Vec<u8>);

impl Prefix {
    /// Parses the part of a store's URL after the question mark: nothing, or `prefix=NAME`.
    pub(super) fn from_options(options: &str) -> Result<Self> {
        let name = match options.split_once('=') {
            None if options.is_empty() => NAME_DEFAULT,
            Some(("prefix", name)) => name,
            _ => {
                return Err(Error::open(format!(
                    "{options:?} is not an option of an fdb: store; the only one is prefix=NAME"
                )));
            }
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
            return Err(Error::open(format!(
                "the prefix {name:?} of an fdb: store must be 1 to {NAME_BYTES_MAX} letters, digits, \
                 dots, hyphens or underscores"
            )));
        }
        Ok(Self(pack(&name)))
    }

    /// The key in the cluster.
    pub(super) fn add(&self, key: &[u8]) -> Vec<u8> {
        [&self.0, key].concat()
    }

    /// The range in the cluster, which lies within the store whatever its end is.
    pub(super) fn add_range(&self, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
        (self.add(&range.begin), self.add(&range.end))
    }

    /// The key in the store.
    pub(super) fn strip<'a>(&self, key: &'a [u8]) -> Result<&'a [u8]> {
        key.strip_prefix(&*self.0).ok_or_else(|| {
            Error::corrupt(format!(
                "a read returned key {key:02x?} outside the store's prefix"
            ))
        })
    }

    /// The client's form of a key or value with the versionstamp at `offset`.
    pub(super) fn template(bytes: &[u8], offset: usize) -> Vec<u8> {
        let offset = u32::try_from(offset).expect("keys and values are shorter than 4 GiB");
        [bytes, &offset.to_le_bytes()].concat()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_comes_from_the_url() {
        assert_eq!(
            Prefix::from_options("").unwrap().add(b"k"),
            b"\x02davenport\0k"
        );
        assert_eq!(
            Prefix::from_options("prefix=a.b_c-1").unwrap().add(b""),
            b"\x02a.b_c-1\0"
        );
        assert!(Prefix::from_options(&format!("prefix={}", "x".repeat(24))).is_ok());
        for wrong in [
            "prefix=",
            "prefix",
            "prefix=a/b",
            "prefix=a&prefix=b",
            "tenant=a",
            &format!("prefix={}", "x".repeat(25)),
        ] {
            let error = Prefix::from_options(wrong).unwrap_err();
            assert!(matches!(error, Error::Open { .. }), "{wrong}: {error:?}");
        }
    }

    #[test]
    fn no_store_lies_within_another() {
        let [a, ab] = ["prefix=a", "prefix=ab"].map(|o| Prefix::from_options(o).unwrap());
        let (begin, end) = a.add_range(&KeyRange::new(&b""[..], &b"\xff\xff"[..]));
        assert!(!(begin..end).contains(&ab.add(b"")));
        assert_eq!(a.strip(&a.add(b"key")).unwrap(), b"key");
        assert!(matches!(
            a.strip(&ab.add(b"key")),
            Err(Error::Corrupt { .. })
        ));
    }
}
