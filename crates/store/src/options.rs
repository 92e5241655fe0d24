//! How a store is opened.

/// Options of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// `Sync` by default.
    pub durability: Durability,
    /// The largest size of the store, which reserves address space and not disk or memory. 64 GiB by
    /// default, and the same in all processes that share a store.
    pub map_size_bytes: u64,
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
        }
    }
}
