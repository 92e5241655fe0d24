//! Databases of a measurement.

use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::client::Client;

/// Time limit for creating or deleting a database.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The program was interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; deleting the databases of the measurement")]
pub(crate) struct Interrupted;

/// Databases that exist during a measurement and are deleted afterwards, however it ended.
pub(crate) struct Databases<'a> {
    client: &'a Client,
    names: &'a [&'a str],
}

impl<'a> Databases<'a> {
    pub(crate) fn new(client: &'a Client, names: &'a [&'a str]) -> Self {
        Self { client, names }
    }

    /// Measures with these databases, until done, timed out or interrupted.
    pub(crate) async fn during(
        &self,
        limit: Duration,
        measure: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let created = self.create().await;
        let measured = async {
            created?;
            measure.await
        };
        // Work still in progress ends here: requests are dropped, processes killed.
        let measured = tokio::select! {
            measured = timeout(limit, measured) => measured.unwrap_or_else(|_| {
                Err(anyhow!("timed out after {} s; raise --limit", limit.as_secs()))
            }),
            _ = interrupt.recv() => Err(Interrupted.into()),
            _ = terminate.recv() => Err(Interrupted.into()),
        };
        for name in self.names {
            // Leftovers are harmless; report the earlier error.
            let _ = timeout(REQUEST_TIMEOUT, self.client.delete(name)).await;
        }
        measured
    }

    /// Not cancelled halfway, so that a request to create is not overtaken by one to delete.
    async fn create(&self) -> anyhow::Result<()> {
        for name in self.names {
            timeout(REQUEST_TIMEOUT, self.client.create(name))
                .await
                .context("the server did not create a database in time")??;
        }
        Ok(())
    }
}
