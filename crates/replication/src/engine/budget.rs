//! Memory for batches, over all runs of a node.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the budget.
pub(super) const UNIT_BYTES: usize = 64 * 1024;

/// A number of bytes shared by all runs of a node. A cheap handle. A batch waits only for its first unit, in turn with
/// all other runs. Further units are taken if available; otherwise the batch is closed, and the group of documents that
/// is being read for it is written, unless it is still small. Batches in progress never wait for memory, so there is no
/// deadlock; small groups, and documents larger than the rest of the budget, exceed it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Semaphore>);

impl Budget {
    /// A budget of this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(
            (bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS),
        )))
    }

    /// Waits for the first unit of a batch.
    pub(super) async fn share(&self) -> Share {
        let permit = Arc::clone(&self.0)
            .acquire_owned()
            .await
            .expect("the budget is never closed");
        Share {
            budget: self.clone(),
            permit,
            used: 0,
        }
    }

    /// Memory for documents of a batch in progress, as far as there is any.
    pub(super) fn more(&self) -> Share {
        let none = Arc::clone(&self.0).try_acquire_many_owned(0);
        Share {
            budget: self.clone(),
            permit: none.expect("zero permits are always available"),
            used: 0,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

/// The memory of one batch, released on drop.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    permit: OwnedSemaphorePermit,
    used: usize,
}

impl Share {
    /// Adds bytes. Returns whether memory was available.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        self.used += bytes;
        let missing = (self.used / UNIT_BYTES + 1).saturating_sub(self.permit.num_permits());
        if missing == 0 {
            return true;
        }
        let units = u32::try_from(missing).unwrap_or(u32::MAX);
        match Arc::clone(&self.budget.0).try_acquire_many_owned(units) {
            Ok(more) => {
                self.permit.merge(more);
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn grows_until_there_is_no_more() {
        let budget = Budget::new(4 * UNIT_BYTES);
        let mut first = budget.share().now_or_never().unwrap();
        assert!(first.grow(UNIT_BYTES - 1) && first.grow(UNIT_BYTES));
        let second = budget.share().now_or_never().unwrap();
        assert!(first.grow(UNIT_BYTES));
        assert!(
            !first.grow(UNIT_BYTES),
            "what is left belongs to another batch"
        );
        assert!(budget.share().now_or_never().is_none());
        drop(second);
        assert!(first.grow(0));
        let mut group = budget.more();
        assert!(!group.grow(1), "it does not wait");
        drop(first);
        assert!(group.grow(UNIT_BYTES));
        drop(group);
        assert_eq!(budget.0.available_permits(), 4);
    }
}
