//! The alerts for Prometheus, checked with `promtool`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and tells what it skips"
)]

use std::path::Path;
use std::process::Command;

#[test]
fn the_alerts_are_valid_and_ring() {
    let promtool = std::env::var("PROMTOOL").unwrap_or_else(|_| "promtool".to_owned());
    if Command::new(&promtool).arg("--version").output().is_err() {
        println!(
            "skipped: there is no promtool (Debian's package prometheus has it); PROMTOOL names one"
        );
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for args in [
        ["check", "rules", "docs/alerts.yml"],
        ["test", "rules", "tests/alerts.yml"],
    ] {
        let ran = Command::new(&promtool)
            .args(args)
            .current_dir(&root)
            .output()
            .unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}
