//! The data model of this crate, and the only place that knows bytes of its keys.
//!
//! ```text
//! (53, 1, type) = format byte, JSON   settings of a user's type, whose jobs are those of `api/type` in the queue
//! ```

use store::KeyRange;
use store::tuple::{below, pack, unpack};

use crate::TypeName;

const LAYER: u16 = 53;
const TYPES: u16 = 1;

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
    }
}
