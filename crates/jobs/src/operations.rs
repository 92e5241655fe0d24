//! Operations on jobs, each as its own transaction or part of the caller's.

pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod counts;
pub(crate) mod create;
pub(crate) mod dead;
pub(crate) mod deleted;
pub(crate) mod division;
pub(crate) mod effects;
pub(crate) mod heartbeats;
pub(crate) mod inbox;
pub(crate) mod info;
pub(crate) mod leases;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod page;
pub(crate) mod quarantine;
pub(crate) mod rewrite;
pub(crate) mod signal;
pub(crate) mod sleepers;
pub(crate) mod tenants;
pub(crate) mod types;
pub(crate) mod work;
