//! The one index row of a job.

use bytes::Bytes;

use crate::model::header::{Header, Order, Place};
use crate::{Class, Lane};

/// The index row of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Position {
    Ready(Class, Option<Lane>, Order),
    Timed(Class, Option<Lane>, i64),
    /// Behind the limit of this name.
    Waiting(Bytes, Class, Order),
    /// Among those of this tenant.
    Shared(Class, Bytes, Order),
    Active,
    Finished(i64),
    Dead(i64),
}

impl Position {
    pub(crate) fn of(header: &Header) -> Self {
        match (header.place, header.sharer()) {
            (Place::Ready(order), Some(tenant)) => Self::Shared(header.class(), tenant, order),
            (Place::Ready(order), None) => Self::Ready(header.class(), header.lane, order),
            (Place::Timed, tenant) => {
                // So that many due jobs of one tenant do not hide those of another.
                let lane = tenant.map(|tenant| Lane::of(&tenant));
                Self::Timed(header.class(), header.lane.or(lane), header.due_ms)
            }
            (Place::Waiting(which, order), _) => {
                let limit = header.limit(which).cloned().unwrap_or_default();
                Self::Waiting(limit, header.class(), order)
            }
            (Place::Active, _) => Self::Active,
            (Place::Finished { expires_ms, .. }, _) => Self::Finished(expires_ms),
            (Place::Dead { at_ms }, _) => Self::Dead(at_ms),
        }
    }
}
