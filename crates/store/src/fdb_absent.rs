//! In place of `fdb` in a build without that feature: `fdb:` stores cannot be opened, so there are no transactions on them.

#![expect(clippy::unused_async, reason = "the signatures are those of `fdb`")]

use std::future::Ready;
use std::sync::Arc;

use bytes::Bytes;

use crate::pending::{Pending, Stamp};
use crate::range::Page;
use crate::{Error, KeyRange, Priority, RangeOptions, Result};

#[derive(Debug)]
pub(crate) enum Fdb {}

#[derive(Debug)]
pub(crate) enum FdbTransaction {}

/// Stops FoundationDB's network thread: there is none in this build.
pub fn shutdown() {}

impl Fdb {
    pub(crate) fn open(_: &str) -> Result<Self> {
        Err(Error::Open {
            message: "this program was built without FoundationDB: build it with the feature `fdb`"
                .to_owned(),
            source: None,
        })
    }

    pub(crate) fn begin(self: &Arc<Self>, _: Priority) -> Result<FdbTransaction> {
        match **self {}
    }
}

impl FdbTransaction {
    pub(crate) async fn read_version(&self) -> Result<u64> {
        match *self {}
    }

    pub(crate) async fn get(&self, _: &[u8], _: bool) -> Result<Option<Bytes>> {
        match *self {}
    }

    pub(crate) async fn page(&self, _: &KeyRange, _: RangeOptions, _: bool) -> Result<Page> {
        match *self {}
    }

    pub(crate) fn write(&self, _: impl FnOnce(&mut Pending) -> Result<()>) {
        match *self {}
    }

    pub(crate) fn write_stamped_key(&self, _: &[u8], _: usize, _: &[u8]) {
        match *self {}
    }

    pub(crate) fn add_read_conflict_range(&self, _: KeyRange) {
        match *self {}
    }

    pub(crate) fn size(&self) -> usize {
        match *self {}
    }

    pub(crate) fn is_read_only(&self) -> bool {
        match *self {}
    }

    pub(crate) async fn watch(&self, _: &[u8]) -> Result<Ready<Result<()>>> {
        match *self {}
    }

    pub(crate) async fn prepare(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) async fn commit(&self) -> Result<Option<Stamp>> {
        match *self {}
    }
}
