//! Matching documents with selectors without blocking the runtime.

use std::sync::{Arc, Mutex, PoisonError};

use crate::mango::{Budget, Selector, TooExpensive};
use crate::offload::blocking;
use tokio::sync::Semaphore;
use tokio::task::coop;

/// Maximum number of concurrent expensive matches per process, so that CPUs are left for other work.
static LONG_MATCHES: Semaphore = Semaphore::const_new(2);

/// A selector with a shared budget for several documents.
#[derive(Debug)]
pub struct Matcher {
    selector: Arc<Selector>,
    left: Mutex<Budget>,
}

impl Matcher {
    /// A matcher for the documents of one request.
    pub fn new(selector: Selector) -> Self {
        Self {
            selector: Arc::new(selector),
            left: Mutex::new(Budget::of_request()),
        }
    }

    /// Resets the budget.
    pub fn renew(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Budget::of_request();
    }

    /// Whether the selector matches a document.
    pub async fn matches(&self, json: String) -> Result<bool, TooExpensive> {
        let mut budget = Budget::of_document();
        let all = budget.left();
        let matched;
        (matched, budget) = decide(&self.selector, json, budget).await;
        let spent = all - budget.left();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.spend(spent)?;
        matched
    }
}

/// Whether a selector matches a document, within the budget of one. A document that is nested too deeply, or that
/// contains half a surrogate pair, matches nothing.
pub async fn matches<T>(selector: &Arc<Selector>, json: T) -> Result<bool, TooExpensive>
where
    T: AsRef<[u8]> + Send + 'static,
{
    decide(selector, json, Budget::of_document()).await.0
}

async fn decide<T>(
    selector: &Arc<Selector>,
    json: T,
    budget: Budget,
) -> (Result<bool, TooExpensive>, Budget)
where
    T: AsRef<[u8]> + Send + 'static,
{
    if !selector.may_take_long(json.as_ref().len()) {
        coop::consume_budget().await;
        return decide_now(selector, json.as_ref(), budget);
    }
    // Keeps the permit until the match has ended, even if the caller goes away.
    let permit = LONG_MATCHES.acquire().await;
    let selector = Arc::clone(selector);
    blocking(move || {
        let _permit = permit;
        decide_now(&selector, json.as_ref(), budget)
    })
    .await
}

fn decide_now(
    selector: &Selector,
    json: &[u8],
    mut budget: Budget,
) -> (Result<bool, TooExpensive>, Budget) {
    let matched = match serde_json::from_slice(json) {
        Ok(document) => selector.matches(&document, &mut budget),
        Err(_) => Ok(false),
    };
    (matched, budget)
}
