//! Sealed bytes, for data of jobs.
//!
//! [`MARK`], the length of the key's name in 2 bytes, the name, and nonce, ciphertext and tag. The mark tells them from data
//! that is not sealed, so that keys can be changed without knowing what the rest is.

use bytes::{BufMut as _, Bytes};

use crate::{Sealer, Unreadable};

/// The first byte is the format byte of users' jobs.
const MARK: &[u8] = b"\x02sealed\0";

/// The context of the data of a job.
pub fn job_context(ty: &str, id: &[u8]) -> Vec<u8> {
    [b"data/", ty.as_bytes(), b"\0", id].concat()
}

pub fn is_sealed(data: &[u8]) -> bool {
    data.starts_with(MARK)
}

/// The name of the key that sealed data, if it is sealed.
pub fn key_of_data(data: &[u8]) -> Option<&str> {
    split(data).map(|(name, _)| name)
}

fn split(data: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = data.strip_prefix(MARK)?.split_first_chunk()?;
    let (name, sealed) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((str::from_utf8(name).ok()?, sealed))
}

impl Sealer {
    /// Seals data for a context; `None` without a key. Equal data in the same context is equal when sealed with the same key.
    pub fn seal_data(&self, context: &[u8], data: &[u8]) -> Option<Bytes> {
        let key = self.first()?;
        let sealed = key.seal(context, data);
        let length = u16::try_from(key.name.len()).ok()?;
        let mut all = Vec::with_capacity(MARK.len() + 2 + key.name.len() + sealed.len());
        all.put_slice(MARK);
        all.put_u16(length);
        all.put_slice(key.name.as_bytes());
        all.put_slice(&sealed);
        Some(all.into())
    }

    /// Opens data that was sealed for a context.
    pub fn open_data(&self, context: &[u8], data: &[u8]) -> Result<Bytes, Unreadable> {
        let (name, sealed) = split(data).ok_or(Unreadable::Changed)?;
        let plain = self.key(name)?.open(context, sealed.to_vec());
        plain.map(Bytes::from).ok_or(Unreadable::Changed)
    }

    /// Reseals data; `None` if it is not sealed, or would be sealed with the same key again.
    pub fn reseal_data(&self, context: &[u8], data: &[u8]) -> Result<Option<Bytes>, Unreadable> {
        if !is_sealed(data) || !self.seals() || key_of_data(data) == self.newest() {
            return Ok(None);
        }
        let plain = self.open_data(context, data)?;
        Ok(self.seal_data(context, &plain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(names: &[&str]) -> Sealer {
        let key = |name: &&str| ((*name).to_owned(), [name.as_bytes()[0]; 32]);
        Sealer::new(names.iter().map(key).collect()).unwrap()
    }

    #[test]
    fn sealed_data_opens_only_in_its_context() {
        let (sealer, here) = (ring(&["a"]), job_context("api/mail", b"1"));
        let data = b"\x01hunter2";
        let sealed = sealer.seal_data(&here, data).unwrap();
        assert!(is_sealed(&sealed) && !is_sealed(data));
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        assert_eq!(sealer.seal_data(&here, data).unwrap(), sealed);
        assert_eq!(sealer.open_data(&here, &sealed).unwrap(), &data[..]);
        for other in [job_context("api/mail", b"2"), job_context("api/post", b"1")] {
            assert_eq!(sealer.open_data(&other, &sealed), Err(Unreadable::Changed));
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert!(sealer.open_data(&here, &changed).is_err(), "{at}");
            assert!(sealer.open_data(&here, &sealed[..at]).is_err(), "{at}");
        }
        assert_eq!(Sealer::plain().seal_data(&here, data), None);
        assert_eq!(
            Sealer::plain().open_data(&here, &sealed),
            Err(Unreadable::NoKey("a".into()))
        );
    }

    #[test]
    fn data_is_resealed_with_another_key() {
        let (here, both) = (job_context("t", b"1"), ring(&["b", "a"]));
        let old = ring(&["a"]).seal_data(&here, b"text").unwrap();
        assert_eq!(key_of_data(&old), Some("a"));
        let new = both.reseal_data(&here, &old).unwrap().unwrap();
        assert_eq!(key_of_data(&new), Some("b"));
        assert_eq!(ring(&["b"]).open_data(&here, &new).unwrap(), "text");
        assert_eq!(both.reseal_data(&here, &new), Ok(None));
        assert_eq!(both.reseal_data(&here, b"text"), Ok(None));
        assert_eq!(Sealer::plain().reseal_data(&here, &old), Ok(None));
        assert_eq!(both.reseal_data(b"", &old), Err(Unreadable::Changed));
    }
}
