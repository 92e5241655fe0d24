//! Keys made of tuples, as `FoundationDB`'s layers have them.

pub use foundationdb_tuple::*;

use crate::KeyRange;

/// The keys that go on where a tuple ends.
pub fn below(tuple: &impl TuplePack) -> KeyRange {
    let prefix = pack(tuple);
    let (mut begin, mut end) = (prefix.clone(), prefix);
    begin.push(0x00);
    end.push(0xff);
    KeyRange::new(begin, end)
}
