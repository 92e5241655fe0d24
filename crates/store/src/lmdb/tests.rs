//! Tests of the embedded store from inside: layers against a model, faults of the disk, power cuts.

mod disk;
mod fuzz;
mod layers;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod memory;
mod power;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::directory::Directory;
use super::engine::{Engine, Tuning};
use super::{Lmdb, open};
use crate::pending::{CommitRequest, Mutation, Stamp};
use crate::{KeyRange, KeyValue, OpenOptions, RangeOptions, Result, Store};

/// No background threads.
fn manual() -> Tuning {
    Tuning {
        segment_bytes: 1 << 16,
        checkpoint_bytes: u64::MAX >> 8,
        checkpoint_interval: Duration::from_hours(24),
        relaxed_interval: Duration::from_hours(24),
    }
}

/// An engine without threads.
fn engine(path: &Path) -> Result<Arc<Engine>> {
    open::open(Directory::prepare(path)?, &OpenOptions::default(), manual())
}

fn lmdb(path: &Path) -> Arc<Lmdb> {
    Lmdb::open_tuned(path, &OpenOptions::default(), manual()).expect("opened")
}

impl Lmdb {
    fn engine(&self) -> &Engine {
        &self.running().expect("running").engine
    }
}

fn set(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Mutation {
    Mutation::Set {
        key: key.into(),
        value: value.into(),
    }
}

/// A commit that has read nothing.
fn blind(mutations: Vec<Mutation>) -> CommitRequest {
    CommitRequest {
        read_version: None,
        reads: Vec::new(),
        writes: Vec::new(),
        mutations,
    }
}

fn commit(engine: &Engine, request: CommitRequest) -> Result<Stamp> {
    let mut results = engine.commit(vec![request])?;
    results.pop().expect("one result")
}

/// Every row, as the newest snapshot has it.
fn rows(engine: &Engine) -> Vec<KeyValue> {
    let snapshot = engine.snapshot().expect("a snapshot");
    let (mut rows, mut rest) = (Vec::new(), Some(KeyRange::all()));
    while let Some(range) = rest.take() {
        let page = snapshot
            .page(&range, RangeOptions::default())
            .expect("a page");
        rows.extend(page.rows);
        rest = page.rest;
    }
    rows
}

#[test]
fn a_store_that_has_settled_has_nothing_left_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let lmdb = lmdb(dir.path());
    for number in 0..3_u8 {
        commit(lmdb.engine(), blind(vec![set(vec![number], "value")])).unwrap();
    }
    assert_ne!(lmdb.engine().core().backlog_bytes(), 0);
    lmdb.checkpoint().unwrap();
    assert_eq!(lmdb.engine().core().backlog_bytes(), 0);
    assert_eq!(lmdb.latest(&[2]).unwrap(), Some(Bytes::from("value")));
}

#[test]
fn a_directory_is_a_store_once_one_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let url = format!("lmdb:{}", path.display());
    assert!(!Store::is_there(&url) && !path.exists());
    std::fs::create_dir(&path).unwrap();
    assert!(!Store::is_there(&url));
    engine(&path).unwrap().close();
    assert!(Store::is_there(&url));
    assert!(Store::is_there("fdb:/none") && !Store::is_there("memory:"));
}

#[test]
fn every_file_of_a_store_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = engine(&path).unwrap();
    commit(&store, blind(vec![set("k", "1")])).unwrap();
    store.checkpoint().unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let mut files = 0;
    for entry in path.read_dir().unwrap() {
        let file = entry.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        files += 1;
    }
    assert!(files > 6, "{files}");
    store.close();
}
