//! The data model of this crate, and the only place that knows bytes of its keys.
//!
//! ```text
//! (53, 1, type) = format byte, JSON   settings of a user's type, whose jobs are those of `api/type` in the queue
//! (53, 2, name) = format byte, JSON   an API token: its hash, and what it allows
//! (53, 3, name) = format byte, JSON   a schedule, whose job is that of this id and the type `schedules` in the queue
//! ```

use store::KeyRange;
use store::tuple::{below, pack, unpack};

use crate::{Error, Result, TypeName};

const LAYER: u16 = 53;
const TYPES: u16 = 1;
const TOKENS: u16 = 2;
const SCHEDULES: u16 = 3;

pub(crate) fn type_row(name: &TypeName) -> Vec<u8> {
    pack(&(LAYER, TYPES, name.as_str()))
}

pub(crate) fn types() -> KeyRange {
    below(&(LAYER, TYPES))
}

pub(crate) fn type_name(key: &[u8]) -> Option<TypeName> {
    let (_, _, name) = unpack::<(u16, u16, String)>(key).ok()?;
    TypeName::new(&name).ok()
}

pub(crate) fn token(name: &str) -> Vec<u8> {
    pack(&(LAYER, TOKENS, name))
}

pub(crate) fn tokens() -> KeyRange {
    below(&(LAYER, TOKENS))
}

pub(crate) fn schedule(name: &str) -> Vec<u8> {
    pack(&(LAYER, SCHEDULES, name))
}

pub(crate) fn schedules() -> KeyRange {
    below(&(LAYER, SCHEDULES))
}

/// The name of a token or a schedule.
pub(crate) fn name(key: &[u8]) -> Result<String> {
    let name = unpack::<(u16, u16, String)>(key).map(|(_, _, name)| name);
    name.map_err(|_| Error::corrupt("the key of a token or a schedule cannot be decoded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_pinned() {
        let name = TypeName::new("a").unwrap();
        let key = type_row(&name);
        assert_eq!(key.escape_ascii().to_string(), r"\x155\x15\x01\x02a\x00");
        assert!(types().contains(&key));
        assert_eq!(type_name(&key), Some(name));
        assert_eq!(
            token("a").escape_ascii().to_string(),
            r"\x155\x15\x02\x02a\x00"
        );
        assert_eq!(
            schedule("a").escape_ascii().to_string(),
            r"\x155\x15\x03\x02a\x00"
        );
        assert_eq!(super::name(&schedule("b")).unwrap(), "b");
    }
}
