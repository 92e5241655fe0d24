//! Events from all sides.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::harness::{PROGRAM, World, exchange, git, request, script, text};

const FAST: &str = "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\n";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn gr_t113_a_push_notifies_through_the_hook() {
    let world = World::new(FAST);
    let source = world.project("app");
    let store = format!("lmdb:{}", world.path("store").display());
    let config = world.path("replication.config").display().to_string();
    let hook = format!(
        "#!/bin/sh\nset --\nwhile read -r old new ref; do set -- \"$@\" \"$ref\"; done\nexec {PROGRAM} notify --store {store} --config {config} app \"$@\"\n"
    );
    script(&source.join("hooks/post-receive"), &hook);
    let client = world.path("client");
    git(&["init", "-q", "--bare", client.to_str().unwrap()]);
    world.commit_in(&client, "refs/heads/trunk");
    world.commit_in(&client, "refs/heads/more");
    let _node = world.node(&[]);
    git(&[
        &format!("--git-dir={}", client.display()),
        "push",
        "-q",
        "--all",
        source.to_str().unwrap(),
    ]);
    world.until_equal("app", "app");
}

#[test]
fn events_of_a_stream_are_followed() {
    let world = World::new(FAST);
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    let mut child = world
        .command("events")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"not json \xff\n").unwrap();
    writeln!(stdin, r#"{{"type":"comment-added"}}"#).unwrap();
    writeln!(
        stdin,
        r#"{{"type":"ref-updated","refUpdate":{{"refName":"refs/heads/trunk","project":"app"}}}}"#
    )
    .unwrap();
    drop(stdin);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success());
    assert!(
        text(&ended.stderr).contains("skipped an event"),
        "{}",
        text(&ended.stderr)
    );
    world.until_equal("app", "app");
}

#[test]
fn events_follow_the_configuration() {
    let world = World::new(FAST);
    let mut events = world.command("events");
    let mut child = events.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let event = r#"{"ref":"refs/heads/trunk","repository":{"full_name":"app"}}"#;
    writeln!(stdin, "{event}").unwrap();
    world.until("the event is taken", || world.queue().len() == 1);
    world.configure(&(FAST.to_owned() + &FAST.replace("\"a\"", "\"b\"")));
    writeln!(stdin, "{event}").unwrap();
    world.until("the new remote has it, too", || world.queue().len() == 2);
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_client_that_hangs_does_not_keep_a_node_from_stopping() {
    let world = World::new(FAST);
    let node = world.node(&[]);
    let host = node.url.strip_prefix("http://").unwrap();
    let mut client = std::net::TcpStream::connect(host).unwrap();
    client
        .write_all(b"POST /_git/events HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    // The node has accepted the other connection before.
    assert_eq!(request(&format!("{}/_up", node.url), "GET", &[], "").0, 200);
    assert!(node.stop());
}

/// Git's names are bytes.
#[test]
fn a_name_that_is_no_text_is_pushed_with_all_refs() {
    let world = World::new(FAST);
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    let name = OsStr::from_bytes(b"refs/heads/\xff");
    let notified = world.command("notify").arg("app").arg(name).output();
    assert!(notified.unwrap().status.success());
    world.until_equal("app", "app");
}

fn signature(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let mut hex = String::new();
    for byte in mac.finalize().into_bytes() {
        write!(hex, "{byte:02x}").unwrap();
    }
    hex
}

#[test]
fn webhooks_are_signed() {
    let world = World::new(FAST);
    world.project("team/app");
    world.commit("team/app", "refs/heads/trunk");
    std::fs::write(world.path("secret"), format!("{SECRET}\n")).unwrap();
    let secret = world.path("secret");
    let node = world.node(&["--secret-file", secret.to_str().unwrap()]);
    let (events, queue) = (
        format!("{}/_git/events", node.url),
        format!("{}/_git/queue", node.url),
    );
    let body = r#"{"ref":"refs/heads/trunk","repository":{"full_name":"team/app"}}"#;
    let (signed, bearer) = (signature(body), format!("Bearer {SECRET}"));
    let (github, wrong) = (
        format!("sha256={signed}"),
        format!("sha256={}", signature("other")),
    );
    let send = |headers: &[(&str, &str)], body: &str| request(&events, "POST", headers, body).0;
    for refused in [
        &[][..],
        &[("X-Hub-Signature-256", wrong.as_str())],
        &[("X-Gitea-Signature", "zz")],
        &[("Authorization", "Bearer x")],
    ] {
        assert_eq!(send(refused, body), 401, "{refused:?}");
    }
    assert_eq!(request(&queue, "GET", &[], "").0, 401);
    assert!(world.queue().is_empty());
    // Gitea calls the directory of Team/App team/app.git.
    let gitea = body.replace("team/app", "Team/App");
    let by_gitea = signature(&gitea);
    let by_gitea = [("X-Gitea-Signature", &*by_gitea), ("X-Gitea-Event", "push")];
    assert_eq!(send(&by_gitea, &gitea), 202);
    assert_eq!(world.row()["project"], "team/app");
    assert_eq!(send(&[("X-Hub-Signature-256", &github)], body), 202);
    world.until_equal("team/app", "team/app");
    assert_eq!(
        send(&[("Authorization", &bearer)], r#"{"zen":"keep it simple"}"#),
        200
    );
    // Other events may have a short name of a tag or a branch as their `ref`.
    let tag = r#"{"ref":"v1","ref_type":"tag","repository":{"full_name":"team/app"}}"#;
    for kind in ["X-Gitea-Event", "X-GitHub-Event"] {
        assert_eq!(
            send(&[("Authorization", &bearer), (kind, "create")], tag),
            200
        );
    }
    let form = [
        ("Authorization", &*bearer),
        ("Content-Type", "application/x-www-form-urlencoded"),
    ];
    let (status, answer) = request(&events, "POST", &form, "payload=%7B%7D");
    let reason = answer["reason"].as_str().unwrap();
    assert!(
        status == 400 && reason.contains("application/json"),
        "{reason}"
    );
    let (status, answer) = request(
        &events,
        "POST",
        &[("Authorization", &bearer)],
        r#"{"ref":"main","repository":{"full_name":"../x"}}"#,
    );
    assert_eq!((status, &answer["error"]), (400, &"bad_request".into()));
    assert_eq!(
        request(&queue, "GET", &[("Authorization", &bearer)], "").0,
        200
    );
    assert_eq!(request(&format!("{}/_up", node.url), "GET", &[], "").0, 200);
}

#[test]
fn gitlab_sends_the_secret_and_so_does_prometheus() {
    let world = World::new(FAST);
    world.project("team/app");
    world.commit("team/app", "refs/heads/trunk");
    std::fs::write(world.path("secret"), SECRET).unwrap();
    let secret = world.path("secret");
    let node = world.node(&["--secret-file", secret.to_str().unwrap()]);
    let events = format!("{}/_git/events", node.url);
    let push = r#"{"object_kind":"push","ref":"refs/heads/trunk","project":{"path_with_namespace":"team/app"}}"#;
    for (token, kind, status) in [
        ("x", "Push Hook", 401),
        (SECRET, "Note Hook", 200),
        (SECRET, "Push Hook", 202),
        (SECRET, "Tag Push Hook", 202),
    ] {
        let headers = [("X-Gitlab-Token", token), ("X-Gitlab-Event", kind)];
        assert_eq!(request(&events, "POST", &headers, push).0, status, "{kind}");
    }
    world.until("it is pushed", || world.row()["state"] == "idle");
    let metrics = format!("{}/_metrics", node.url);
    assert_eq!(request(&metrics, "GET", &[], "").0, 401);
    let bearer = format!("Bearer {SECRET}");
    let (status, text) = exchange(&metrics, "GET", &[("Authorization", &bearer)], "");
    let pushed = r#"davenport_git_pushes_total{remote="a",outcome="pushed"}"#;
    assert!(status == 200 && text.contains(pushed), "{text}");
    assert!(text.contains("davenport_git_push_seconds"), "{text}");
}

#[test]
fn only_a_node_creates_a_store() {
    let world = World::new(FAST);
    std::fs::remove_dir_all(world.path("store")).unwrap();
    for arguments in [
        &["notify", "app"][..],
        &["events"],
        &["start", "--all"],
        &["queue"],
    ] {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .env("DAVENPORT_STORE_URL", world.store())
            .env("DAVENPORT_GIT_CONFIG", world.path("replication.config"))
            .env("DAVENPORT_GIT_REPOSITORIES", world.path("repositories"))
            .stdin(Stdio::null());
        let output = command.output().unwrap();
        let told = text(&output.stderr);
        let expected = format!("no store at {}; check --store", world.store());
        assert!(
            output.status.code() == Some(2) && told.contains(&expected),
            "{arguments:?}: {told}"
        );
        assert!(!world.path("store").exists(), "{arguments:?}");
    }
    let _node = world.node(&[]);
    assert!(world.queue().is_empty());
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    let world = World::new(FAST);
    let serve = |arguments: &[&str]| {
        let mut command = world.command("serve");
        let repositories = world.path("repositories");
        let output = command
            .env("DAVENPORT_GIT_REPOSITORIES", repositories)
            .args(arguments)
            .output()
            .unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, told) = serve(&["--listen", "0.0.0.0:0"]);
    assert!(
        code == Some(2) && told.contains("set --secret-file"),
        "{told}"
    );
    std::fs::write(world.path("secret"), "short").unwrap();
    let (code, told) = serve(&[
        "--listen",
        "0.0.0.0:0",
        "--secret-file",
        world.path("secret").to_str().unwrap(),
    ]);
    assert!(
        code == Some(2) && told.contains("openssl rand -hex 32"),
        "{told}"
    );
    let (code, told) = serve(&["--node", &"n".repeat(200)]);
    assert!(code == Some(2) && told.contains("--node: "), "{told}");
    // It may be mounted later.
    let (code, told) = serve(&["--repositories", "/nowhere/at/all"]);
    assert!(code == Some(1) && told.contains("--repositories"), "{told}");
    // So may the configuration.
    std::fs::remove_file(world.path("replication.config")).unwrap();
    let (code, told) = serve(&[]);
    assert!(code == Some(1) && told.contains("--config"), "{told}");
    world.configure("[remote \"a\"]\nurl = ext::sh -c x ${name}\n");
    let (code, told) = serve(&[]);
    assert!(
        code == Some(2) && told.contains("replication.config: remote.a.url is"),
        "{told}"
    );
    for bad in [
        &["../x"][..],
        &["-x"],
        &["app", "--", "--mirror"],
        &["app", "refs/heads/a:b"],
    ] {
        let output = world
            .command("notify")
            .arg("--")
            .args(bad)
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{bad:?}: {}",
            text(&output.stderr)
        );
    }
    let unknown = Command::new(PROGRAM)
        .args(["queue", "--store", "nothing:"])
        .output()
        .unwrap();
    assert!(
        text(&unknown.stderr).contains("check --store"),
        "{}",
        text(&unknown.stderr)
    );
}
