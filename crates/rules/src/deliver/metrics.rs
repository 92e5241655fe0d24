//! Counters of calls.

use metrics::{counter, gauge, histogram};

use crate::rule::call::{Attempt, Call, Outcome};

/// A call was made.
pub(super) fn called(outcome: Outcome, attempt: &Attempt) {
    let seconds = std::time::Duration::from_millis(attempt.took_ms).as_secs_f64();
    histogram!("davenport_webhook_seconds").record(seconds);
    ended(outcome.name());
}

/// An endpoint was called for a rule, in a delivery or by a listener.
pub(super) fn called_for(call: &Call, outcome: Outcome) {
    let rule = match &*call.rules {
        // The configuration asks for it.
        "" => call.rule.clone(),
        rules => format!("{rules}/{}", call.rule),
    };
    counter!("davenport_webhook_calls_total", "rule" => rule, "outcome" => outcome.name())
        .increment(1);
}

/// A delivery was made after this many attempts.
pub(super) fn delivered(attempts: u32) {
    histogram!("davenport_webhook_attempts").record(f64::from(attempts));
}

/// A job went back to the queue without a call.
pub(super) fn postponed() {
    ended("postponed");
}

fn ended(outcome: &'static str) {
    counter!("davenport_webhook_deliveries_total", "outcome" => outcome).increment(1);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "there are fewer than 2^52 calls"
)]
pub(super) fn in_flight(calls: usize) {
    gauge!("davenport_webhook_in_flight").set(calls as f64);
}
