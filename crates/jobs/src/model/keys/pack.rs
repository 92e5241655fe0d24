//! Encodes keys: the subspace, the number of a table, and a tuple.

use store::KeyRange;
use store::tuple::{TuplePack, pack_into};

use super::{Keys, Table};
use crate::JobType;

impl Keys {
    pub(super) fn pack(&self, table: Table, key: &impl TuplePack) -> Vec<u8> {
        let mut bytes = self.begin(table);
        pack_into(key, &mut bytes);
        bytes
    }

    /// [`Self::pack`] with a type as the first element. A job has some twenty keys, so it writes the type by itself.
    pub(super) fn pack_of(&self, table: Table, ty: &JobType, rest: &impl TuplePack) -> Vec<u8> {
        const STRING: u8 = 2;
        let (mut bytes, name) = (self.begin(table), ty.as_str());
        if name.contains('\0') {
            pack_into(&name, &mut bytes);
        } else {
            bytes.push(STRING);
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
        pack_into(rest, &mut bytes);
        bytes
    }

    /// The subspace and the number of a table.
    fn begin(&self, table: Table) -> Vec<u8> {
        const ONE_BYTE: u8 = 0x15;
        let mut bytes = Vec::with_capacity(96);
        bytes.extend_from_slice(&self.subspace);
        bytes.extend_from_slice(&[ONE_BYTE, table as u8]);
        bytes
    }

    pub(super) fn range(&self, table: Table, prefix: &impl TuplePack) -> KeyRange {
        // Elements of a tuple start with a byte from 0x00 to 0x33.
        let begin = self.pack(table, prefix);
        let end = [&*begin, &[0xff]].concat();
        KeyRange::new(begin, end)
    }
}
