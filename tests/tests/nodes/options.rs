//! Options of a node, the errors for invalid ones, and its output.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;

use e2e::{PATIENCE, Start, until};

#[tokio::test]
async fn a_bad_configuration_is_refused_with_file_line_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("davenport.toml");
    let path = path.to_str().unwrap();
    let refused = async |text: &str| {
        std::fs::write(path, text).unwrap();
        let start = Start::node("davenport", directory.path()).args(&["--config", path]);
        let (code, out, error) = start.output().await.unwrap();
        assert_eq!((code, out), (Some(2), String::new()), "{error}");
        error
    };
    let error = refused("[replicator]\nmax_jobs = 1\nmax_chrun = 2\n").await;
    let expected =
        format!("{path}:3:1: replicator.max_chrun: unknown option; did you mean `max_churn`?");
    assert!(error.contains(&expected), "{error}");
    let error = refused("[replicator]\ninterval_sec = 0\n").await;
    let expected =
        format!("{path}:2:1: replicator.interval_sec: `interval_sec` must be at least 1");
    assert!(error.contains(&expected), "{error}");
    let error = refused("").await;
    assert!(error.contains("no administrator is configured"), "{error}");
    assert!(error.contains("--admin NAME:PASSWORD"), "{error}");
    assert!(!directory.path().join("data").exists(), "nothing is begun");
}

#[tokio::test]
async fn what_cannot_be_had_is_said_before_anything_is_begun() {
    let directory = tempfile::tempdir().unwrap();
    let node = |args: &[&str]| {
        Start::node("davenport", directory.path())
            .admin()
            .args(args)
    };
    let running = node(&[]).start().await.unwrap();
    let address = running.url.strip_prefix("http://").unwrap();
    let (code, _, error) = node(&["--listen", address]).output().await.unwrap();
    assert_eq!(code, Some(2), "{error}");
    let says = format!("cannot listen on {address}");
    assert!(error.contains(&says), "{error}");
    running.stop().await.unwrap();
    for (args, says) in [
        (
            ["--listen", "5985"],
            "`listen` is \"5985\"; give an address",
        ),
        (["--set", "log.level=inof"], "`level` is \"inof\""),
        (
            ["--set", "network.egress.deny=10.0.0.256"],
            "the egress rule `10.0.0.256` is not valid",
        ),
        (["--store", "sqlite:x"], "use lmdb:DIRECTORY"),
        (["--store", "fdb:/nowhere/fdb.cluster"], "fdb"),
        (
            ["--set", "replicator.max_jobs=many"],
            "--set: replicator.max_jobs: must be a number",
        ),
        (
            ["--set", "http.cert_file=/nowhere"],
            "set both `cert_file` and `key_file`, or neither",
        ),
        (["--roles", "nothing"], "api_frontend"),
    ] {
        let (code, out, error) = node(&args).output().await.unwrap();
        assert_eq!((code, out), (Some(2), String::new()), "{error}");
        assert!(error.contains(says), "{args:?}: {error}");
    }
    let keys = directory.path().join("davenport.keys");
    assert!(!keys.exists(), "no keys for a store that is not there");
    // A different key file from the one that the store was used with.
    let other = directory.path().join("other.keys");
    let keys = format!("keys.file={}", other.display());
    let says = "give this node the key file of the others";
    let (code, _, error) = node(&["--set", &keys]).output().await.unwrap();
    assert!(code == Some(2) && error.contains(says), "{error}");
    assert!(!other.exists(), "no keys for a store that has others");
    std::fs::write(&other, format!("other {}\n", "0f".repeat(32))).unwrap();
    std::fs::set_permissions(&other, Permissions::from_mode(0o644)).unwrap();
    let (code, _, error) = node(&["--set", &keys]).output().await.unwrap();
    assert!(
        code == Some(2) && error.contains("run: chmod 600"),
        "{error}"
    );
    std::fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
    let (code, _, error) = node(&["--set", &keys]).output().await.unwrap();
    assert!(code == Some(2) && error.contains(says), "{error}");
}

#[tokio::test]
async fn a_configuration_can_be_checked_without_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let check = Start::node("davenport", directory.path())
        .admin()
        .args(&["--check-config"]);
    let (code, out, error) = check.output().await.unwrap();
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "the configuration is valid\n"),
        "{error}"
    );
    assert!(error.contains("davenport hash-password"), "{error}");
    assert!(!directory.path().join("data").exists());
    let missing = ["--set", "rules.passwords_file=/nonexistent/passwords.json"];
    let (code, _, error) = check.args(&missing).output().await.unwrap();
    let reason = "cannot read the passwords in /nonexistent/passwords.json";
    assert!(code == Some(2) && error.contains(reason), "{error}");
    let (code, file, _) = Start::new("davenport", &["config"]).output().await.unwrap();
    assert_eq!(code, Some(0));
    let path = directory.path().join("all.toml");
    std::fs::write(&path, file).unwrap();
    let check = Start::new(
        "davenport",
        &[
            "serve",
            "--check-config",
            "--config",
            path.to_str().unwrap(),
        ],
    );
    let (code, _, error) = check.admin().output().await.unwrap();
    assert_eq!(code, Some(0), "{error}");
}

#[tokio::test]
async fn the_environment_turns_roles_off() {
    let directory = tempfile::tempdir().unwrap();
    let start = Start::node("davenport", directory.path())
        .variable("COUCHDB_NODE_TYPE_API_FRONTEND", "False")
        .variable("DAVENPORT_LOG_FORMAT", "json");
    // A node that only replicates needs no administrator, and has little to say.
    let node = start.start().await.unwrap();
    let nobody = node.user("", "");
    let (up, _) = nobody.get("/_up").await.unwrap();
    let (metrics, text) = nobody.get("/_metrics").await.unwrap();
    let (other, _) = nobody.get("/_session").await.unwrap();
    assert_eq!(
        (up.as_u16(), metrics.as_u16(), other.as_u16()),
        (200, 200, 404)
    );
    assert!(text.as_str().unwrap().contains("davenport_info{"));
    let (status, log) = node.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    let ready = log
        .lines()
        .find(|line| line.contains("\"message\":\"ready\""))
        .unwrap();
    assert!(ready.contains("\"api_frontend\":false"), "{ready}");
}

#[tokio::test]
async fn sighup_changes_what_can_change_and_keeps_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("davenport.toml");
    let file = |admins: &str, more: &str| {
        std::fs::write(&path, format!("[admins]\n{admins}\n{more}")).unwrap();
    };
    file("anna = \"first\"", "");
    let start = Start::node("davenport", directory.path());
    let node = start
        .args(&["--config", path.to_str().unwrap()])
        .start()
        .await
        .unwrap();
    let may = async |name: &str, password: &str| {
        let answer = node.user(name, password).get("/_active_tasks").await;
        answer.unwrap().0 == 200
    };
    assert!(may("anna", "first").await);
    let hash = Start::new("davenport", &["hash-password"])
        .output_of("second")
        .await
        .unwrap();
    file(
        &format!("berta = \"{}\"", hash.trim()),
        "[store]\nmap_size_gb = 32\n",
    );
    node.signal(e2e::Signal::HUP).unwrap();
    until("the log reports it", || {
        node.log().contains("configuration reloaded")
    })
    .await
    .unwrap();
    assert!(may("berta", "second").await);
    assert!(!may("anna", "first").await);
    let log = node.log();
    assert!(log.contains("takes effect after a restart"), "{log}");
    assert!(log.contains("store.map_size_gb"), "{log}");
    file("", "");
    node.signal(e2e::Signal::HUP).unwrap();
    until("the log reports it", || {
        node.log().contains("configuration not reloaded")
    })
    .await
    .unwrap();
    assert!(may("berta", "second").await);
    let (status, log) = node.stop().await.unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains("second") && !log.contains("first"), "{log}");
}

#[tokio::test]
async fn systemd_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let listener = UnixDatagram::bind(&path).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let start = Start::node("davenport", directory.path()).admin();
    let start = start
        .variable("NOTIFY_SOCKET", path.to_str().unwrap())
        .variable("WATCHDOG_USEC", "200000");
    let node = start.start().await.unwrap();
    let mut told = Vec::new();
    let mut listen_for = |what: &str| {
        let mut text = [0; 200];
        while told.last().is_none_or(|last: &String| last != what) {
            let length = listener.recv(&mut text).unwrap();
            told.push(String::from_utf8_lossy(&text[..length]).into_owned());
        }
    };
    listen_for("READY=1");
    listen_for("WATCHDOG=1");
    node.signal(e2e::Signal::TERM).unwrap();
    listen_for("STOPPING=1");
    let (status, log) = node.ended().await.unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(told[0], "READY=1");
}

/// The parts of a process that `ps` can show.
fn seen(pid: u32) -> String {
    let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap();
    let both = [read("cmdline"), read("environ")].concat();
    String::from_utf8_lossy(&both).replace('\0', "\n")
}

#[tokio::test]
async fn passwords_are_out_of_sight() {
    let directory = tempfile::tempdir().unwrap();
    let start = Start::node("davenport", directory.path())
        .args(&["--admin", "anna:s3cr3t-a", "--admin=berta:s3cr3t-b"])
        .args(&[
            "--set",
            "admins.carla=s3cr3t-c",
            "--set=admins.dora=s3cr3t-d",
        ])
        .variable("DAVENPORT_ADMINS_EMMA", "s3cr3t-e");
    let names = ["anna", "berta", "carla", "dora", "emma"];
    let node = start.start().await.unwrap();
    let shown = seen(node.pid().unwrap());
    assert!(!shown.contains("s3cr3t"), "{shown}");
    assert!(shown.contains("anna:***"), "{shown}");
    for name in names {
        let user = node.user(name, &format!("s3cr3t-{}", &name[..1]));
        assert_eq!(user.get("/_active_tasks").await.unwrap().0, 200, "{name}");
    }
    // The configuration is reloaded without the hidden passwords.
    node.signal(e2e::Signal::HUP).unwrap();
    until("the log reports it", || {
        node.log().contains("configuration reloaded")
    })
    .await
    .unwrap();
    assert!(!node.log().contains("admins."), "{}", node.log());
    for name in names {
        let user = node.user(name, &format!("s3cr3t-{}", &name[..1]));
        assert_eq!(user.get("/_active_tasks").await.unwrap().0, 200, "{name}");
    }
    node.stop().await.unwrap();
    let variable = Start::node("davenport", directory.path());
    let variable = variable.variable("DAVENPORT_ADMIN", "flora:s3cr3t-f");
    let node = variable.start().await.unwrap();
    let shown = seen(node.pid().unwrap());
    assert!(!shown.contains("s3cr3t"), "{shown}");
    let flora = node.user("flora", "s3cr3t-f");
    assert_eq!(flora.get("/_active_tasks").await.unwrap().0, 200);
    node.stop().await.unwrap();
}
