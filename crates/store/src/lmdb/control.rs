//! A page of memory that all processes of a store share: how far the log is written, synced and moved
//! into the tree.
//!
//! The page is a mapped file, so it outlives a killed process. It is not synced: after a power cut it
//! may hold an earlier state. Numbers only grow, and `durable` is raised after the sync, so an earlier
//! state may be too low and never too high.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE_BYTES: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"DVCTRL01");

/// A number in its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
struct Word(AtomicU64);

#[repr(C)]
#[derive(Debug)]
struct Page {
    magic: Word,
    version: Word,
    durable: Word,
    in_tree: Word,
    failed: Word,
    full: Word,
    map_bytes: Word,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fullness {
    Room,
    Map,
    Disk,
}

/// The mapped page.
#[derive(Debug)]
pub(super) struct Control {
    page: NonNull<Page>,
}

// SAFETY: the page is a shared mapping that lives as long as the value, and it is only reached
// through atomics.
#[expect(unsafe_code, reason = "the page is shared by processes")]
unsafe impl Send for Control {}
// SAFETY: as for `Send`.
#[expect(unsafe_code, reason = "the page is shared by processes")]
unsafe impl Sync for Control {}

impl Control {
    /// Maps the page in `file`, which is extended if necessary.
    #[expect(unsafe_code, reason = "mapping a file has no safe form")]
    pub(super) fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < PAGE_BYTES as u64 {
            file.set_len(PAGE_BYTES as u64)?;
        }
        // SAFETY: the kernel chooses a free address; the file has a whole page and is never truncated.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        match NonNull::new(address.cast()) {
            Some(page) => Ok(Self { page }),
            None => Err(io::Error::other("the page was mapped at address zero")),
        }
    }

    /// The newest version that readers see.
    pub(super) fn version(&self) -> u64 {
        self.page().version.0.load(Ordering::Acquire)
    }

    pub(super) fn publish(&self, version: u64) {
        self.page().version.0.store(version, Ordering::Release);
    }

    /// The newest version that survives a power cut.
    pub(super) fn durable(&self) -> u64 {
        self.page().durable.0.load(Ordering::Acquire)
    }

    pub(super) fn set_durable(&self, version: u64) {
        self.page().durable.0.fetch_max(version, Ordering::AcqRel);
    }

    /// The version of the tree.
    pub(super) fn in_tree(&self) -> u64 {
        self.page().in_tree.0.load(Ordering::Acquire)
    }

    pub(super) fn set_in_tree(&self, version: u64) {
        self.page().in_tree.0.fetch_max(version, Ordering::AcqRel);
    }

    /// True after a failed sync: the page cache and the disk may differ, so every process must stop, and
    /// the next one starts from the disk.
    pub(super) fn failed(&self) -> bool {
        self.page().failed.0.load(Ordering::Acquire) != 0
    }

    pub(super) fn set_failed(&self) {
        self.page().failed.0.store(1, Ordering::Release);
    }

    pub(super) fn fullness(&self) -> Fullness {
        match self.page().full.0.load(Ordering::Acquire) {
            0 => Fullness::Room,
            1 => Fullness::Map,
            _ => Fullness::Disk,
        }
    }

    pub(super) fn set_fullness(&self, fullness: Fullness) {
        let number = match fullness {
            Fullness::Room => 0,
            Fullness::Map => 1,
            Fullness::Disk => 2,
        };
        self.page().full.0.store(number, Ordering::Release);
    }

    /// The map size of the first process.
    pub(super) fn map_bytes(&self) -> u64 {
        self.page().map_bytes.0.load(Ordering::Acquire)
    }

    /// The durable version that earlier processes left in the page.
    pub(super) fn left_durable(&self) -> u64 {
        if self.page().magic.0.load(Ordering::Acquire) == MAGIC {
            self.durable()
        } else {
            0
        }
    }

    /// Initializes the page, while no other process has the store open.
    pub(super) fn reset(&self, version: u64, in_tree: u64, map_bytes: u64) {
        let page = self.page();
        page.version.0.store(version, Ordering::Release);
        page.durable.0.store(version, Ordering::Release);
        page.in_tree.0.store(in_tree, Ordering::Release);
        page.failed.0.store(0, Ordering::Release);
        page.full.0.store(0, Ordering::Release);
        page.map_bytes.0.store(map_bytes, Ordering::Release);
        page.magic.0.store(MAGIC, Ordering::Release);
    }

    #[expect(unsafe_code, reason = "the mapping is reached through a pointer")]
    fn page(&self) -> &Page {
        // SAFETY: the mapping is as long as the value lives, large enough, aligned to a page, and
        // any bytes are valid atomics.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Control {
    #[expect(unsafe_code, reason = "unmapping a file has no safe form")]
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, and no reference into it outlives the value.
        if let Err(error) = unsafe { munmap(self.page.as_ptr().cast(), PAGE_BYTES) } {
            tracing::warn!(%error, "unmapping the control page failed");
        }
    }
}

const _: () = assert!(size_of::<Page>() <= PAGE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_share_their_numbers() {
        let file = tempfile::tempfile().expect("a file");
        let (a, b) = (
            Control::map(&file).expect("a"),
            Control::map(&file).expect("b"),
        );
        assert_eq!(a.left_durable(), 0);
        a.reset(7, 3, 1 << 20);
        a.set_durable(9);
        b.set_durable(8);
        assert_eq!((b.version(), b.durable(), b.in_tree()), (7, 9, 3));
        assert_eq!(b.left_durable(), 9);
        b.set_fullness(Fullness::Disk);
        assert_eq!(a.fullness(), Fullness::Disk);
        assert!(!a.failed());
    }
}
