//! `davenport store`, as an operator uses it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use store::{Error, RangeOptions, Store, Transaction};

fn davenport(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_davenport"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads nothing may have exited already.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn url(directory: &Path) -> String {
    format!("lmdb:{}", directory.display())
}

#[tokio::main(flavor = "current_thread")]
async fn fill(url: &str, rows: u32) {
    let store = Store::open(url).await.unwrap();
    let body = |tx: Transaction| async move {
        for n in 0..rows {
            tx.set(&n.to_be_bytes(), &[7; 300]);
        }
        Ok::<_, Error>(())
    };
    store.transact("fill", body).await.unwrap();
}

#[test]
fn nothing_is_made_where_there_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    for command in ["check", "stats", "export"] {
        let output = davenport(&["store", command, "--store", &url(&path)], b"");
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert_eq!(text(&output.stdout), "");
        let error = text(&output.stderr);
        assert!(error.contains("no store at"), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn the_store_of_the_configuration_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = url(&dir.path().join("data"));
    fill(&store, 1);
    let file = dir.path().join("davenport.toml");
    std::fs::write(&file, format!("[store]\nurl = \"{store}\"\n")).unwrap();
    let file = file.display().to_string();
    let output = davenport(&["store", "stats", "--config", &file], b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let other = url(&dir.path().join("none"));
    let output = davenport(
        &["store", "stats", "--config", &file, "--store", &other],
        b"",
    );
    assert_eq!(output.status.code(), Some(2), "--store comes first");
}

#[test]
fn an_empty_store_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let url = url(dir.path());
    fill(&url, 0);
    let output = davenport(&["store", "check", "--store", &url], b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected =
        format!("{url}: checked 0 rows, 0 bytes of keys, 0 bytes of values; incarnation 1\n");
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn a_store_moves_through_a_pipe() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (url(from.path()), url(to.path()));
    fill(&from, 5_000);
    let export = davenport(&["store", "export", "--store", &from], b"");
    assert!(export.status.success(), "{}", text(&export.stderr));
    // After a damaged stream, the store reports it, and can be imported into again.
    let mut damaged = export.stdout.clone();
    damaged[1_000] ^= 1;
    for broken in [
        &damaged[..],
        &export.stdout[..export.stdout.len() / 2],
        b"hello",
    ] {
        let output = davenport(&["store", "import", "--store", &to], broken);
        assert_eq!(output.status.code(), Some(1));
    }
    let output = davenport(&["store", "check", "--store", &to], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("run the import again"),
        "{}",
        text(&output.stderr)
    );
    let import = davenport(
        &["store", "import", "--json", "--store", &to],
        &export.stdout,
    );
    assert!(import.status.success(), "{}", text(&import.stderr));
    let report: serde_json::Value = serde_json::from_slice(&import.stdout).unwrap();
    assert_eq!(
        (report["rows"].as_u64(), report["incarnation"].as_u64()),
        (Some(5_000), Some(2))
    );
    let again = davenport(&["store", "export", "--store", &to], b"");
    // All but the incarnation and the checksum.
    let rows = |stream: &[u8]| stream[27..stream.len() - 4].to_vec();
    assert!(rows(&again.stdout) == rows(&export.stdout));
    let output = davenport(&["store", "import", "--store", &to], &export.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("the store is not empty"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn an_export_is_for_its_owner_and_replaces_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let url = url(&dir.path().join("data"));
    fill(&url, 10);
    let path = dir.path().join("export");
    let file = path.display().to_string();
    let export = || {
        davenport(
            &["store", "export", "--store", &url, "--output", &file],
            b"",
        )
    };
    let first = export();
    assert!(first.status.success(), "{}", text(&first.stderr));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = std::fs::read(&path).unwrap();
    let again = export();
    assert_eq!(again.status.code(), Some(1));
    let error = text(&again.stderr);
    assert!(error.contains(&format!("cannot create {file}")), "{error}");
    assert!(std::fs::read(&path).unwrap() == written);
}

/// A key that other users can read protects nothing.
#[test]
fn nothing_starts_with_a_key_file_that_others_may_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (data, keys) = (dir.path().join("data"), dir.path().join("data.keys"));
    let url = url(&data);
    fill(&url, 0);
    std::fs::write(&keys, format!("k {}\n", "00".repeat(32))).unwrap();
    for mode in [0o644, 0o640, 0o602] {
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).unwrap();
        for command in [
            &[
                "serve",
                "--store",
                &url,
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "a:b",
            ][..],
            &["serve", "--check-config", "--store", &url, "--admin", "a:b"],
            &["keys", "list", "--store", &url],
            &["keys", "reseal", "--store", &url],
        ] {
            let output = davenport(command, b"");
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
            let what = format!("run: chmod 600 {}", keys.display());
            assert!(error.contains(&what), "{command:?}: {error}");
        }
    }
}

#[test]
fn what_cannot_be_opened_is_explained() {
    for (url, says) in [
        ("mongodb:here", "use lmdb:DIRECTORY"),
        ("lmdb:/proc/davenport", "/proc/davenport"),
        ("fdb:/no/such/fdb.cluster", "/no/such/fdb.cluster"),
    ] {
        let output = davenport(&["store", "check", "--store", url], b"");
        assert_eq!(
            output.status.code(),
            Some(2),
            "{url}: {}",
            text(&output.stderr)
        );
        assert!(
            text(&output.stderr).contains(says),
            "{}",
            text(&output.stderr)
        );
    }
}

#[tokio::main(flavor = "current_thread")]
async fn clear_first(url: &str, begin: &'static [u8], end: &'static [u8]) {
    let store = Store::open(url).await.unwrap();
    let body = |tx: Transaction| async move {
        let first = RangeOptions::limit(1);
        let rows = tx.get_range((begin, end), first).collect().await?;
        tx.clear(&rows[0].key);
        Ok::<_, Error>(())
    };
    store.transact("clear_first", body).await.unwrap();
}

/// Small, but complete: every figure that scripts rely on, and a queue that the check accepts
/// until one of its rows is removed.
#[test]
fn the_queue_is_measured_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let url = url(dir.path());
    let bench = ["bench", "queue", "--store", &url, "--json"];
    let small = ["--jobs", "30", "--batch", "7", "--backlog", "300"];
    let cases = ["one_by_one", "batched", "crowd", "backlog"].map(|case| ["--case", case]);
    let output = davenport(&[&bench[..], &small, cases.as_flattened()].concat(), b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figures: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (case, metric) in [
        ("one_by_one", "enqueue_per_s"),
        ("one_by_one", "claim_finish_per_s"),
        ("one_by_one", "full_cycle_per_s"),
        ("one_by_one", "conflict_ratio"),
        ("one_by_one", "store_bytes_per_job"),
        ("batched", "full_cycle_per_s"),
        ("acceptors=64", "conflict_ratio"),
        ("backlog=300", "claim_finish_per_s"),
        ("open/300", "open_s"),
        ("open/300", "list_ms_p50"),
    ] {
        let figure = (figures.iter()).find(|f| f["case"] == case && f["metric"] == metric);
        let figure = figure.unwrap_or_else(|| panic!("{case} {metric}: {figures:?}"));
        assert_eq!(figure["bench"], "queue");
        assert!(figure["value"].as_f64().unwrap() >= 0.0 && figure["unit"].is_string());
    }
    let check = davenport(&["store", "check", "--store", &url], b"");
    assert!(check.status.success(), "{}", text(&check.stdout));
    let checked = format!("{url}: checked 60 jobs of type bench/one_by_one\n");
    assert!(
        text(&check.stdout).contains(&checked),
        "{}",
        text(&check.stdout)
    );
    // The index of running jobs: a row of a job that the benchmark left claimed.
    clear_first(&url, b"\x153\x15\x06", b"\x153\x15\x07");
    let check = davenport(&["store", "check", "--store", &url], b"");
    assert_eq!(check.status.code(), Some(1));
    assert!(
        text(&check.stdout).contains("has no row Active"),
        "{}",
        text(&check.stdout)
    );
}
