//! Checkpoints that change more pages than LMDB keeps in memory.

use std::process::Command;

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{blind, commit, engine, rows, set};
use crate::pending::Mutation;

/// Set in the process that is measured: others run many tests at once.
const ALONE: &str = "TEST_ALONE";
/// Two of these values fill a page.
const VALUE_BYTES: usize = 1_900;
const ROWS: u32 = 60_000;
/// Half of what all pages of these rows take.
const LEFT_KB_MAX: u64 = 80_000;

fn value(number: u32) -> Bytes {
    vec![number.to_be_bytes()[3]; VALUE_BYTES].into()
}

fn key(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// Memory of this process that is neither free nor a file's, in kB.
#[expect(
    unsafe_code,
    reason = "the allocator keeps what was freed until it is told"
)]
fn memory_kb() -> u64 {
    // SAFETY: it may be called at any time.
    unsafe { libc::malloc_trim(0) };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = (status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")))
    .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_large_checkpoint_leaves_little_memory() {
    if std::env::var_os(ALONE).is_none() {
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::a_large_checkpoint_leaves_little_memory");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{stderr}");
        let stdout = String::from_utf8_lossy(&child.stdout);
        assert!(stdout.contains("1 passed"), "no test is named {name}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = engine(dir.path()).unwrap();
    let mut numbers: Vec<u32> = (0..ROWS).collect();
    numbers.shuffle(&mut SmallRng::seed_from_u64(1));
    let before_kb = memory_kb();
    for numbers in numbers.chunks(1_000) {
        let writes = numbers
            .iter()
            .map(|number| set(key(*number), value(*number)));
        commit(&store, blind(writes.collect())).unwrap();
    }
    store.checkpoint().unwrap();
    store.forget(std::time::Duration::ZERO);
    let left_kb = memory_kb().saturating_sub(before_kb);
    assert!(left_kb < LEFT_KB_MAX, "{left_kb} kB");
    // Everywhere at once: some are removed, some change, some are new.
    for numbers in numbers.chunks(1_000) {
        let writes = numbers.iter().flat_map(|number| match number % 3 {
            0 => vec![Mutation::Clear { key: key(*number) }],
            1 => vec![set(key(*number), "changed"), set(key(ROWS + number), "new")],
            _ => Vec::new(),
        });
        commit(&store, blind(writes.collect())).unwrap();
    }
    store.checkpoint().unwrap();
    store.close();
    drop(store);
    let store = engine(dir.path()).unwrap();
    store.tree.verify().unwrap();
    let found = rows(&store);
    let expected = (0..2 * ROWS).filter_map(|number| match (number < ROWS, number % 3) {
        (true, 1) => Some((number, Bytes::from("changed"))),
        (true, 2) => Some((number, value(number))),
        (false, 1) => Some((number, Bytes::from("new"))),
        _ => None,
    });
    assert!(
        found
            .into_iter()
            .map(|row| (row.key, row.value))
            .eq(expected.map(|(number, value)| (key(number), value)))
    );
}
