//! Reading whole bodies.

use bytes::{Bytes, BytesMut};

/// A body is larger than its limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has more than {0} bytes")]
pub struct TooLarge(pub usize);

/// The chunks of a body up to a limit. A body in one chunk is not copied.
#[derive(Debug)]
pub struct Collected {
    bytes_max: usize,
    declared: usize,
    first: Bytes,
    rest: BytesMut,
}

impl Collected {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            declared: 0,
            first: Bytes::new(),
            rest: BytesMut::new(),
        }
    }

    /// Preallocates the `Content-Length`.
    pub fn sized(declared: Option<usize>, bytes_max: usize) -> Result<Self, TooLarge> {
        let declared = declared.unwrap_or(0);
        if declared > bytes_max {
            return Err(TooLarge(bytes_max));
        }
        Ok(Self {
            declared,
            ..Self::new(bytes_max)
        })
    }

    /// The number of bytes so far.
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn push(&mut self, chunk: Bytes) -> Result<(), TooLarge> {
        let length = self.len() + chunk.len();
        if length > self.bytes_max {
            return Err(TooLarge(self.bytes_max));
        }
        if self.is_empty() {
            self.first = chunk;
            return Ok(());
        }
        if self.rest.is_empty() {
            self.rest.reserve(self.declared.max(length));
            self.rest
                .extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&chunk);
        Ok(())
    }

    pub fn finish(self) -> Bytes {
        if self.rest.is_empty() {
            self.first
        } else {
            self.rest.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_joined_up_to_their_limit() {
        let chunk = Bytes::from_static(b"abc");
        let mut one = Collected::sized(Some(3), 3).unwrap();
        one.push(chunk.clone()).unwrap();
        assert_eq!(one.len(), 3);
        assert_eq!(one.push(Bytes::from_static(b"d")), Err(TooLarge(3)));
        assert_eq!(one.finish().as_ptr(), chunk.as_ptr(), "not copied");
        let mut more = Collected::new(7);
        for _ in 0..2 {
            more.push(chunk.clone()).unwrap();
        }
        assert_eq!(more.finish(), "abcabc");
        assert!(Collected::new(0).finish().is_empty());
        assert_eq!(Collected::sized(Some(8), 7).unwrap_err(), TooLarge(7));
    }
}
