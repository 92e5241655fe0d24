//! Nodes that are stopped, killed or hang: every ref gets to every target, and pushes to one never overlap.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    Node, PROGRAM, World, check, git, now, pause, pushes, request, script, text, try_git,
};
use crate::targets::{daemon, free_port, sshd};

/// Nodes are killed this often.
const KILL: Duration = Duration::from_secs(4);
const PROJECTS: usize = 3;
const CLIENTS: usize = 3;

#[test]
fn gr_t123_to_t125_a_push_that_a_stopped_node_leaves_is_done_by_another() {
    let world = World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\n");
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    fs::write(target.join("slow"), "600").unwrap();
    let node = world.node(&["--drain-sec", "0"]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("the push has begun", || pushes(&target) == 1);
    assert!(node.stop());
    fs::remove_file(target.join("slow")).unwrap();
    // Events while all are stopped, too.
    world.commit("app", "refs/heads/more");
    world.notify("app", &["refs/heads/more"]);
    let node = world.node(&[]);
    world.until_equal("app", "app");
    // With time to drain, a push ends before the node does.
    fs::write(target.join("slow"), "1").unwrap();
    let done = pushes(&target);
    world.commit("app", "refs/heads/last");
    world.notify("app", &["refs/heads/last"]);
    world.until("the push has begun", || pushes(&target) > done);
    assert!(node.stop());
    assert_eq!(world.row()["state"], "idle");
    world.until_equal("app", "app");
    check(&target);
}

#[test]
fn a_node_that_drains_takes_events_and_a_second_signal_ends_it() {
    let world = World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\n");
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    fs::write(target.join("slow"), "600").unwrap();
    let node = world.node(&["--drain-sec", "600"]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("the push has begun", || pushes(&target) == 1);
    node.signal(Signal::INT);
    world.until("it drains", || world.log().contains("stopping; "));
    let event = r#"{"ref":"refs/heads/more","repository":{"full_name":"app"}}"#;
    let url = format!("{}/_git/events", node.url);
    assert_eq!(request(&url, "POST", &[], event).0, 202);
    assert!(node.stop());
    assert_eq!(world.row()["state"], "delayed", "{}", world.row());
}

/// A node that hangs cannot kill its push when it loses the job: the guard does, before another node may push.
#[test]
fn a_push_of_a_hanging_node_ends_before_another_begins() {
    let world = World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\n");
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    fs::write(target.join("slow"), "600").unwrap();
    let hanging = world.node(&["--node", "hanging"]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("the push has begun", || pushes(&target) == 1);
    hanging.signal(Signal::STOP);
    fs::remove_file(target.join("slow")).unwrap();
    let _other = world.node(&["--node", "other"]);
    world.until_equal("app", "app");
    hanging.signal(Signal::CONT);
    world.commit("app", "refs/heads/more");
    world.notify("app", &["refs/heads/more"]);
    world.until_equal("app", "app");
    check(&target);
}

/// If git is killed, for example for lack of memory, what it started at a local target would go on.
#[test]
fn what_a_killed_git_started_ends_before_the_next_push() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nreplicationRetry = 0\n",
    );
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    fs::write(target.join("slow"), "600").unwrap();
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("the push has begun", || pushes(&target) == 1);
    fs::remove_file(target.join("slow")).unwrap();
    let (git, _) = process(|words| {
        words[0] == "git" && words.contains(&"push".to_owned()) && at(words, &target)
    });
    kill_process(git, Signal::KILL).unwrap();
    world.until_equal("app", "app");
    check(&target);
}

/// The node that starts last sets the lock's time-out.
#[test]
fn the_guard_knows_the_time_out_of_the_job() {
    let world = World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\n");
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    fs::write(target.join("slow"), "600").unwrap();
    let _node = world.node(&["--drain-sec", "0", "--lock-timeout-sec", "300"]);
    assert!(world.node(&[]).stop());
    world.notify("app", &["refs/heads/trunk"]);
    world.until("the push has begun", || pushes(&target) >= 1);
    let (_, words) = process(|words| words.contains(&"guard".to_owned()) && at(words, &target));
    let silence = words
        .iter()
        .skip_while(|word| *word != "--silence-ms")
        .nth(1);
    assert_eq!(silence.unwrap(), "600");
}

/// The process with such words in its command line.
fn process(wanted: impl Fn(&[String]) -> bool) -> (Pid, Vec<String>) {
    let processes = fs::read_dir("/proc").unwrap();
    let found = processes.filter_map(|entry| {
        let path = entry.ok()?.path();
        let id = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
        let line = text(&fs::read(path.join("cmdline")).ok()?);
        let words: Vec<String> = line.split('\0').map(str::to_owned).collect();
        wanted(&words).then_some((id, words))
    });
    found.last().unwrap()
}

fn at(words: &[String], target: &Path) -> bool {
    words.iter().any(|word| Path::new(word) == target)
}

/// What a killed git leaves at its target must not be in the way of the next push, above all locks of refs.
#[test]
fn a_killed_push_leaves_no_locks() {
    // It may take longer to die than a few retries without a delay.
    let world = World::new(
        "[replication]\nupdateRefErrorMaxRetries = 1000\n\
         [remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nreplicationRetry = 0\n",
    );
    world.project("app");
    let target = world.target("app");
    // Refs are locked while this runs.
    let hook =
        "#!/bin/sh\n[ \"$1\" = prepared ] && [ -e slow ] && touch locked && sleep 600\nexit 0\n";
    script(&target.join("hooks/reference-transaction"), hook);
    for (round, how) in ["killed", "stopped", "hanging"].into_iter().enumerate() {
        fs::write(target.join("slow"), "0").unwrap();
        let name = format!("refs/heads/{how}");
        world.commit("app", &name);
        let node = world.node(&["--drain-sec", "0"]);
        world.notify("app", &[&name]);
        world.until("the ref is locked", || target.join("locked").exists());
        fs::remove_file(target.join("slow")).unwrap();
        fs::remove_file(target.join("locked")).unwrap();
        let hanging = match how {
            "killed" => {
                drop(node);
                None
            }
            "stopped" => {
                assert!(node.stop());
                None
            }
            _ => {
                node.signal(Signal::STOP);
                Some(node)
            }
        };
        let _other = world.node(&[]);
        world.until(&format!("round {round}: the ref arrives"), || {
            assert_ne!(world.row()["state"], "dead", "{}", world.row());
            crate::harness::refs(&target).contains_key(&name)
        });
        drop(hanging);
    }
    check(&target);
}

fn seconds() -> Duration {
    let seconds = std::env::var("GIT_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(30))
}

/// Clients push to all projects, whose hooks notify; of two nodes, one is killed every few seconds.
#[test]
fn gr_s05_every_ref_arrives_while_nodes_are_killed() {
    let world = World::new("");
    let port = free_port();
    let _daemon = daemon(port, &world.path("targets"));
    let ssh = sshd(&world.path("ssh"));
    let (b, command) = match &ssh {
        Some((_, port, command)) => (format!("ssh://127.0.0.1:{port}$DIR/b"), command.as_str()),
        None => ("file://$DIR/b".to_owned(), "ssh"),
    };
    let every = "replicationRetry = 0\npush = +refs/*:refs/*\n";
    // Two remotes push to `b`, and spell it differently.
    world.configure(&format!(
        "[replication]\nupdateRefErrorMaxRetries = 1000\n\
         [remote \"a\"]\nurl = $DIR/a1/${{name}}.git\nurl = git://127.0.0.1:{port}/a2/${{name}}.git\nthreads = 3\nreplicationDelay = 1\n{every}\
         [remote \"b\"]\nurl = {b}/${{name}}.git\nthreads = 2\nreplicationDelay = 0\n{every}\
         [remote \"c\"]\nurl = {b}/${{name}}\nreplicationDelay = 2\n{every}",
    ));
    let names: Vec<String> = (0..PROJECTS).map(|number| format!("p{number}")).collect();
    let mut targets = Vec::new();
    for name in &names {
        let source = world.project(name);
        let store = format!("lmdb:{}", world.path("store").display());
        let config = world.path("replication.config").display().to_string();
        script(
            &source.join("hooks/post-receive"),
            &format!(
                "#!/bin/sh\nset --\nwhile read -r old new ref; do set -- \"$@\" \"$ref\"; done\nexec {PROGRAM} notify --store {store} --config {config} {name} \"$@\"\n"
            ),
        );
        for remote in ["a1", "a2", "b"] {
            targets.push((
                name.clone(),
                format!("{remote}/{name}"),
                world.target(&format!("{remote}/{name}")),
            ));
        }
    }
    let (stop, events, mut kills) = (AtomicBool::new(false), AtomicUsize::new(0), 0);
    let began = now();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (world, names, stop, events) = (&world, &names, &stop, &events);
            scope.spawn(move || push_until(world, client, names, stop, events));
        }
        let start = |number: usize| {
            let name = format!("n{number}");
            let arguments = ["--node", &name, "--drain-sec", "1"];
            world.node_with(&arguments, &[("GIT_SSH_COMMAND", command)])
        };
        let mut nodes: Vec<Node> = (0..2).map(start).collect();
        while now().saturating_sub(began) < seconds() {
            pause(KILL);
            // SIGKILL. The other one goes on.
            drop(nodes.remove(0));
            kills += 1;
            nodes.push(start(kills + 1));
        }
        stop.store(true, Ordering::Relaxed);
        for (project, target, _) in &targets {
            world.until_equal(project, target);
        }
        world.until("all are idle", || {
            world.queue().iter().all(|row| row["state"] == "idle")
        });
    });
    let pushed: usize = targets.iter().map(|(.., path)| pushes(path)).sum();
    for (.., path) in &targets {
        check(path);
    }
    let events = events.into_inner();
    println!(
        "{events} pushes of clients for 4 targets each, {kills} kills, {pushed} pushes; all arrived after {:.0?}",
        now().saturating_sub(began)
    );
    assert!(events > 0 && pushed < events * 4);
}

fn push_until(
    world: &World,
    client: usize,
    names: &[String],
    stop: &AtomicBool,
    events: &AtomicUsize,
) {
    let own = world.path(&format!("client{client}"));
    git(&["init", "-q", "--bare", own.to_str().unwrap()]);
    let dir = format!("--git-dir={}", own.display());
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // Sometimes a branch goes on, sometimes there is a new one.
        let name = format!("refs/heads/c{client}-{}", round % 20);
        let commit = world.commit_in(&own, &name);
        let source = world.repository(&names[(round + client) % names.len()]);
        let pushed = try_git(&[
            &dir,
            "push",
            "-q",
            "--force",
            source.to_str().unwrap(),
            &format!("{commit}:{name}"),
        ]);
        assert!(pushed.status.success(), "{}", text(&pushed.stderr));
        events.fetch_add(1, Ordering::Relaxed);
    }
}
