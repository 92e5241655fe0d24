//! Rechecks the access of feed listeners: sessions end, users are deleted, `_security` changes.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use crate::Error;
use crate::access;
use crate::call::Call;
use crate::client::Client;
use crate::endpoints::session;
use crate::state::Shared;

/// Rows are not sent on a check older than this.
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// How often listeners that only get heartbeats are rechecked.
const HEARD_WITHIN: Duration = Duration::from_mins(1);

/// The credentials of a feed's caller, and when they were last checked.
pub(super) struct Guard {
    shared: Arc<Shared>,
    client: Client,
    headers: HeaderMap,
    name: Option<String>,
    database: String,
    looked: Instant,
}

impl Guard {
    pub(super) fn of(call: &Call) -> Self {
        Self {
            shared: Arc::clone(&call.shared),
            client: call.client,
            headers: call.headers.clone(),
            name: call.caller().name.clone(),
            database: call.route.database().unwrap_or_default().to_owned(),
            looked: Instant::now(),
        }
    }

    /// Whether the feed may continue; `tells` if it is about to send rows.
    pub(super) async fn lets(&mut self, tells: bool) -> Result<bool, Error> {
        let within = if tells { TOLD_WITHIN } else { HEARD_WITHIN };
        if self.looked.elapsed() < within {
            return Ok(true);
        }
        let may = match self.look().await {
            Ok(may) => may,
            Err(error) if error.status().is_client_error() => false,
            Err(error) => return Err(error),
        };
        self.looked = Instant::now();
        Ok(may)
    }

    async fn look(&self) -> Result<bool, Error> {
        let proven = session::prove(&self.shared, &self.headers, self.client).await?;
        if proven.identity.name != self.name {
            return Ok(false);
        }
        access::administrates(&self.shared, &proven.identity, &self.database).await
    }
}
