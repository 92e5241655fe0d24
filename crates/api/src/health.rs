//! Store health: reads work, and so do commits. A full disk or a cluster without a quorum may still serve reads, so the
//! check writes. There is at most one write at a time, and none while the last result is fresh.

use std::time::Duration;

use store::Store;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Error;

/// Time limit of a commit.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// How long a success is cached, and a failure.
const WELL: Duration = Duration::from_secs(10);
const UNWELL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Health {
    store: Store,
    /// The last result, and when to check again. Locked during a check, so concurrent callers share its result.
    last: Mutex<(bool, Instant)>,
}

impl Health {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            last: Mutex::new((true, Instant::now())),
        }
    }

    /// Fails if the store did not accept a recent write.
    pub async fn check(&self) -> Result<(), Error> {
        let mut last = self.last.lock().await;
        let (was_well, next) = *last;
        if next > Instant::now() {
            return verdict(was_well);
        }
        // A caller that disconnects must not cause more checks.
        last.1 = Instant::now() + UNWELL;
        let probed = self.store.probe(TIME_LIMIT).await;
        if let Err(error) = &probed {
            tracing::warn!(error = %wire::chain(error), "the store does not accept writes");
        }
        let hold = if probed.is_ok() { WELL } else { UNWELL };
        *last = (probed.is_ok(), Instant::now() + hold);
        verdict(probed.is_ok())
    }
}

fn verdict(is_well: bool) -> Result<(), Error> {
    if is_well {
        return Ok(());
    }
    Err(Error::busy(
        "The store does not accept writes; see the log of this service.",
    ))
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use store::{Faults, Store};
    use tokio::time::advance;

    use super::{Health, UNWELL, WELL};

    #[tokio::test(start_paused = true)]
    async fn a_store_that_only_answers_reads_is_unwell() {
        let store = Store::open("memory:").await.unwrap();
        let faults = Faults {
            unknown_lost: 1.0,
            ..Faults::default()
        };
        let (faulty, _) = store.with_faults(faults);
        assert!(Health::new(store).check().await.is_ok());
        let health = Health::new(faulty);
        let status = health.check().await.unwrap_err().status();
        assert_eq!(status.as_u16(), 503);
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_cost_one_write() {
        let store = Store::open("memory:").await.unwrap();
        let (store, control) = store.with_faults(Faults::default());
        let health = Health::new(store.clone());
        let writes = || store.stats().get("probe").map_or(0, |probe| probe.calls);
        let asked = join_all((0..1000).map(|_| health.check())).await;
        assert!(asked.iter().all(Result::is_ok));
        assert_eq!(writes(), 1);
        control.set_outage(true);
        assert!(health.check().await.is_ok(), "it was well just now");
        advance(WELL).await;
        assert!(health.check().await.is_err());
        control.set_outage(false);
        assert!(health.check().await.is_err(), "it was unwell just now");
        advance(UNWELL).await;
        assert!(health.check().await.is_ok());
        assert_eq!(writes(), 3);
    }
}
