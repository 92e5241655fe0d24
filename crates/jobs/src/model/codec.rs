//! The encoding of values: a format byte, then fields in order, without names.
//!
//! - unsigned numbers: seven bits a byte, the least significant first, the high bit set on all but
//!   the last byte;
//! - signed numbers: zigzag (0, -1, 1, -2 … are 0, 1, 2, 3 …), then as unsigned;
//! - bytes and text: their length, then themselves;
//! - an option: 0, or 1 and the value; a list: its length, then its items;
//! - locks and operation ids: 16 and 8 raw bytes.

use bytes::{Buf, Bytes};

use crate::{Error, Result};

/// Encodes one value.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(format: u8) -> Self {
        let mut bytes = Vec::with_capacity(160);
        bytes.push(format);
        Self(bytes)
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn uint(&mut self, number: impl Into<u64>) {
        let mut rest = number.into();
        while rest >= 0x80 {
            self.0.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
            rest >>= 7;
        }
        self.0.push(u8::try_from(rest).unwrap_or(0));
    }

    pub(crate) fn int(&mut self, number: i64) {
        self.uint(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.uint(bytes.len() as u64);
        self.raw(bytes);
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.byte(0),
            Some(value) => {
                self.byte(1);
                write(self, value);
            }
        }
    }

    pub(crate) fn ids(&mut self, ids: &[u64]) {
        self.uint(ids.len() as u64);
        for id in ids {
            self.raw(&id.to_be_bytes());
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes one value.
#[derive(Debug)]
pub(crate) struct Reader {
    rest: Bytes,
    what: &'static str,
}

impl Reader {
    /// A reader of `value`, which must have been written in `format`.
    pub(crate) fn new(value: Bytes, what: &'static str, format: u8) -> Result<Self> {
        let mut reader = Self { rest: value, what };
        let found = reader.byte()?;
        if found != format {
            return Err(Error::corrupt(format!(
                "{what} of format {found}, and this version of Davenport knows only {format}"
            )));
        }
        Ok(reader)
    }

    fn broken(&self) -> Error {
        Error::corrupt(format!("{} cannot be decoded", self.what))
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let byte = *self.rest.first().ok_or_else(|| self.broken())?;
        // Most fields are single bytes, for which a part of the value with a count of its users is too much.
        self.rest.advance(1);
        Ok(byte)
    }

    pub(crate) fn uint<T: TryFrom<u64>>(&mut self) -> Result<T> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return number.try_into().map_err(|_| self.broken());
            }
        }
        Err(self.broken())
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        let zigzag: u64 = self.uint()?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<Bytes> {
        if length > self.rest.len() {
            return Err(self.broken());
        }
        Ok(self.rest.split_to(length))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = *(self.rest.first_chunk()).ok_or_else(|| self.broken())?;
        self.rest.advance(N);
        Ok(bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes> {
        let length = self.uint()?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.into()).map_err(|_| self.broken())
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(self.broken()),
        }
    }

    pub(crate) fn ids(&mut self) -> Result<Vec<u64>> {
        let length: usize = self.uint()?;
        if length > self.rest.len() / 8 {
            return Err(self.broken());
        }
        (0..length)
            .map(|_| self.array().map(u64::from_be_bytes))
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails if bytes are left.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.broken())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_round_trip(unsigned: u64, signed: i64, text: String, ids: Vec<u64>, opt: Option<u32>) {
            let mut writer = Writer::new(7);
            writer.uint(unsigned);
            writer.int(signed);
            writer.bytes(text.as_bytes());
            writer.ids(&ids);
            writer.option(opt, Writer::uint);
            let mut reader = Reader::new(writer.finish().into(), "test", 7).unwrap();
            prop_assert_eq!(reader.uint::<u64>().unwrap(), unsigned);
            prop_assert_eq!(reader.int().unwrap(), signed);
            prop_assert_eq!(reader.text().unwrap(), text);
            prop_assert_eq!(reader.ids().unwrap(), ids);
            prop_assert_eq!(reader.option(Reader::uint::<u32>).unwrap(), opt);
            reader.end().unwrap();
        }

        #[test]
        fn garbage_is_rejected(bytes: Vec<u8>) {
            if let Ok(mut reader) = Reader::new(bytes.into(), "test", 1) {
                let _ = reader.uint::<u32>();
                let _ = reader.ids();
                let _ = reader.text();
                let _ = reader.option(Reader::int);
            }
        }
    }

    #[test]
    fn a_number_of_eleven_bytes_is_rejected() {
        let mut bytes = vec![1];
        bytes.extend([0xff; 9]);
        bytes.push(2);
        let mut reader = Reader::new(bytes.into(), "test", 1).unwrap();
        assert!(reader.uint::<u64>().is_err());
    }
}
