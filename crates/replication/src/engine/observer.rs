//! Events of a run for the layer that started it, beyond its progress.

use std::fmt;

/// Notified of every checkpoint. The scheduler's simulation keeps a journal with it, and plants mistakes.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A checkpoint was written to both endpoints. Progress alone is not enough: watchers may miss one of two.
    fn checkpoint_written(&self, replication: &str, session: &str);

    /// A mistake for the run to make, to show that tests detect it.
    fn planted(&self) -> Option<Mistake>;
}

/// A mistake that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A finished batch counts even if an earlier one is not finished.
    PassesUnfinished,
    /// A revision that did not come in bulk is forgotten.
    ForgetsRevisions,
}
