//! Calls about replications: an endpoint of the configuration is called when they fail, lag and recover.

use futures::future::BoxFuture;
use jobs::Op;
use scheduler::{Event, Events};
use serde_json::json;
use store::Transaction;

use super::Deliveries;
use super::options::{EventOptions, RULE};
use crate::rule::call::{Call, Retry, Target};

/// Enqueues a call for each event.
#[derive(Clone, Debug)]
pub struct EventCalls {
    deliveries: Deliveries,
    options: EventOptions,
    target: Target,
}

impl EventCalls {
    /// `None` if no URL is configured.
    pub fn new(deliveries: Deliveries, options: &EventOptions) -> Option<Self> {
        Some(Self {
            deliveries,
            target: options.target()?,
            options: options.clone(),
        })
    }

    /// In the form that Standard Webhooks recommends.
    fn call(&self, op: &Op, event: Event) -> Call {
        let timestamp = jiff::Timestamp::from_millisecond(op.now_ms).unwrap_or_default();
        let (db, doc_id) = event.document.unzip();
        let body = json!({
            "type": event.kind.as_str(),
            "timestamp": timestamp.to_string(),
            "data": {
                "state": event.state.as_str(),
                "job": event.job,
                "id": event.replication,
                "database": db,
                "doc_id": doc_id,
                "source": event.source,
                "target": event.target,
                "reason": event.reason,
            },
        });
        Call {
            rule: RULE.to_owned(),
            rules: String::new(),
            method: "POST".to_owned(),
            url: self.target.shown(),
            query: None,
            body: Some(body.to_string()),
            source: String::new(),
            db: db.unwrap_or_default(),
            doc_id: doc_id.unwrap_or_default(),
            rev: String::new(),
            // The same when the transaction is repeated.
            seq: format!("{:032x}", op.bits),
            retry: Retry::default(),
            timeout_sec: None,
            debounce: false,
            hops: 0,
            left_out: 0,
            generation: None,
            target: Some(self.target.clone()),
        }
    }
}

impl Events for EventCalls {
    fn on_event_in<'a>(
        &'a self,
        tx: &'a Transaction,
        op: &'a Op,
        event: Event,
    ) -> BoxFuture<'a, jobs::Result<()>> {
        Box::pin(async move {
            let wanted = self.options.events.iter();
            if !wanted
                .into_iter()
                .any(|wanted| wanted == event.kind.as_str())
            {
                return Ok(());
            }
            let call = self.call(op, event);
            self.deliveries.enqueue_in(tx, op, &call).await
        })
    }
}
