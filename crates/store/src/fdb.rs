//! `FoundationDB`: a cluster, reached through its own client library, which is opened at run time.
//!
//! The cluster serves reads at one version and detects conflicts. A transaction's writes stay in the
//! same [`Pending`](crate::pending::Pending) as on other backends until the commit sends them, so
//! limits, read-your-writes and conflict ranges are the same on every backend, and the client's own
//! read-your-writes cache is not used.
//!
//! Every key has a prefix, the tuple-packed name of the store, so that a cluster can hold several
//! stores and other data.

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

/// How long a read waits for the cluster. The client itself would wait forever. After this time the
/// snapshot is too old anyway, and a new transaction finds servers that have taken over.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer for background work, which a busy cluster delays on purpose.
const READ_TIMEOUT_BATCH: Duration = Duration::from_secs(20);
/// The most the client allows: store handles count their own watches, and a process may have many.
const CLIENT_WATCHES_MAX: i32 = 1_000_000;

pub(crate) struct Fdb {
    database: Database,
    prefix: Prefix,
    cluster_file: String,
}

impl Fdb {
    /// Opens the cluster of `location`, which is `[CLUSTER_FILE][?prefix=NAME]`, without contacting it.
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

    /// Converts an error of anything but a commit.
    fn reading(&self, error: FdbError) -> Error {
        error::reading(error, &self.cluster_file)
    }

    /// Converts an error of a commit, which may have been applied despite it.
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
