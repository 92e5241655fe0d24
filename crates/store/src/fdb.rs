//! `FoundationDB`: a cluster, reached through its own client library, which is opened at run time.
//!
//! The cluster serves reads at one version and judges conflicts; what a transaction has written so
//! far stays here, in the [`Pending`](crate::pending::Pending) that the other backends use, until its
//! commit hands everything over. So limits, read-your-writes and conflict ranges are the same on
//! every backend, byte for byte, and the client's own read-your-writes cache has nothing to do.
//!
//! Every key lies under a prefix, the tuple-packed name of the store, so that a cluster can hold
//! several stores beside whatever else it holds.

mod client;
mod cluster_file;
mod commit;
mod error;
mod prefix;
mod transaction;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foundationdb::options::{DatabaseOption, TransactionOption};
use foundationdb::{Database, FdbError};

use crate::{Error, Priority, Result};
use prefix::Prefix;

pub use client::shutdown;
pub(crate) use transaction::FdbTransaction;

/// How long a read waits for the cluster. Its snapshot is gone by then in any case, but a new
/// transaction finds the servers that took over.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for background work, which a busy cluster lets wait on purpose.
const READ_TIMEOUT_BATCH: Duration = Duration::from_secs(20);
/// The most the client takes. Each store handle counts its own, and there may be many handles.
const CLIENT_WATCHES_MAX: i32 = 1_000_000;

/// One cluster.
pub(crate) struct Fdb {
    database: Database,
    prefix: Prefix,
    cluster_file: String,
}

impl Fdb {
    /// Opens the cluster of `location`, which is `[CLUSTER_FILE][?prefix=NAME]`. Nothing is asked of
    /// the cluster yet.
    pub(crate) fn open(location: &str) -> Result<Self> {
        let (path, options) = location.split_once('?').unwrap_or((location, ""));
        let cluster_file = match path {
            "" => foundationdb::default_config_path(),
            path => path,
        };
        let prefix = Prefix::from_options(options)?;
        cluster_file::check(cluster_file)?;
        client::start()?;
        let database = Database::from_path(cluster_file)
            .and_then(|database| {
                database.set_option(DatabaseOption::MaxWatches(CLIENT_WATCHES_MAX))?;
                Ok(database)
            })
            .map_err(|error| error::opening(error, cluster_file))?;
        Ok(Self {
            database,
            prefix,
            cluster_file: cluster_file.to_owned(),
        })
    }

    pub(crate) fn begin(self: &Arc<Self>, priority: Priority) -> Result<FdbTransaction> {
        let begin = || {
            let transaction = self.database.create_trx()?;
            if priority == Priority::Batch {
                transaction.set_option(TransactionOption::PriorityBatch)?;
            }
            Ok(transaction)
        };
        let read_timeout = match priority {
            Priority::Default => READ_TIMEOUT,
            Priority::Batch => READ_TIMEOUT_BATCH,
        };
        match begin() {
            Ok(transaction) => Ok(FdbTransaction::new(
                Arc::clone(self),
                transaction,
                read_timeout,
            )),
            Err(error) => Err(self.reading(error)),
        }
    }

    /// What an error of anything but a commit means.
    fn reading(&self, error: FdbError) -> Error {
        error::reading(error, &self.cluster_file)
    }

    /// What an error of a commit means, which may have been done all the same.
    fn committing(&self, error: FdbError, size: usize) -> Error {
        error::committing(error, &self.cluster_file, size)
    }

    fn silent(&self) -> Error {
        error::silent(&self.cluster_file)
    }
}

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fdb")
            .field("cluster_file", &self.cluster_file)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
