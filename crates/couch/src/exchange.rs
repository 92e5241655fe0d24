//! One request and the head of its answer, without any second thoughts.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::time::Instant;

use crate::body::Deadline;
use crate::error::{Failure, chain};
use crate::net::{ConnectError, Profile, Trouble};
use crate::payload::{Body, Progress, State};
use crate::types::millis;

/// A connection that can be kept from being used again.
pub(crate) struct Used(hyper_util::client::legacy::connect::CaptureConnection);

impl Used {
    /// Closes the connection once its answer is read.
    pub(crate) fn close(&self) {
        if let Some(connected) = self.0.connection_metadata().as_ref() {
            connected.poison();
            crate::metrics::connection_closed();
        }
    }
}

/// Sends a request and waits for the head of its answer. Times out when the server, whose turn it
/// is, neither takes nor sends anything for `idle`; while a streamed body waits for its source,
/// nothing runs out here.
pub(crate) async fn exchange(
    profile: &Profile,
    mut request: Request<Body>,
    progress: &Progress,
    idle: Duration,
    deadline: Deadline,
) -> Result<(Response<Incoming>, Used), Trouble> {
    crate::metrics::request();
    let used = Used(capture_connection(&mut request));
    let mut sending = std::pin::pin!(profile.client.request(request));
    let until = |state, since: Instant| match state {
        State::Waiting => Instant::now() + idle,
        State::Sending | State::Sent => since + idle,
    };
    loop {
        let (state, since) = progress.turn();
        let idle_until = until(state, since);
        let wake = deadline.map_or(idle_until, |(at, _)| at.min(idle_until));
        tokio::select! {
            biased;
            done = &mut sending => return done.map(|answer| (answer, used)).map_err(|e| classify(&e)),
            () = tokio::time::sleep_until(wake) => {}
        }
        if let Some((at, total_ms)) = deadline
            && at <= Instant::now()
        {
            return Err(Failure::RequestTimeout { total_ms }.into());
        }
        let (state, since) = progress.turn();
        if until(state, since) > Instant::now() {
            continue;
        }
        let idle_ms = millis(idle);
        return Err(match state {
            State::Sending => Failure::WriteTimeout { idle_ms }.into(),
            State::Waiting | State::Sent => Failure::ReadTimeout { idle_ms }.into(),
        });
    }
}

fn classify(error: &hyper_util::client::legacy::Error) -> Trouble {
    ConnectError::find(error).unwrap_or_else(|| Failure::Connection(chain(error)).into())
}
