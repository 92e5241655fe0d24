//! Background services of a node: claims, heartbeats, recovery, expiry and notifications.

pub(crate) mod acceptor;
pub(crate) mod duties;
pub(crate) mod interrupts;
pub(crate) mod keep_alive;
pub(crate) mod limits;
pub(crate) mod maintenance;
pub(crate) mod monitor;
pub(crate) mod notifier;
pub(crate) mod options;
pub(crate) mod pause;
pub(crate) mod subscription;
pub(crate) mod sweep;
pub(crate) mod type_watcher;
pub(crate) mod worker;
