//! What runs in the background of a node: it claims, keeps alive, recovers, expires and tells.

pub(crate) mod acceptor;
pub(crate) mod duties;
pub(crate) mod keep_alive;
pub(crate) mod maintenance;
pub(crate) mod monitor;
pub(crate) mod notifier;
pub(crate) mod options;
pub(crate) mod pause;
pub(crate) mod signals;
pub(crate) mod subscription;
pub(crate) mod sweep;
pub(crate) mod type_watcher;
pub(crate) mod worker;
