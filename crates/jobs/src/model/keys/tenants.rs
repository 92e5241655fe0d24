//! Keys of tenants that share a type: their order, their ready jobs, and what they have used.

use bytes::Bytes;
use store::KeyRange;
use store::tuple::{Bytes as TupleBytes, unpack};

use super::pending::{class_of, rank};
use super::{Keys, Position, Table, foreign};
use crate::model::header::Order;
use crate::{Class, Error, JobId, JobType, Result};

/// The first number of a key of PENDING: ready jobs of tenants.
const SHARED: i64 = 7;

/// A tenant in one class.
pub(crate) type InClass = (Class, Bytes);

impl Keys {
    /// The row of a ready job of a tenant.
    pub(super) fn shared(
        &self,
        ty: &JobType,
        id: &JobId,
        (class, tenant): (Class, &Bytes),
        order: Order,
    ) -> Vec<u8> {
        let (shard, incarnation, version) = (id.shard(), order.incarnation, order.version);
        let (ty, tenant, id) = (ty.as_str(), &**tenant, id.as_bytes());
        let job = (shard, incarnation, version, id);
        let key = (ty, SHARED, rank(class), tenant, job.0, job.1, job.2, job.3);
        self.pack(Table::Pending, &key)
    }

    /// The position and id in the part of a key after the type.
    pub(super) fn shared_of(rest: &[u8]) -> Option<(Position, TupleBytes<'_>)> {
        type Name<'a> = TupleBytes<'a>;
        type Rest<'a> = (i64, i64, Name<'a>, u16, u32, u64, Name<'a>);
        let (SHARED, class, tenant, _, incarnation, version, id) = unpack::<Rest<'_>>(rest).ok()?
        else {
            return None;
        };
        let order = Order {
            incarnation,
            version,
        };
        let tenant = tenant.into_owned().into();
        Some((Position::Shared(class_of(class)?, tenant, order), id))
    }

    /// The ready jobs of all tenants.
    pub(crate) fn all_shared(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Pending, &(ty.as_str(), SHARED))
    }

    /// The ready jobs of a tenant.
    pub(crate) fn shared_by(&self, ty: &JobType, (class, tenant): &InClass) -> KeyRange {
        let key = (ty.as_str(), SHARED, rank(*class), &**tenant);
        self.range(Table::Pending, &key)
    }

    /// The ready jobs of a tenant from a shard on, and those before it.
    pub(crate) fn shared_around(
        &self,
        ty: &JobType,
        tenant: &InClass,
        shard: u16,
    ) -> (KeyRange, KeyRange) {
        let all = self.shared_by(ty, tenant);
        let key = (ty.as_str(), SHARED, rank(tenant.0), &*tenant.1, shard);
        let middle = Bytes::from(self.pack(Table::Pending, &key));
        (
            KeyRange::new(middle.clone(), all.end),
            KeyRange::new(all.begin, middle),
        )
    }

    /// The turn of a tenant.
    pub(crate) fn turn(&self, ty: &JobType, (class, tenant): &InClass, vtime: i64) -> Vec<u8> {
        let key = (ty.as_str(), rank(*class), vtime, &**tenant);
        self.pack(Table::Order, &key)
    }

    /// The turns of all tenants in all classes, or in one.
    pub(crate) fn turns(&self, ty: &JobType, class: Option<Class>) -> KeyRange {
        match class {
            Some(class) => self.range(Table::Order, &(ty.as_str(), rank(class))),
            None => self.range(Table::Order, &(ty.as_str(),)),
        }
    }

    /// The turns of classes before this one, and those from a key in this one on.
    pub(crate) fn turns_from(&self, ty: &JobType, class: Class, key: &Bytes) -> [KeyRange; 2] {
        let all = self.turns(ty, None);
        [
            KeyRange::new(all.begin, self.turns(ty, Some(class)).begin),
            KeyRange::new(key.clone(), all.end),
        ]
    }

    /// The tenant and the virtual time in the key of a turn.
    pub(crate) fn turn_of(all: &KeyRange, key: &[u8]) -> Result<(InClass, i64)> {
        let rest = key.get(all.begin.len()..).unwrap_or_default();
        let parsed = unpack::<(i64, i64, TupleBytes<'_>)>(rest).ok();
        let parsed = parsed.and_then(|(class, vtime, tenant)| {
            Some(((class_of(class)?, tenant.into_owned().into()), vtime))
        });
        parsed.ok_or_else(|| foreign(key))
    }

    /// There while a tenant has a turn.
    pub(crate) fn there(&self, ty: &JobType, (class, tenant): &InClass) -> Vec<u8> {
        self.pack(Table::There, &(ty.as_str(), rank(*class), &**tenant))
    }

    pub(crate) fn all_there(&self, ty: &JobType) -> KeyRange {
        self.range(Table::There, &(ty.as_str(),))
    }

    /// The tenant of a row that says that it has a turn.
    pub(crate) fn there_of(all: &KeyRange, key: &[u8]) -> Result<InClass> {
        let rest = key.get(all.begin.len()..).unwrap_or_default();
        let parsed = unpack::<(i64, TupleBytes<'_>)>(rest).ok();
        let parsed =
            parsed.and_then(|(class, name)| Some((class_of(class)?, name.into_owned().into())));
        parsed.ok_or_else(|| foreign(key))
    }

    /// The virtual time of a tenant.
    pub(crate) fn vtime(&self, ty: &JobType, tenant: &[u8]) -> Vec<u8> {
        self.pack(Table::Tenant, &(ty.as_str(), tenant))
    }

    /// The virtual time at which tenants return while none has a turn. It is the first row of [`vtimes`](Self::vtimes).
    pub(crate) fn last_vtime(&self, ty: &JobType) -> Vec<u8> {
        self.pack(Table::Tenant, &(ty.as_str(),))
    }

    pub(crate) fn vtimes(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Tenant, &(ty.as_str(),))
    }

    pub(crate) fn shares(&self, ty: &JobType, tenant: &[u8]) -> Vec<u8> {
        self.pack(Table::Shares, &(ty.as_str(), tenant))
    }

    pub(crate) fn all_shares(&self, ty: &JobType) -> KeyRange {
        self.range(Table::Shares, &(ty.as_str(),))
    }

    /// The tenant in a key of TENANT or SHARES; `None` for the row of the type.
    pub(crate) fn tenant_of(all: &KeyRange, key: &[u8]) -> Result<Option<Bytes>> {
        let rest = key.get(all.begin.len()..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let (name,) = unpack::<(TupleBytes<'_>,)>(rest).map_err(|_| foreign(key))?;
        Ok(Some(name.into_owned().into()))
    }
}

/// The value of a TENANT row: written as COUNT rows are, so that it can be added to.
pub(crate) fn vtime_in(value: Option<&Bytes>) -> Result<i64> {
    let Some(value) = value else {
        return Ok(0);
    };
    ((**value).try_into().map(i64::from_le_bytes))
        .map_err(|_| Error::corrupt("the virtual time of a tenant cannot be decoded"))
}
