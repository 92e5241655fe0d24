//! Targets of all kinds: `git daemon` and ssh on loopback.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{World, check, refs, script, until};

/// A server that ends with the test.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn answers(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// `git daemon` itself, because killing `git` would leave it running.
pub(crate) fn daemon(port: u16, directory: &Path) -> Server {
    let path = crate::harness::git(&["--exec-path"]);
    let child = Command::new(Path::new(&path).join("git-daemon"))
        .args([
            "--reuseaddr",
            "--export-all",
            "--enable=receive-pack",
            "--listen=127.0.0.1",
            &format!("--port={port}"),
        ])
        .arg(format!("--base-path={}", directory.display()))
        .arg(directory)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(until(|| answers(port)));
    Server(child)
}

#[test]
fn an_offline_daemon_is_retried_until_it_is_back() {
    let port = free_port();
    let world = World::new(&format!(
        "[remote \"a\"]\nurl = git://127.0.0.1:{port}/${{name}}.git\nreplicationDelay = 0\nreplicationRetry = 1\n"
    ));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it will be retried", || world.row()["state"] == "retrying");
    let row = world.row();
    assert!(
        row["reason"]
            .as_str()
            .unwrap()
            .contains("unable to connect"),
        "{row}"
    );
    // What arrives meanwhile waits, too, and goes with the retry.
    world.commit("app", "refs/heads/more");
    world.notify("app", &["refs/heads/more"]);
    assert_eq!(
        (&world.row()["state"], &world.row()["arrived"]),
        (&"retrying".into(), &"refs/heads/more".into())
    );
    let target = world.target("app");
    let _server = daemon(port, &world.path("targets"));
    assert!(world.start(&["--all", "--now", "--wait"]).status.success());
    world.until_equal("app", "app");
    check(&target);
}

#[test]
fn a_daemon_without_the_repository_says_so() {
    let port = free_port();
    let world = World::new(&format!(
        "[remote \"a\"]\nurl = git://127.0.0.1:{port}/${{name}}.git\nreplicationDelay = 0\n"
    ));
    let _server = daemon(port, &world.path("targets"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    world.notify("app", &[]);
    world.until("it is given up", || world.row()["state"] == "dead");
    assert!(
        world.row()["reason"]
            .as_str()
            .unwrap()
            .contains("only file and ssh targets can be created"),
        "{}",
        world.row()
    );
    world.target("app");
    assert!(world.start(&["--all", "--wait", "--now"]).status.success());
    world.until_equal("app", "app");
}

/// A server with keys of its own, and the command that reaches it; `None` where there is no `sshd`.
pub(crate) fn sshd(directory: &Path) -> Option<(Server, u16, String)> {
    let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from);
    let program = program.into_iter().find(|path| path.exists())?;
    fs::create_dir(directory).unwrap();
    let file = |name: &str| directory.join(name).display().to_string();
    for name in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &file(name)])
            .status();
        assert!(made.unwrap().success());
    }
    fs::copy(file("user.pub"), file("authorized")).unwrap();
    let port = free_port();
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nMaxStartups 100\n",
        file("host"),
        file("authorized")
    );
    fs::write(file("sshd_config"), config).unwrap();
    // Where root's daemon separates its privileges.
    let _ = fs::create_dir_all("/run/sshd");
    let child = (Command::new(program).args(["-D", "-e", "-f", &file("sshd_config")]))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(until(|| answers(port)));
    let ssh = format!(
        "ssh -i {} -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        file("user")
    );
    Some((Server(child), port, ssh))
}

#[test]
fn gr_t100_repositories_are_created_and_filled_over_ssh() {
    let world = World::new("[remote \"a\"]\nurl = /none/${name}\n");
    let Some((_server, port, ssh)) = sshd(&world.path("ssh")) else {
        println!("there is no sshd, so pushes over ssh are not tested");
        return;
    };
    world.configure(&format!(
        "[remote \"a\"]\nurl = ssh://127.0.0.1:{port}$DIR/${{name}}.git\nreplicationDelay = 0\n"
    ));
    // The name stands in a command for the server's shell.
    for name in ["team/app", "it's; touch $HOME/escaped"] {
        let source = world.project(name);
        world.commit(name, "refs/heads/trunk");
        let node = world.node_with(&[], &[("GIT_SSH_COMMAND", &ssh)]);
        world.notify(name, &[]);
        world.until("it is pushed", || refs(&world.at(name)) == refs(&source));
        assert_eq!(
            fs::read_to_string(world.at(name).join("HEAD")).unwrap(),
            "ref: refs/heads/trunk\n"
        );
        assert!(node.stop());
        check(&world.at(name));
    }
}

/// Where there is no server: the command that git runs, without the network.
#[test]
fn an_ssh_command_gets_the_repository_and_nothing_else() {
    let world = World::new(
        "[remote \"a\"]\nurl = git@mirror.example.com:${name}.git\nurl = ssh://mirror.example.com/~/b/${name}.git\nreplicationDelay = 0\n",
    );
    let ssh = world.path("ssh");
    script(
        &ssh,
        "#!/bin/sh\nfor word; do echo \"$word\"; done >>\"$0.words\"\nfor word; do :; done\ncd \"$(dirname \"$0\")/targets\" && HOME=$PWD exec sh -c \"$word\"\n",
    );
    world.project("team/app");
    world.commit("team/app", "refs/heads/trunk");
    let _node = world.node_with(&[], &[("GIT_SSH_COMMAND", ssh.to_str().unwrap())]);
    world.notify("team/app", &["refs/heads/trunk"]);
    world.until_equal("team/app", "team/app");
    world.until_equal("team/app", "b/team/app");
    let words = fs::read_to_string(world.path("ssh.words")).unwrap();
    assert!(
        words.contains("git@mirror.example.com\ngit-receive-pack 'team/app.git'\n"),
        "{words}"
    );
    assert!(
        words.contains("git init --quiet --bare --initial-branch=trunk 'team/app.git'\n"),
        "{words}"
    );
}

/// Otherwise, it would keep the target's place for ever.
#[test]
fn a_connection_that_is_gone_ends() {
    let world = World::new(
        "[remote \"a\"]\nurl = git@mirror.example.com:${name}.git\nreplicationDelay = 0\n",
    );
    script(
        &world.path("bin/ssh"),
        "#!/bin/sh\necho \"$*\" >&2\nexit 255\n",
    );
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", world.path("bin").display());
    let _node = world.node_with(&[], &[("PATH", &path)]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it will be retried", || world.row()["state"] == "retrying");
    let options = "-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=30";
    let reason = world.row()["reason"].to_string();
    assert!(reason.contains(options), "{reason}");
}

#[test]
fn only_a_repository_that_was_created_is_logged_as_created() {
    let world = World::new(
        "[remote \"a\"]\nurl = git@mirror.example.com:${name}.git\nreplicationDelay = 0\n",
    );
    let ssh = world.path("ssh");
    let missing = "fatal: 'app.git' does not appear to be a git repository";
    script(
        &ssh,
        &format!("#!/bin/sh\necho \"{missing}\" >&2\nexit 128\n"),
    );
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node_with(&[], &[("GIT_SSH_COMMAND", ssh.to_str().unwrap())]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it is given up", || world.row()["state"] == "dead");
    assert!(
        !world.log().contains("created a repository"),
        "{}",
        world.log()
    );
}

#[test]
fn the_queue_tells_why_ssh_failed() {
    let world = World::new(
        "[remote \"a\"]\nurl = git@mirror.example.com:${name}.git\nreplicationDelay = 0\n",
    );
    let ssh = world.path("ssh");
    let denied = "git@mirror.example.com: Permission denied (publickey).";
    script(
        &ssh,
        &format!("#!/bin/sh\nprintf 'a warning\\r\\n{denied}\\r\\n' >&2\nexit 255\n"),
    );
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node_with(&[], &[("GIT_SSH_COMMAND", ssh.to_str().unwrap())]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it will be retried", || world.row()["state"] == "retrying");
    assert_eq!(world.row()["reason"], denied);
}
