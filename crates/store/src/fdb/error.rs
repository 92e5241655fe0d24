//! Classifies the client's error codes: <https://apple.github.io/foundationdb/api-error-codes.html>.

use std::sync::Arc;

use foundationdb::FdbError;

use crate::limits::{TRANSACTION_BYTES_MAX, WATCHES_MAX};
use crate::{Error, Limit};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Conflict,
    MaybeCommitted,
    TooOld,
    TooLarge,
    TooManyWatches,
    /// With the state of the cluster, for the message.
    Unavailable(&'static str),
    Open,
    Misuse,
}

/// For errors of anything but a commit.
fn class_of_read(code: i32) -> Class {
    match code {
        1007 => Class::TooOld,
        1020 => Class::Conflict,
        1021 => Class::MaybeCommitted,
        1032 => Class::TooManyWatches,
        2101 => Class::TooLarge,
        1009 | 1037 => Class::Unavailable("lags behind"),
        1012 | 1042 | 1051 | 1078 | 1211 | 1213 | 1223 => Class::Unavailable("is overloaded"),
        1025 | 1043 | 1101 => Class::Unavailable("is being closed by this process"),
        1038 => Class::Unavailable("is locked, as during a restore"),
        1225 => Class::Unavailable("has used up its storage quota"),
        // The cluster file, API version, certificates or authorization cannot be used.
        1511 | 1513 | 1515 | 1516 | 2104 | 2200..=2205 | 6000..=6999 => Class::Open,
        1036 | 2000..=2999 => Class::Misuse,
        _ => Class::Unavailable("cannot be reached"),
    }
}

/// For errors of a commit: unknown unless the code guarantees that nothing was written.
fn class_of_commit(code: i32) -> Class {
    match code {
        1007
        | 1009
        | 1020
        | 1036..=1038
        | 1042
        | 1051
        | 1078
        | 1213
        | 1223
        | 1225
        | 2000..=2999 => class_of_read(code),
        _ => Class::MaybeCommitted,
    }
}

pub(super) fn reading(error: FdbError, cluster_file: &str) -> Error {
    into_error(class_of_read(error.code()), error, cluster_file, 0)
}

/// `size` is as [`crate::limits`] counts it.
pub(super) fn committing(error: FdbError, cluster_file: &str, size: usize) -> Error {
    into_error(class_of_commit(error.code()), error, cluster_file, size)
}

pub(super) fn opening(error: FdbError, cluster_file: &str) -> Error {
    into_error(Class::Open, error, cluster_file, 0)
}

/// The cluster has not answered within the time-out.
pub(super) fn silent(cluster_file: &str) -> Error {
    Error::unavailable(format!(
        "the FoundationDB cluster of {cluster_file} does not answer: \
         fdbcli -C {cluster_file} --exec status shows whether it runs, in the client's version"
    ))
}

fn into_error(class: Class, error: FdbError, cluster_file: &str, size: usize) -> Error {
    match class {
        Class::Conflict => Error::Conflict,
        Class::MaybeCommitted => Error::MaybeCommitted,
        Class::TooOld => Error::TooOld,
        Class::TooLarge => Error::TooLarge {
            limit: Limit::Transaction,
            // The cluster computes sizes differently.
            size: size.max(TRANSACTION_BYTES_MAX + 1),
            max: TRANSACTION_BYTES_MAX,
        },
        Class::TooManyWatches => Error::TooManyWatches { max: WATCHES_MAX },
        Class::Unavailable(does) => Error::Unavailable {
            message: format!(
                "the FoundationDB cluster of {cluster_file} {does} (error {})",
                error.code()
            ),
            source: Some(Arc::new(error)),
        },
        Class::Open => Error::Open {
            message: format!(
                "the FoundationDB client cannot use the cluster file {cluster_file} (error {}): \
                 compare it with the one on a machine of the cluster",
                error.code()
            ),
            source: Some(Arc::new(error)),
        },
        Class::Misuse => Error::Misuse(error.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_never_says_that_something_may_be_written() {
        let maybe: Vec<i32> = (1..7000)
            .filter(|code| class_of_read(*code) == Class::MaybeCommitted)
            .collect();
        // The commit of a watch's transaction tells the watch so.
        assert_eq!(maybe, [1021]);
    }

    #[test]
    fn a_commit_is_unknown_unless_it_is_known() {
        for code in [
            1004, 1021, 1025, 1026, 1031, 1039, 1100, 1101, 1510, 4000, 4100,
        ] {
            assert_eq!(class_of_commit(code), Class::MaybeCommitted, "{code}");
        }
        // What `fdb_error_predicate` calls retryable and not committed.
        for code in [1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223] {
            let class = class_of_commit(code);
            assert_eq!(class, class_of_read(code));
            let cluster = "/etc/foundationdb/fdb.cluster";
            let error = into_error(class, FdbError::from_code(code), cluster, 0);
            assert!(error.is_retryable(), "{code}: {error:?}");
        }
    }

    #[test]
    fn the_classes_are_those_of_the_contract() {
        let error = |code| committing(FdbError::from_code(code), "fdb.cluster", 7);
        assert!(matches!(error(1007), Error::TooOld));
        assert!(matches!(error(1020), Error::Conflict));
        assert_eq!(
            error(2101).to_string(),
            "transaction of 10000001 bytes is 1 over the limit of 10000000"
        );
        let error = |code| reading(FdbError::from_code(code), "fdb.cluster");
        assert!(matches!(error(1032), Error::TooManyWatches { .. }));
        assert!(matches!(error(2104), Error::Open { .. }));
        assert!(matches!(error(6000), Error::Open { .. }));
        for code in [1004, 1009, 1026, 1031, 1037, 1038, 1042, 1051, 1213, 1500] {
            assert!(matches!(error(code), Error::Unavailable { .. }), "{code}");
        }
        assert_eq!(
            error(1051).to_string(),
            "the store is unavailable: the FoundationDB cluster of fdb.cluster is overloaded (error 1051)"
        );
        assert_eq!(class_of_read(1036), Class::Misuse);
        assert_eq!(class_of_read(2005), Class::Misuse);
    }
}
