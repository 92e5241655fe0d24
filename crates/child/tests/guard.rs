//! Programs and their guards. A guard is this executable again, so the tests have a `main` of their own.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use child::{Ended, Program};
use tokio::sync::mpsc;

const SHORT: Duration = Duration::from_millis(50);
/// Much longer than a program needs on a busy machine.
const LONG: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    if let Some(code) = child::guard() {
        return code;
    }
    // nextest asks for the tests, and for those among them that are ignored.
    let asks = |word: &str| std::env::args().any(|given| given == word);
    if asks("--list") {
        if !asks("--ignored") {
            let _ = writeln!(std::io::stdout(), "programs_and_guards: test");
        }
        return ExitCode::SUCCESS;
    }
    a_guard_ends_its_group_when_its_worker_has_gone_or_is_silent();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        outputs_and_exit_codes_are_passed_on().await;
        silent_programs_are_ended().await;
        all_has_ended_when_a_run_is_dropped().await;
    });
    ExitCode::SUCCESS
}

fn a_guard_ends_its_group_when_its_worker_has_gone_or_is_silent() {
    let script = "trap 'echo told; exit' TERM; sleep 600 & echo begun; wait";
    let start = |silence: Duration| -> Child {
        let mut command = Command::new("/proc/self/exe");
        command.args(["guard", "--silence-ms", &silence.as_millis().to_string()]);
        command.args(["--", "sh", "-c", script]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    // The output ends once every process that has it open has ended.
    let mut guard = start(LONG);
    let (mut output, mut text) = (guard.stdout.take().unwrap(), [0; 6]);
    output.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"begun\n");
    drop(guard.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "told\n");
    guard.wait().unwrap();
    let mut guard = start(SHORT);
    let mut output = guard.stdout.take().unwrap();
    output.read_to_string(&mut rest).unwrap();
    guard.wait().unwrap();
}

async fn run(script: &str, idle: Option<Duration>) -> Ended {
    let mut program = Program::new("sh", LONG);
    program.command().args(["-c", script]).env("WORD", "b");
    program.run(|line| line != "a", idle).await.unwrap()
}

async fn outputs_and_exit_codes_are_passed_on() {
    let ended = run("echo a; echo $WORD; echo c >&2; cat", None).await;
    assert!(ended.success && !ended.silent, "{ended:?}");
    assert_eq!(
        (&ended.lines[..], &*ended.messages),
        (&["b".to_owned()][..], "c")
    );
    let ended = run("exit 3", None).await;
    assert!(!ended.success && !ended.silent, "{ended:?}");
    let ended = Program::new("/nowhere", LONG)
        .run(|_| true, None)
        .await
        .unwrap();
    assert!(
        !ended.success && ended.messages.starts_with("cannot run /nowhere"),
        "{ended:?}"
    );
}

async fn silent_programs_are_ended() {
    let ended = run("echo b; exec sleep 600", Some(SHORT)).await;
    assert!(ended.silent && !ended.success, "{ended:?}");
}

async fn all_has_ended_when_a_run_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    // Both processes keep it open for writing until they end.
    let script = format!("exec 3>{}; sleep 600 & echo begun; wait", fifo.display());
    // Waits for the program to open it, too.
    let opened = tokio::task::spawn_blocking(move || File::open(fifo).unwrap());
    let (begun, mut has_begun) = mpsc::unbounded_channel();
    let mut program = Program::new("sh", LONG);
    program.command().args(["-c", &script]);
    let wanted = |_: &str| begun.send(()).is_ok();
    tokio::select! {
        ended = program.run(wanted, None) => panic!("{ended:?}"),
        begun = has_begun.recv() => begun.unwrap(),
    }
    assert_eq!(opened.await.unwrap().read(&mut [0]).unwrap(), 0);
}
