//! Actions on rules.

/// What is done to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// Run its replications, or look at its databases, now.
    Trigger,
    Pause,
    Resume,
    /// Go on from another place.
    Rewind,
    /// How far it is in each database.
    Databases,
}

impl RuleAction {
    /// The action that the last part of a path names; `None` if the database is not one of rules.
    pub(super) fn of(db: &str, name: &str) -> Option<Self> {
        if !(matches!(db, "_rules" | "spiegel") || db.ends_with("/_rules")) {
            return None;
        }
        Some(match name {
            "_trigger" => Self::Trigger,
            "_pause" => Self::Pause,
            "_resume" => Self::Resume,
            "_rewind" => Self::Rewind,
            "_databases" => Self::Databases,
            _ => return None,
        })
    }
}
