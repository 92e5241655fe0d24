//! Sends one request, without retries.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::body::Deadline;
use crate::error::Failure;
use crate::net::{ConnectError, Profile, Trouble};
use crate::payload::{Body, Progress, State};
use crate::types::millis;

/// The most interim responses (1xx) to one request. No server has reason for more.
const INTERIM_MAX: u32 = 64;

/// The connection of a response.
pub(crate) struct Used(hyper_util::client::legacy::connect::CaptureConnection);

impl Used {
    /// Closes the connection once its response is read.
    pub(crate) fn close(&self) {
        if let Some(connected) = self.0.connection_metadata().as_ref() {
            connected.poison();
            crate::metrics::connection_closed();
        }
    }
}

/// Sends a request and waits for the head of its response. Times out when the server, whose turn it
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
    let too_many = limit_interim(&mut request);
    let mut sending = std::pin::pin!(profile.client.request(request));
    let until = |state, since: Instant| match state {
        State::Waiting => Instant::now() + idle,
        State::Sending | State::Sent => since + idle,
    };
    loop {
        let (state, since) = progress.state();
        let idle_until = until(state, since);
        let wake = deadline.map_or(idle_until, |(at, _)| at.min(idle_until));
        tokio::select! {
            biased;
            done = &mut sending => return done.map(|answer| (answer, used)).map_err(|e| classify(&e)),
            () = too_many.cancelled() => {
                let what = "too many interim responses";
                return Err(Failure::BadAnswer(what.to_owned()).into());
            }
            () = tokio::time::sleep_until(wake) => {}
        }
        if let Some((at, total_ms)) = deadline
            && at <= Instant::now()
        {
            return Err(Failure::RequestTimeout { total_ms }.into());
        }
        let (state, since) = progress.state();
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

/// Cancelled when the server gives interim responses and no final one. HTTP/2 has no such hook: there
/// only time runs out.
pub(crate) fn limit_interim(request: &mut Request<Body>) -> CancellationToken {
    let (count, too_many) = (AtomicU32::new(0), CancellationToken::new());
    let stop = too_many.clone();
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= INTERIM_MAX {
            stop.cancel();
        }
    });
    too_many
}

pub(crate) fn classify(error: &hyper_util::client::legacy::Error) -> Trouble {
    ConnectError::find(error).unwrap_or_else(|| Failure::Connection(wire::chain(error)).into())
}
