//! Renewals that many requests wait for.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::Error;

/// How long a renewal may take while the old credentials are still valid: requests wait for it.
const EARLY_MAX: Duration = Duration::from_secs(10);
/// Time between a failed renewal and the next while the old credentials are still valid.
pub(super) const EARLY_PAUSE: Duration = Duration::from_secs(30);

/// The last failed renewal.
#[derive(Default)]
pub(super) struct LastFailure(Option<(Instant, Error)>);

impl LastFailure {
    pub(super) fn set(&mut self, error: &Error) {
        self.0 = Some((Instant::now(), error.clone()));
    }

    /// The error of a renewal that failed after `began`. A request that has waited since then gets the same error: if all
    /// tried again in turn, the last of them would wait for hours.
    pub(super) fn since(&self, began: Instant) -> Result<(), Error> {
        match &self.0 {
            Some((at, error)) if began < *at => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// Renews credentials that are still valid; logs a failure and returns false, unless it is final.
pub(super) async fn renewed_early(
    server: &url::Url,
    renewal: impl Future<Output = Result<(), Error>>,
    is_final: impl Fn(&Error) -> bool,
) -> Result<bool, Error> {
    let server = server.origin().ascii_serialization();
    match timeout(EARLY_MAX, renewal).await {
        Ok(Ok(())) => return Ok(true),
        Ok(Err(error)) if is_final(&error) => return Err(error),
        Ok(Err(error)) => {
            tracing::warn!(server, error = %wire::chain(&error), "cannot renew credentials before they expire");
        }
        Err(_) => {
            let error = format!("no response within {} s", EARLY_MAX.as_secs());
            tracing::warn!(server, error, "cannot renew credentials before they expire");
        }
    }
    Ok(false)
}
