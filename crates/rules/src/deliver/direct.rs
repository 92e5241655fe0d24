//! Calls of rules that block, which listeners make themselves, in order.

use std::sync::Arc;

use jobs::Op;
use store::Transaction;

use super::Deliveries;
use super::delivery::{Delivery, Outcome};
use super::metrics;
use super::server::Shared;
use crate::rule::call::Call;
use crate::rule::{Refused, Sender};

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

    async fn send(&self, call: &Call) -> Result<(), Refused> {
        let refused = |reason: String, retry_after| Refused {
            reason,
            retry_after,
        };
        let Some(target) = &call.target else {
            return Err(refused("it has no target".to_owned(), None));
        };
        let sent = self.0.sender.send(target, &Delivery::new(call)).await;
        metrics::called_for(call, sent.outcome);
        let attempt = sent.attempt;
        let reason = || match (attempt.status, &attempt.error) {
            (_, Some(error)) => error.clone(),
            (status, None) => format!("the endpoint answered {}", status.unwrap_or_default()),
        };
        match sent.outcome {
            Outcome::Delivered => Ok(()),
            Outcome::Failed(after) => Err(refused(reason(), after)),
            Outcome::Dead => Err(refused(reason(), None)),
        }
    }
}
