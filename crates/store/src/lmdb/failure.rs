//! Converts errors of files and of LMDB.

use std::io;
use std::path::Path;
use std::sync::Arc;

use heed::MdbError;

use crate::Error;

pub(super) fn file_error(doing: &str, path: &Path, error: io::Error) -> Error {
    if is_full(&error) {
        return disk_full(path, Some(error));
    }
    Error::Unavailable {
        message: format!("{doing} in {} failed", path.display()),
        source: Some(Arc::new(error)),
    }
}

pub(super) fn disk_full(path: &Path, error: Option<io::Error>) -> Error {
    Error::Full {
        message: format!(
            "there is no space left on the disk of {}; free some, and the store continues automatically",
            path.display()
        ),
        source: error.map(|error| Arc::new(error) as _),
    }
}

pub(super) fn map_full(path: &Path, map_bytes: u64) -> Error {
    Error::Full {
        message: format!(
            "{} has reached its map size of {map_bytes} bytes; stop its processes and start them \
             with a larger map_size",
            path.display()
        ),
        source: None,
    }
}

/// An error while the store is being opened.
pub(super) fn open_error(doing: &str, path: &Path, error: io::Error) -> Error {
    match file_error(doing, path, error) {
        Error::Unavailable { message, source } => Error::Open { message, source },
        other => other,
    }
}

pub(super) fn tree_error(path: &Path, map_bytes: u64, error: heed::Error) -> Error {
    match error {
        heed::Error::Mdb(MdbError::MapFull) => map_full(path, map_bytes),
        heed::Error::Io(error) => file_error("reading or writing the tree", path, error),
        heed::Error::Mdb(
            MdbError::PageNotFound
            | MdbError::Corrupted
            | MdbError::Invalid
            | MdbError::VersionMismatch
            | MdbError::Incompatible
            | MdbError::Panic
            | MdbError::CursorFull
            | MdbError::PageFull
            | MdbError::BadValSize
            | MdbError::BadDbi
            | MdbError::Problem
            // A transaction returns this after one of the others.
            | MdbError::BadTxn,
        ) => Error::Corrupt {
            message: damage(path, "is damaged"),
            source: Some(Arc::new(error)),
        },
        heed::Error::Mdb(MdbError::MapResized) => Error::Unavailable {
            message: format!(
                "another process has opened {} with a larger map_size; use the same in all",
                path.display()
            ),
            source: Some(Arc::new(error)),
        },
        error => Error::Unavailable {
            message: format!("the tree in {} cannot be used", path.display()),
            source: Some(Arc::new(error)),
        },
    }
}

pub(super) const RESTORE: &str =
    "restore the store from an export (docs/operations.md#a-damaged-store)";

pub(super) fn damaged(path: &Path, what: &str) -> Error {
    Error::corrupt(damage(path, what))
}

fn damage(path: &Path, what: &str) -> String {
    format!("{}/data.mdb {what}; {RESTORE}", path.display())
}

/// The message of the signal handler.
pub(super) fn damage_message(path: &Path) -> String {
    let what = "is damaged or shorter than it should be, or the disk cannot read it";
    format!("davenport: {}\n", damage(path, what))
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
