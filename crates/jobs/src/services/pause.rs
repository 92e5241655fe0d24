//! Pauses of loops after errors: longer each time, and never in step with other nodes.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::Entropy;
use crate::testing::planted::{Bug, Planted};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// The pauses of one loop.
#[derive(Debug)]
pub(crate) struct Pause {
    entropy: Entropy,
    planted: Planted,
    errors: u32,
}

impl Pause {
    pub(crate) fn new(entropy: &Entropy, planted: Planted) -> Self {
        Self {
            entropy: entropy.clone(),
            planted,
            errors: 0,
        }
    }

    /// Called after a success.
    pub(crate) fn reset(&mut self) {
        self.errors = 0;
    }

    /// The pause after one more error: between half and all of a doubling time.
    pub(crate) fn after_error(&mut self) -> Duration {
        if self.planted.is(Bug::BusyLoop) {
            return Duration::from_millis(1);
        }
        let longest = FIRST.saturating_mul(1 << self.errors.min(16)).min(LONGEST);
        self.errors += 1;
        longest / 2 + self.entropy.up_to(longest / 2)
    }

    /// Pauses after one more error; false when the service is stopped.
    pub(crate) async fn wait(&mut self, token: &CancellationToken) -> bool {
        sleep(self.after_error(), token).await
    }
}

/// Sleeps; false when the service is stopped.
pub(crate) async fn sleep(duration: Duration, token: &CancellationToken) -> bool {
    tokio::select! {
        biased;
        () = token.cancelled() => false,
        () = tokio::time::sleep(duration) => true,
    }
}
