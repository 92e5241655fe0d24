//! What a run tells the layer that started it, beyond its progress.

use std::fmt;

/// Hears of every checkpoint. The scheduler's simulation keeps a journal with it, and plants mistakes.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A checkpoint was written to both endpoints. Progress alone would not do: its watchers may miss one of two.
    fn checkpoint_written(&self, replication: &str, session: &str);

    /// A mistake for the run to make, so that a test can show that it would be noticed.
    fn planted(&self) -> Option<Mistake>;
}

/// A known mistake of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A batch that is done counts although one before it is not.
    PassesUnfinished,
    /// A revision that did not come with others is forgotten.
    ForgetsRevisions,
}
