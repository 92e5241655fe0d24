//! Where waiting calls go now. Deliveries have no credentials: the rule has them, sealed, or the configuration.

use std::sync::Arc;

use document::json::Json;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::options::{EventOptions, RULE};
use crate::rule::call::{Call, Target};
use crate::rule::{Change, Compiled, Rules, Set, Task};

const DELETED: &str = "its rule was deleted";

/// Finds the targets of calls.
pub trait Targets: Send + Sync + 'static {
    fn target<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Target, NoTarget>>;
}

/// Why a call cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoTarget {
    /// It never can, unless the rule is changed.
    Gone(String),
    /// Not now.
    Waits(String),
}

/// Targets are those of the rules as they are.
pub struct RuleTargets {
    pub rules: Rules,
    /// What [`RuleWatcher`](crate::rule::RuleWatcher) reads.
    pub compiled: watch::Receiver<Arc<Set>>,
    pub events: EventOptions,
}

impl RuleTargets {
    async fn of_rule(&self, call: &Call) -> Result<Target, NoTarget> {
        let known = self
            .compiled
            .borrow()
            .named(&call.rules, &call.rule)
            .cloned();
        if let Some(rule) = known.filter(|rule| is_of(call, rule)) {
            return target(&rule, call);
        }
        // It is disabled, deleted, or so new that this node has not read it yet.
        let found = self.rules.named(&call.rules, &call.rule).await;
        let found = found.map_err(|error| NoTarget::Waits(wire::chain(&error)))?;
        // Other nodes may be able to read it.
        let unread = |error| NoTarget::Waits(format!("cannot read its rule: {error}"));
        match found.transpose().map_err(unread)? {
            None => Err(gone(DELETED)),
            Some(rule) if !is_of(call, &rule) => Err(gone(DELETED)),
            Some(rule) if !rule.rule.enabled => Err(NoTarget::Waits("its rule is paused".into())),
            Some(rule) => target(&rule, call),
        }
    }
}

impl Targets for RuleTargets {
    fn target<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Target, NoTarget>> {
        Box::pin(async move {
            if call.rule == RULE {
                let target = self.events.target();
                return target.ok_or_else(|| gone("`webhooks.events.url` is not configured"));
            }
            self.of_rule(call).await
        })
    }
}

/// Whether a call is one of this rule, rather than of one of its id that was deleted.
fn is_of(call: &Call, rule: &Compiled) -> bool {
    let generation = call.generation.as_ref();
    generation.is_none_or(|generation| *generation == rule.generation())
}

fn gone(why: &str) -> NoTarget {
    NoTarget::Gone(why.to_owned())
}

/// The target of a rule for the change that a call is about.
fn target(rule: &Compiled, call: &Call) -> Result<Target, NoTarget> {
    let captures = rule.rule.databases.captures_by_name(&call.db);
    let (Some(captures), Task::Call(webhook)) = (captures, &rule.rule.task) else {
        return Err(gone("its rule does not ask for it any more"));
    };
    let change = Change {
        source: &call.source,
        db: &call.db,
        captures: &captures,
        doc_id: &call.doc_id,
        rev: &call.rev,
        doc: &Json::Null,
        seq: &Json::String(call.seq.clone()),
    };
    let target = webhook.target(&change);
    target.map_err(|error| NoTarget::Gone(error.to_string()))
}
