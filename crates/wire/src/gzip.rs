//! Decompresses gzip in bounded steps.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::write::GzDecoder;

use crate::body::TooLarge;

/// Input per step: deflate expands it by a factor of about 1,000 at most.
const STEP_BYTES: usize = 2048;

/// Why a whole body was not decompressed.
#[derive(Debug, thiserror::Error)]
pub enum GzipError {
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("damaged gzip")]
    Damaged(#[from] io::Error),
}

/// Decompresses a whole body of at most `bytes_max` bytes.
pub fn gunzip(packed: Bytes, bytes_max: usize) -> Result<Vec<u8>, GzipError> {
    let mut gunzip = Gunzip::default();
    let mut plain = Vec::new();
    gunzip.feed(packed);
    loop {
        let (chunk, is_last) = match gunzip.next_chunk()? {
            Some(chunk) => (chunk, false),
            None => (gunzip.finish()?.unwrap_or_default(), true),
        };
        if plain.len() + chunk.len() > bytes_max {
            return Err(TooLarge(bytes_max).into());
        }
        plain.extend_from_slice(&chunk);
        if is_last {
            return Ok(plain);
        }
    }
}

/// Decompresses a stream of chunks. A row is passed on as soon as it arrived, not when a buffer is full.
pub struct Gunzip {
    decoder: GzDecoder<Vec<u8>>,
    packed: Bytes,
    is_empty: bool,
}

impl Default for Gunzip {
    fn default() -> Self {
        Self {
            decoder: GzDecoder::new(Vec::new()),
            packed: Bytes::new(),
            is_empty: true,
        }
    }
}

impl Gunzip {
    /// Adds the next chunk, after [`Self::next_chunk`] returned `None`.
    pub fn feed(&mut self, packed: Bytes) {
        debug_assert!(self.packed.is_empty(), "the last chunk is not used up");
        self.is_empty &= packed.is_empty();
        self.packed = packed;
    }

    /// Decompressed bytes; `None` if the next chunk is needed.
    pub fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        while !self.packed.is_empty() {
            let step = self.packed.len().min(STEP_BYTES);
            let taken = self.decoder.write(&self.packed[..step])?;
            if taken == 0 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "trailing bytes"));
            }
            self.packed = self.packed.slice(taken..);
            self.decoder.flush()?;
            if let Some(unpacked) = self.unpacked() {
                return Ok(Some(unpacked));
            }
        }
        Ok(None)
    }

    /// The last bytes, after comparing the checksum. An empty body is complete.
    pub fn finish(&mut self) -> io::Result<Option<Bytes>> {
        if !self.is_empty {
            self.decoder.try_finish()?;
        }
        Ok(self.unpacked())
    }

    fn unpacked(&mut self) -> Option<Bytes> {
        let unpacked = std::mem::take(self.decoder.get_mut());
        (!unpacked.is_empty()).then(|| Bytes::from(unpacked))
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn pack(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn unpack(packed: &[u8], size: usize) -> io::Result<Vec<u8>> {
        let mut gunzip = Gunzip::default();
        let mut all = Vec::new();
        for chunk in packed.chunks(size) {
            gunzip.feed(Bytes::copy_from_slice(chunk));
            while let Some(unpacked) = gunzip.next_chunk()? {
                assert!(unpacked.len() <= 4 << 20);
                all.extend_from_slice(&unpacked);
            }
        }
        all.extend(gunzip.finish()?.into_iter().flatten());
        Ok(all)
    }

    #[test]
    fn any_chunks() {
        let data: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| n.wrapping_mul(n).to_le_bytes())
            .collect();
        for data in [&data[..], b"", b"short"] {
            let packed = pack(data);
            for size in [1, 1000, 1_000_000] {
                assert_eq!(unpack(&packed, size).unwrap(), data);
            }
        }
        assert_eq!(unpack(b"", 1).unwrap(), b"");
    }

    #[test]
    fn whole_bodies_have_a_limit() {
        let packed = Bytes::from(pack(&[7; 1000]));
        assert_eq!(gunzip(packed.clone(), 1000).unwrap(), [7; 1000]);
        let refused = gunzip(packed.clone(), 999);
        assert!(matches!(refused, Err(GzipError::TooLarge(TooLarge(999)))));
        for damaged in [packed.slice(..packed.len() - 1), Bytes::from_static(b"{}")] {
            assert!(matches!(gunzip(damaged, 1000), Err(GzipError::Damaged(_))));
        }
    }

    #[test]
    fn a_bomb_goes_off_in_small_steps() {
        let packed = pack(&vec![0; 64 << 20]);
        assert!(packed.len() < 100_000);
        assert_eq!(unpack(&packed, usize::MAX).unwrap().len(), 64 << 20);
    }

    #[test]
    fn flushed_rows_arrive_at_once() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"{\"seq\":1}\n").unwrap();
        encoder.flush().unwrap();
        let mut gunzip = Gunzip::default();
        gunzip.feed(Bytes::from(encoder.get_ref().clone()));
        let mut found = Vec::new();
        while let Some(unpacked) = gunzip.next_chunk().unwrap() {
            found.extend_from_slice(&unpacked);
        }
        assert_eq!(found, b"{\"seq\":1}\n");
    }

    #[test]
    fn damage_is_noticed() {
        let packed = pack(b"some data that is packed");
        assert!(unpack(&packed[..packed.len() - 1], 5).is_err(), "truncated");
        assert!(unpack(&packed[..12], 5).is_err(), "truncated early");
        let mut wrong_sum = packed.clone();
        let at = wrong_sum.len() - 6;
        wrong_sum[at] ^= 1;
        assert!(unpack(&wrong_sum, 5).is_err());
        assert!(unpack(b"not gzip at all", 5).is_err());
        assert!(unpack(&[&packed[..], b"tail"].concat(), 5).is_err());
    }
}
