//! Documents of databases of kind `_rules`: what they may hold, what they match, and what they ask for.

pub mod call;
mod condition;
mod databases;
mod document;
mod fields;
mod javascript;
mod listen;
mod pattern;
mod remote;
mod remotes;
mod replicator;
mod secrets;
pub(crate) mod set;
mod store;
mod template;
mod trial;
mod webhook;

pub use databases::{Databases, Event};
pub use document::{Rule, Task};
pub use fields::Invalid;
pub use listen::{Answer, JOB_TYPE, Listeners, Listening, Only, Progress, Rewind, Seen, Sender};
pub use pattern::{BadPattern, Captures, Pattern};
pub use remote::{Names as DatabaseNames, Remote};
pub use remotes::Watched;
pub use replicator::{Replicate, SPIEGELS_STATE};
pub use set::{Compiled, RuleId, Set};
pub use store::{KINDS, RuleHook, RuleWatcher, Rules};
pub use template::{Change, Unsendable};
pub use trial::trial;
pub use webhook::{Pace, Since, Webhook};

#[cfg(test)]
mod spiegel;
#[cfg(test)]
mod tests;
