//! A damaged `data.mdb`: a child that checks and exports the store says that it is damaged, or exports
//! exactly what was stored. It never exports something else, and never hangs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it has seen"
)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::{Error, KeyRange, Store, Transaction};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Far longer than a child takes on a busy machine.
const HANG: Duration = Duration::from_mins(2);

/// What became of a child.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Exported(Vec<u8>),
    Refused(String),
    /// The handler for reads that the file cannot satisfy has ended it.
    Ended(String),
    Crashed(String),
    Hung,
}

/// Not a test: the body of the child.
#[test]
fn child() {
    if testkit::role().is_none() {
        return;
    }
    let directory = testkit::child_url();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(check_and_export(&directory)) {
        Ok(export) => fs::write(Path::new(&directory).join("exported"), export).unwrap(),
        Err(error) => fs::write(Path::new(&directory).join("refused"), error).unwrap(),
    }
}

async fn check_and_export(directory: &str) -> Result<Vec<u8>, String> {
    let fail = |error: Error| error.to_string();
    let store = Store::open(&format!("lmdb:{directory}"))
        .await
        .map_err(fail)?;
    store.check().await.map_err(fail)?;
    let mut export = Vec::new();
    let exported = store.export(&mut export).await;
    exported.map_err(|error| error.to_string())?;
    Ok(export)
}

async fn run_child(directory: &Path) -> Outcome {
    let mut child = testkit::child_command("export", directory.to_str().unwrap(), "")
        .stdout(Stdio::null())
        .stderr(fs::File::create(directory.join("stderr")).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > HANG {
            child.kill().unwrap();
            child.wait().unwrap();
            return Outcome::Hung;
        }
        sleep(Duration::from_millis(2)).await;
    };
    let said = fs::read_to_string(directory.join("stderr")).unwrap_or_default();
    if status.code() == Some(3) {
        return Outcome::Ended(said);
    }
    if !status.success() {
        return Outcome::Crashed(format!("{status}: {said}"));
    }
    match fs::read(directory.join("exported")) {
        Ok(export) => Outcome::Exported(export),
        Err(_) => Outcome::Refused(fs::read_to_string(directory.join("refused")).unwrap()),
    }
}

/// A store whose tree has branch pages, overflow pages, rows that were overwritten and holes, and
/// nothing left in the log.
async fn make_store() -> (TempDir, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("lmdb:{}", directory.path().display());
    let mut rng = SmallRng::seed_from_u64(7);
    let store = Store::open(&url).await.unwrap();
    for round in 0..4_u32 {
        let mut rows = Vec::new();
        for number in 0..1_500_u32 {
            if round == 0 || rng.random_ratio(1, 3) {
                let long = if rng.random_ratio(1, 100) { 9_000 } else { 40 };
                let value = vec![rng.random::<u8>(); rng.random_range(0..long)];
                rows.push((format!("row/{number:05}").into_bytes(), value));
            }
        }
        let rows = &rows;
        let body = |tx: Transaction| async move {
            for (key, value) in rows {
                tx.set(key, value);
            }
            let hole = format!("row/{:05}", 300 * round).into_bytes();
            let end = format!("row/{:05}", 300 * round + 40).into_bytes();
            tx.clear_range(KeyRange::new(hole, end));
            tx.clear(format!("row/{:05}", 300 * round + 50).as_bytes());
            Ok::<_, Error>(())
        };
        store.transact("fill", body).await.unwrap();
        store.settle().await.unwrap();
    }
    let body = |tx: Transaction| async move {
        tx.set(b"largest", &vec![7; store::limits::VALUE_BYTES_MAX]);
        tx.set(MARKED, MARKER);
        Ok::<_, Error>(())
    };
    store.transact("fill", body).await.unwrap();
    let mut export = Vec::new();
    store.export(&mut export).await.unwrap();
    (directory, export)
}

const MARKED: &[u8] = b"\x00 marked";
const MARKER: &[u8] = b"is found by what it says";

fn copy_of(directory: &TempDir) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "lock.mdb" {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

fn data_file(directory: &TempDir) -> fs::File {
    let path = directory.path().join("data.mdb");
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

/// Everything a child may do with a damaged store, `what` says how.
fn assert_honest(outcome: Outcome, export: &[u8], what: &str) -> &'static str {
    match outcome {
        Outcome::Exported(exported) => {
            assert!(
                exported == export,
                "{what}: exported something else than was stored"
            );
            "intact"
        }
        Outcome::Refused(error) => {
            assert!(error.contains("export"), "{what}: {error}");
            "refused"
        }
        Outcome::Ended(said) => {
            assert!(said.contains("data.mdb is damaged"), "{what}: {said}");
            assert!(said.contains("export"), "{what}: {said}");
            "ended"
        }
        Outcome::Crashed(how) => panic!("{what}: crashed: {how}"),
        Outcome::Hung => panic!("{what}: hung"),
    }
}

#[tokio::test]
async fn a_flipped_byte_is_never_exported() {
    let (directory, export) = make_store().await;
    let length = data_file(&directory).metadata().unwrap().len();
    let flips = std::env::var("TEST_FLIPS").map_or(120, |flips| flips.parse().unwrap());
    let mut rng = SmallRng::seed_from_u64(11);
    let mut seen = std::collections::BTreeMap::<_, u32>::new();
    for flip in 0..flips {
        // A third each: anywhere, the beginning of a page, the two pages that lead to all others.
        let offset = match flip % 3 {
            0 => rng.random_range(0..length),
            1 => rng.random_range(0..length / 4096) * 4096 + rng.random_range(0..64),
            _ => rng.random_range(0..2) * 4096 + rng.random_range(0..168),
        };
        let bits = rng.random_range(1..=255_u8);
        let copy = copy_of(&directory);
        let file = data_file(&copy);
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ bits], offset).unwrap();
        let what = format!("byte {offset} of {length} flipped by {bits:#04x}");
        let outcome = assert_honest(run_child(copy.path()).await, &export, &what);
        *seen.entry(outcome).or_default() += 1;
    }
    println!("{seen:?}");
    assert!(seen.contains_key("refused"), "{seen:?}");
}

#[tokio::test]
async fn a_file_that_was_cut_is_refused() {
    let (directory, export) = make_store().await;
    let length = data_file(&directory).metadata().unwrap().len();
    let lengths = [
        0,
        1,
        4_096,
        8_192,
        12_288,
        length / 3,
        length / 2 / 4_096 * 4_096,
        length - 4_096,
        length - 1,
    ];
    let mut refused = 0;
    for cut in lengths {
        let copy = copy_of(&directory);
        data_file(&copy).set_len(cut).unwrap();
        let what = format!("cut to {cut} of {length} bytes");
        let outcome = assert_honest(run_child(copy.path()).await, &export, &what);
        refused += usize::from(outcome == "refused");
    }
    // The last pages may be free ones.
    assert!(refused >= lengths.len() - 2, "{refused}");
}

/// What docs/operations.md says to do: a damaged store is replaced by an import of the last export.
#[tokio::test]
async fn a_damaged_row_is_named_and_an_import_restores_the_store() {
    let (directory, export) = make_store().await;
    let copy = copy_of(&directory);
    let path = copy.path().join("data.mdb");
    let mut data = fs::read(&path).unwrap();
    let places: Vec<_> = (0..data.len() - MARKER.len())
        .filter(|at| data[*at..].starts_with(MARKER))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        data[at] ^= 1;
    }
    fs::write(&path, data).unwrap();

    let store = Store::open(&format!("lmdb:{}", copy.path().display())).await;
    let store = store.unwrap();
    let get = |tx: Transaction| async move { tx.get(MARKED).await };
    let read = |tx: Transaction| async move {
        let range = KeyRange::prefix(MARKED);
        tx.get_range(range, store::RangeOptions::default())
            .collect()
            .await
    };
    let mut export_again = Vec::new();
    let errors = [
        store.transact("get", get).await.unwrap_err().to_string(),
        store.transact("read", read).await.unwrap_err().to_string(),
        store.check().await.unwrap_err().to_string(),
        (store.export(&mut export_again).await.unwrap_err()).to_string(),
    ];
    for error in errors {
        let file = path.canonicalize().unwrap();
        let expected = format!(
            "the store is corrupt: {} is damaged at key \"\\x00 marked\"; restore the store from \
             an export (docs/operations.md#a-damaged-store)",
            file.display()
        );
        assert_eq!(error, expected);
    }
    assert!(export_again.is_empty());

    let new = tempfile::tempdir().unwrap();
    let url = format!("lmdb:{}", new.path().display());
    Store::import(&url, &mut &export[..]).await.unwrap();
    let restored = Store::open(&url).await.unwrap();
    restored.check().await.unwrap();
    let mut export_again = Vec::new();
    restored.export(&mut export_again).await.unwrap();
    // All but the incarnation, which an import raises, and the checksum, which covers it.
    let rows = |export: &[u8]| export[27..export.len() - 4].to_vec();
    assert!(rows(&export_again) == rows(&export));
}
