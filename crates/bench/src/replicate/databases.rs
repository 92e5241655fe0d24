//! Databases of a measurement.

use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::client::Client;

/// A server that does not create or delete a database in this time is not waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Somebody asked the program to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; the databases of the measurement are deleted")]
pub(crate) struct Interrupted;

/// Databases that are there while something is measured, and gone afterwards, however that ended.
pub(crate) struct Databases<'a> {
    client: &'a Client,
    names: &'a [&'a str],
}

impl<'a> Databases<'a> {
    pub(crate) fn new(client: &'a Client, names: &'a [&'a str]) -> Self {
        Self { client, names }
    }

    /// Measures with these databases, until it is done, takes too long, or is interrupted.
    pub(crate) async fn during(
        &self,
        limit: Duration,
        measure: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let listen = |kind| signal(kind).context("listen for signals");
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let created = self.create().await;
        let measured = async {
            created?;
            measure.await
        };
        // What is still going on then ends here: requests are dropped, processes killed.
        let measured = tokio::select! {
            measured = timeout(limit, measured) => measured.unwrap_or_else(|_| {
                Err(anyhow!("not done after {} s; --limit sets another limit", limit.as_secs()))
            }),
            _ = interrupt.recv() => Err(Interrupted.into()),
            _ = terminate.recv() => Err(Interrupted.into()),
        };
        for name in self.names {
            // What is left behind does no harm; what went wrong before is the news.
            let _ = timeout(REQUEST_TIMEOUT, self.client.delete(name)).await;
        }
        measured
    }

    /// Not given up halfway, so that no request to create is overtaken by one to delete.
    async fn create(&self) -> anyhow::Result<()> {
        for name in self.names {
            timeout(REQUEST_TIMEOUT, self.client.create(name))
                .await
                .context("the server does not create a database")??;
        }
        Ok(())
    }
}
