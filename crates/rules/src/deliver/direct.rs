//! Calls of rules that block, which listeners make themselves, in order.

use std::sync::Arc;
use std::time::Duration;

use jobs::Op;
use store::Transaction;
use tokio::time::timeout;

use super::Deliveries;
use super::delivery::Delivery;
use super::hosts::Admission;
use super::metrics;
use super::sender::endpoint;
use super::server::Shared;
use crate::rule::call::{Attempt, Call, Outcome};
use crate::rule::{Answer, Sender};

/// How long a listener may wait before its call begins. A node has few listeners, and other rules need them.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// When it tries again if the node itself has too much to do.
const RETURN: Duration = Duration::from_secs(2);

/// Enqueues calls, or makes them at once. Cheap to clone.
#[derive(Clone)]
pub struct Calls(pub(super) Arc<Shared>);

impl Calls {
    fn deliveries(&self) -> &Deliveries {
        &self.0.deliveries
    }
}

impl Sender for Calls {
    async fn enqueue_in(&self, tx: &Transaction, op: &Op, calls: &[Call]) -> jobs::Result<()> {
        self.deliveries().enqueue_many_in(tx, op, calls).await
    }

    async fn send(&self, call: &Call, failures: u32) -> Answer {
        let shared = &self.0;
        let Some(target) = &call.target else {
            return unsendable(shared.sender.clock.now_ms());
        };
        let admission = timeout(WAIT_MAX, shared.hosts.admit(&endpoint(&target.url))).await;
        let admission = admission.unwrap_or_else(|_| {
            let wait = RETURN + self.deliveries().jobs().entropy().up_to(RETURN);
            Admission::Later(wait, "this node has too many calls in progress".to_owned())
        });
        let seat = match admission {
            Admission::Seat(seat) => seat,
            Admission::Later(wait, why) => {
                metrics::postponed();
                return Answer::Later(wait, why);
            }
        };
        let sent = shared.make(seat, target, &Delivery::new(call)).await;
        let counted = match sent.outcome {
            // The delivery that it becomes is the dead letter.
            Outcome::Dead => Outcome::Failed(None),
            outcome => outcome,
        };
        metrics::called(counted, &sent.attempt);
        metrics::called_for(call, counted);
        if sent.outcome == Outcome::Delivered {
            metrics::delivered(failures.saturating_add(1));
        }
        Answer::Made(sent.outcome, sent.attempt)
    }
}

fn unsendable(now_ms: i64) -> Answer {
    let attempt = Attempt {
        at_ms: now_ms,
        took_ms: 0,
        status: None,
        error: Some("it has no target".to_owned()),
        body: String::new(),
    };
    Answer::Made(Outcome::Dead, attempt)
}
