//! Snapshots of every age against a plain map of each version.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{blind, commit, engine, set};
use crate::lmdb::LmdbSnapshot;
use crate::lmdb::engine::Engine;
use crate::lmdb::layer::Layer;
use crate::lmdb::tree::Mark;
use crate::pending::{CommitRequest, Mutation, add};
use crate::{Error, KeyRange, RangeOptions};

type Rows = BTreeMap<Bytes, Bytes>;

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<Mutation>),
    /// Two commits in one record.
    Group(Vec<Mutation>, Vec<Mutation>),
    Keep,
    Checkpoint,
    Sync,
    Sweep,
    Forget,
    Reopen,
}

fn key() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec![
        "", "\0", "\0\0", "a", "aa", "ab", "b", "ba", "c", "d", "e",
    ])
    .prop_map(Bytes::from)
}

fn range() -> impl Strategy<Value = KeyRange> {
    (key(), key()).prop_map(|(a, b)| KeyRange::new((&a).min(&b).clone(), (&a).max(&b).clone()))
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        4 => (key(), "[a-z]{0,3}").prop_map(|(key, value)| set(key, value)),
        2 => key().prop_map(|key| Mutation::Clear { key }),
        2 => range().prop_map(|range| Mutation::ClearRange { range }),
        1 => (key(), -3i64..3).prop_map(|(key, delta)| Mutation::Add { key, delta }),
    ]
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    prop::collection::vec(mutation(), 1..5)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => mutations().prop_map(Step::Commit),
        2 => (mutations(), mutations()).prop_map(|(a, b)| Step::Group(a, b)),
        3 => Just(Step::Keep),
        2 => Just(Step::Checkpoint),
        2 => Just(Step::Sync),
        4 => Just(Step::Sweep),
        1 => Just(Step::Forget),
        1 => Just(Step::Reopen),
    ]
}

fn apply(rows: &mut Rows, mutations: &[Mutation]) {
    for mutation in mutations {
        match mutation.clone() {
            Mutation::Set { key, value } => drop(rows.insert(key, value)),
            Mutation::Clear { key } => drop(rows.remove(&key)),
            Mutation::ClearRange { range } => rows.retain(|key, _| !range.contains(key)),
            Mutation::Add { key, delta } => {
                let sum = add(rows.get(&key).map(|old| &**old), delta);
                rows.insert(key, sum);
            }
            Mutation::StampedKey { .. } | Mutation::StampedValue { .. } => unreachable!(),
        }
    }
}

/// Reads a range in every way and compares.
fn check(snapshot: &LmdbSnapshot, model: &Rows, range: &KeyRange) {
    for reverse in [false, true] {
        for limit in [Some(1), Some(3), None] {
            let (mut read, mut rest) = (Vec::new(), Some(range.clone()));
            while let Some(range) = rest.take() {
                let page = snapshot
                    .page(&range, RangeOptions { limit, reverse })
                    .expect("a page");
                assert!(page.rows.len() <= limit.unwrap_or(usize::MAX));
                read.extend(page.rows.into_iter().map(|row| (row.key, row.value)));
                rest = page.rest;
            }
            let inside = model.iter().filter(|(key, _)| range.contains(key));
            let mut expected: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
            if reverse {
                expected.reverse();
            }
            assert_eq!(read, expected, "{range:?} {limit:?} {reverse}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn snapshots_read_their_version(
        steps in prop::collection::vec(step(), 1..24),
        ranges in prop::collection::vec(range(), 1..4),
    ) {
        let directory = tempfile::tempdir().expect("a directory");
        let mut store = engine(directory.path()).expect("opened");
        let mut model = Rows::new();
        let mut kept = Vec::new();
        for step in steps {
            match step {
                Step::Commit(mutations) => {
                    apply(&mut model, &mutations);
                    commit(&store, blind(mutations)).expect("committed");
                }
                Step::Group(a, b) => {
                    apply(&mut model, &a);
                    apply(&mut model, &b);
                    let results = store.commit(vec![blind(a), blind(b)]).expect("written");
                    prop_assert!(results.iter().all(Result::is_ok));
                }
                Step::Keep => kept.push((store.snapshot().expect("a snapshot"), model.clone())),
                Step::Checkpoint => store.checkpoint().expect("in the tree"),
                Step::Sync => store.sync().expect("synced"),
                Step::Sweep => store.sweep().expect("swept"),
                Step::Forget => store.forget(std::time::Duration::from_hours(1)),
                Step::Reopen => {
                    kept.clear();
                    store.close();
                    drop(store);
                    store = engine(directory.path()).expect("opened");
                }
            }
        }
        kept.push((store.snapshot().expect("a snapshot"), model));
        for (snapshot, model) in &kept {
            for range in ranges.iter().chain([&KeyRange::all()]) {
                check(snapshot, model, range);
            }
            for key in ["", "\0", "\0\0", "a", "aa", "b", "zz"] {
                let value = snapshot.get(key.as_bytes()).expect("read");
                prop_assert_eq!(value.as_ref(), model.get(key.as_bytes()));
            }
        }
    }
}

/// What a commit after a snapshot has written is in conflict with what the snapshot has read,
/// wherever the layer of that commit is by now.
#[test]
fn conflicts_outlive_checkpoints() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    commit(&store, blind(vec![set("k", "0")])).expect("committed");
    let snapshot = store.snapshot().expect("a snapshot");
    let request = |key: &'static str| CommitRequest {
        read_version: Some(snapshot.version()),
        reads: vec![KeyRange::key(key.as_bytes())],
        writes: Vec::new(),
        mutations: vec![set("x", "1")],
    };
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    for _ in 0..3 {
        store.checkpoint().expect("in the tree");
        store.forget(std::time::Duration::from_hours(1));
        let error = commit(&store, request("k")).expect_err("a conflict");
        assert!(matches!(error, Error::Conflict), "{error}");
        commit(&store, request("other")).expect("no conflict");
    }
    // Once the snapshot is gone so is the memory of what it could be in conflict with.
    let request = request("k");
    drop(snapshot);
    store.checkpoint().expect("in the tree");
    store.forget(std::time::Duration::from_hours(1));
    let error = commit(&store, request).expect_err("too old");
    assert!(matches!(error, Error::TooOld), "{error}");
}

#[test]
fn an_overdue_snapshot_is_cut() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    commit(&store, blind(vec![set("k", "0")])).expect("committed");
    let old = store.snapshot().expect("a snapshot");
    let tree = Arc::downgrade(&store.core().stack.tree);
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    store.checkpoint().expect("in the tree");
    assert!(tree.upgrade().is_some());
    store.forget(std::time::Duration::ZERO);
    assert!(
        tree.upgrade().is_none(),
        "the old state of the tree is free"
    );
    assert!(matches!(old.get(b"k"), Err(Error::TooOld)));
    let new = store.snapshot().expect("a snapshot");
    assert_eq!(new.get(b"k").expect("read").as_deref(), Some(&b"1"[..]));
}

/// How many rows are in memory.
fn held(store: &Engine) -> usize {
    let layers = store.core().stack.layers.clone();
    (layers.iter())
        .map(|layer| layer.read().rows().count())
        .sum()
}

fn clear(key: &'static str) -> Mutation {
    let key = key.into();
    Mutation::Clear { key }
}

#[test]
fn rows_of_deleted_keys_are_swept_away() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    let sweep = || {
        store.sync().expect("synced");
        store.sweep().expect("swept");
        held(&store)
    };
    commit(&store, blind(vec![set("tree", "0")])).expect("committed");
    store.checkpoint().expect("in the tree");
    let all = ["a", "b", "c", "d", "e", "tree", "none"];
    commit(
        &store,
        blind(all[..5].iter().map(|key| set(*key, "1")).collect()),
    )
    .expect("committed");
    let old = store.snapshot().expect("a snapshot");
    commit(&store, blind(all.map(clear).into())).expect("committed");
    store.sweep().expect("swept");
    assert_eq!(held(&store), 7, "nothing is durable yet");
    assert_eq!(sweep(), 7, "a snapshot is older");
    assert_eq!(old.get(b"a").expect("read").as_deref(), Some(&b"1"[..]));
    drop(old);
    commit(&store, blind(vec![set("e", "2")])).expect("committed");
    assert_eq!(
        sweep(),
        3,
        "one has a value again, and two were not written here"
    );
    let rows = super::rows(&store);
    assert_eq!(rows.len(), 1);
    assert_eq!((&*rows[0].key, &*rows[0].value), (&b"e"[..], &b"2"[..]));
    // Its tombstone is in the layer below one that does not change any more.
    let frozen = store.core().freeze();
    assert_eq!(frozen.len(), 1);
    let writes = [set("e", "3"), set("f", "1"), set("tree", "2")];
    for mutation in writes.into_iter().chain(["e", "f", "tree"].map(clear)) {
        commit(&store, blind(vec![mutation])).expect("committed");
    }
    assert_eq!(sweep(), 5, "two hide a row below");
    assert!(super::rows(&store).is_empty());
    store.checkpoint().expect("in the tree");
    assert_eq!(held(&store), 0);
    assert!(super::rows(&store).is_empty());
    store.close();
    drop(store);
    let store = engine(directory.path()).expect("opened");
    assert!(super::rows(&store).is_empty());
    store.close();
}

/// A conflict that can no longer be seen is not overlooked.
#[test]
fn a_commit_is_too_old_for_rows_that_were_swept_away() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    let snapshot = store.snapshot().expect("a snapshot");
    let request = || CommitRequest {
        read_version: Some(snapshot.version()),
        reads: vec![KeyRange::key(b"k")],
        writes: Vec::new(),
        mutations: vec![set("x", "1")],
    };
    commit(&store, blind(vec![clear("k")])).expect("committed");
    store.sync().expect("synced");
    store.sweep().expect("swept");
    let error = commit(&store, request()).expect_err("a conflict");
    assert!(matches!(error, Error::Conflict), "{error}");
    let request = request();
    drop(snapshot);
    store.sweep().expect("swept");
    commit(&store, blind(vec![clear("other")])).expect("committed");
    store.sync().expect("synced");
    store.sweep().expect("swept");
    let error = commit(&store, request).expect_err("it cannot be told");
    assert!(matches!(error, Error::TooOld | Error::Conflict), "{error}");
}

/// A process that is killed after it has moved the log into the tree, and before it says so, leaves rows there that others
/// do not see yet.
#[test]
fn nothing_is_swept_away_under_a_newer_tree() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    store.sync().expect("synced");
    let (layers, mark) = in_memory(&store);
    (store.tree.merge(&layers, 0, mark)).expect("in the tree");
    commit(&store, blind(vec![clear("k")])).expect("committed");
    store.sync().expect("synced");
    store.sweep().expect("swept");
    store.checkpoint().expect("in the tree");
    assert!(super::rows(&store).is_empty());
    store.close();
}

/// Another process moves a part of this one's top layer into the tree. A snapshot above the tree of before sees what was
/// deleted in that part, and written and deleted again since.
#[test]
fn nothing_is_swept_away_under_a_snapshot_above_an_older_tree() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = engine(directory.path()).expect("opened");
    commit(&store, blind(vec![set("k", "1")])).expect("committed");
    store.checkpoint().expect("in the tree");
    let since = store.core().version;
    commit(&store, blind(vec![clear("k")])).expect("committed");
    store.sync().expect("synced");
    let (layers, mark) = in_memory(&store);
    (store.tree.merge(&layers, since, mark)).expect("in the tree");
    for mutation in [set("k", "2"), clear("k")] {
        commit(&store, blind(vec![mutation])).expect("committed");
    }
    store.sync().expect("synced");
    let snapshot = store.snapshot().expect("a snapshot");
    store.control.set_in_tree(mark.version);
    store.sweep().expect("swept");
    assert_eq!(snapshot.get(b"k").expect("read"), None);
    drop(snapshot);
    store.sweep().expect("swept");
    assert_eq!(held(&store), 1, "it is in a layer below the new top");
    assert!(super::rows(&store).is_empty());
    store.checkpoint().expect("in the tree");
    assert!(super::rows(&store).is_empty());
    store.close();
}

/// The layers, and the mark of a tree that has all of them.
fn in_memory(store: &Engine) -> (Vec<Arc<Layer>>, Mark) {
    let core = store.core();
    let (version, position) = (core.version, core.position);
    (core.stack.layers.clone(), Mark { version, position })
}
