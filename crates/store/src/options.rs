//! How a store is opened.

/// Options of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// `Sync` by default.
    pub durability: Durability,
    /// The largest size of the store, which reserves address space and not disk or memory. 64 GiB by
    /// default, and the same in all processes that share a store.
    pub map_size_bytes: u64,
    /// The formats of rows that this build reads; the newest is the one it would write. Only tests
    /// change them, to stand for another build.
    pub formats: Formats,
}

/// A range of formats of the rows in a store, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl Default for Formats {
    /// Those of this build. 1 was the format before jobs were spread over buckets.
    fn default() -> Self {
        Self {
            oldest: 2,
            newest: 2,
        }
    }
}

/// What an acknowledged commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A power cut.
    Sync,
    /// Any crash of processes. A power cut loses the newest transactions of the last fraction of a
    /// second, each as a whole.
    Relaxed,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            map_size_bytes: 64 << 30,
            formats: Formats::default(),
        }
    }
}
