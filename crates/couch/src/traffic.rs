//! What an endpoint's requests transferred.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sums over all requests of one opened endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests sent, repetitions included.
    pub requests: u64,
    /// Requests that had to be repeated.
    pub retries: u64,
    /// Bytes of response bodies on the wire.
    pub bytes_read: u64,
    /// Bytes of requests' bodies.
    pub bytes_written: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Counters {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        crate::metrics::received(bytes as u64);
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn written(&self, bytes: u64) {
        crate::metrics::sent(bytes);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sums(&self) -> Traffic {
        Traffic {
            requests: self.requests.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }
}
