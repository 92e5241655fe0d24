//! Lines to copy from the pages work as they are printed.

use std::path::Path;
use std::process::Output;

use e2e::{PATIENCE, Start, program};
use peer::{Options, Peer};
use tokio::process::Command;
use tokio::time::timeout;

pub(crate) fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// The code block of a page that contains this text.
pub(crate) fn block(page: &str, text: &str) -> String {
    let mut blocks = page.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(text)).unwrap();
    block.split_once('\n').unwrap().1.to_owned()
}

/// Runs lines in a shell that finds the programs of this workspace.
pub(crate) async fn shell(lines: &str, directory: &Path) -> Output {
    let programs = program("davenport").unwrap();
    let programs = programs.parent().unwrap().display().to_string();
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("sh");
    let shell = (shell.args(["-euc", lines]).current_dir(directory)).kill_on_drop(true);
    let shell = shell.env_clear().env("PATH", format!("{programs}:{path}"));
    let output = timeout(PATIENCE, shell.output()).await;
    output.expect("it does not end").unwrap()
}

#[tokio::test]
async fn the_first_replication_of_the_readme() {
    if std::process::Command::new("curl")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: the lines of README.md need curl");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let couchdb = Peer::start(Options::default()).await.unwrap();
    couchdb.set_admin("admin", "password");
    let readme = page("README.md");
    let start = block(&readme, "davenport serve --admin anna:secret");
    assert!(
        start.contains("target/release/davenport serve --admin anna:secret\n"),
        "{start}"
    );
    let node = Start::node("davenport", directory.path()).args(&["--admin", "anna:secret"]);
    let node = node.start().await.unwrap();
    let lines = block(&readme, "try_davenport");
    let (davenport, server) = (&node.url["http://".len()..], couchdb.url());
    let lines = lines.replace("127.0.0.1:5985", davenport).replace(
        "127.0.0.1:5984",
        server["http://".len()..].trim_end_matches('/'),
    );
    let done = shell(&lines, directory.path()).await;
    let printed = String::from_utf8_lossy(&done.stdout);
    let last = printed.lines().last().unwrap();
    assert!(
        last.contains("\"greeting\":\"hello\""),
        "{printed}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    node.stop().await.unwrap();
}

#[tokio::test]
async fn the_configuration_of_the_operations_page() {
    let directory = tempfile::tempdir().unwrap();
    let lines = block(&page("docs/operations.md"), "--check-config");
    // All but those that start a node.
    let starts =
        |line: &&str| line.starts_with("davenport serve") && !line.contains("--check-config");
    let (starts, lines): (Vec<&str>, Vec<&str>) = lines.lines().partition(starts);
    let done = shell(&lines.join("\n"), directory.path()).await;
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(printed.contains("the configuration is valid"), "{printed}");
    let last = starts.last().unwrap().split('#').next().unwrap();
    let args: Vec<&str> = last.split_whitespace().skip(2).collect();
    let node = Start::node("davenport", directory.path()).args(&args);
    node.start().await.unwrap().stop().await.unwrap();
}
