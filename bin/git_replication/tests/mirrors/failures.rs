//! Pushes that fail: each kind has its retries, and what is given up stays.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::harness::{World, git, pushes, refs, script, text};

const FAST: &str = "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nreplicationRetry = 0\nreplicationMaxRetries = 2\n";

#[test]
fn gr_t102_retries_end_in_a_dead_letter_that_start_restarts() {
    let world = World::new(&FAST.replace("$DIR/${name}.git", "git://127.0.0.1:1/${name}.git"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it is given up", || world.row()["state"] == "dead");
    let row = world.row();
    assert_eq!(
        (&row["failures"], &row["refs"]),
        (&3.into(), &"refs/heads/trunk".into()),
        "{row}"
    );
    // The next event tries again, with what is left.
    world.notify("app", &["refs/heads/more"]);
    world.until("it is given up again", || {
        let row = world.row();
        row["state"] == "dead" && row["refs"] == "refs/heads/more, refs/heads/trunk"
    });
    let started = world.start(&["--all", "--now", "--wait"]);
    assert_eq!(started.status.code(), Some(1));
    assert!(
        text(&started.stdout).contains("failed: "),
        "{}",
        text(&started.stdout)
    );
}

#[test]
fn rejected_refs_are_given_up_and_others_are_pushed() {
    let world = World::new(FAST);
    world.project("app");
    let target = world.target("app");
    // Somebody else has pushed to the target.
    let theirs = world.commit_in(&target, "refs/heads/trunk");
    world.commit("app", "refs/heads/trunk");
    let ours = world.commit("app", "refs/heads/other");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk", "refs/heads/other"]);
    world.until("it is given up", || world.row()["state"] == "dead");
    let row = world.row();
    assert_eq!(
        (&row["failures"], &row["refs"]),
        (&1.into(), &"refs/heads/trunk".into()),
        "{row}"
    );
    assert!(
        row["reason"].as_str().unwrap().contains("[rejected]"),
        "{row}"
    );
    assert_eq!(
        refs(&target),
        [
            ("refs/heads/other".to_owned(), ours),
            ("refs/heads/trunk".to_owned(), theirs)
        ]
        .into()
    );
    git(&[
        &format!("--git-dir={}", target.display()),
        "update-ref",
        "-d",
        "refs/heads/trunk",
    ]);
    assert!(world.start(&["--all", "--now", "--wait"]).status.success());
    world.until_equal("app", "app");
}

/// A ref that a target never takes does not put the others off.
#[test]
fn what_arrives_while_a_ref_is_rejected_is_pushed() {
    let world = World::new(&FAST.replace("replicationRetry = 0", "replicationRetry = 60"));
    world.project("app");
    let target = world.target("app");
    let hook = "#!/bin/sh\n[ \"$1\" = refs/heads/bad ] || exit 0\ntouch began\nwhile [ -e wait ]; do sleep 0.1; done\nexit 1\n";
    script(&target.join("hooks/update"), hook);
    fs::write(target.join("wait"), "").unwrap();
    world.commit("app", "refs/heads/bad");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/bad"]);
    world.until("the push has begun", || target.join("began").exists());
    world.commit("app", "refs/heads/good");
    world.notify("app", &["refs/heads/good"]);
    fs::remove_file(target.join("wait")).unwrap();
    world.until("the other ref arrives", || refs(&target).len() == 1);
    world.until("it is given up", || world.row()["state"] == "dead");
    assert_eq!(world.row()["refs"], "refs/heads/bad");
}

#[test]
fn locked_refs_are_retried() {
    let world = World::new(&format!(
        "{FAST}[replication]\nupdateRefErrorMaxRetries = 1000000\n"
    ));
    world.project("app");
    let target = world.target("app");
    world.commit("app", "refs/heads/trunk");
    fs::write(target.join("refs/heads/trunk.lock"), "").unwrap();
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it is retried", || {
        world.log().matches("class=Lock").count() > 3
    });
    fs::remove_file(target.join("refs/heads/trunk.lock")).unwrap();
    world.until_equal("app", "app");
}

#[test]
fn locked_refs_are_given_up_as_configured() {
    let world = World::new(&format!("{FAST}[replication]\nlockErrorMaxRetries = 0\n"));
    world.project("app");
    let target = world.target("app");
    world.commit("app", "refs/heads/trunk");
    fs::write(target.join("refs/heads/trunk.lock"), "").unwrap();
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it is given up", || world.row()["state"] == "dead");
    assert_eq!(world.row()["failures"], 1);
}

#[test]
fn deletions_that_fail_are_given_up() {
    let world = World::new(&format!("{FAST}mirror = true\n"));
    let source = world.project("app");
    let target = world.target("app");
    for name in ["refs/heads/trunk", "refs/heads/old"] {
        world.commit("app", name);
    }
    let _node = world.node(&[]);
    assert!(world.start(&["--all", "--now", "--wait"]).status.success());
    fs::write(target.join("refs/heads/old.lock"), "").unwrap();
    let dir = format!("--git-dir={}", source.display());
    git(&[&dir, "update-ref", "-d", "refs/heads/old"]);
    world.notify("app", &["refs/heads/old"]);
    world.until("it is given up", || world.row()["state"] == "dead");
    let row = world.row();
    assert_eq!(
        (&row["failures"], &row["refs"]),
        (&4.into(), &"refs/heads/old".into()),
        "{row}"
    );
    // The next event tries again.
    fs::remove_file(target.join("refs/heads/old.lock")).unwrap();
    world.commit("app", "refs/heads/new");
    world.notify("app", &["refs/heads/new"]);
    world.until_equal("app", "app");
    world.until("nothing is left", || world.row()["state"] == "idle");
}

#[test]
fn only_deletions_that_fail_are_left() {
    let world = World::new(&format!("{FAST}mirror = true\n"));
    let source = world.project("app");
    let target = world.target("app");
    let names = ["refs/heads/kept", "refs/heads/old", "refs/heads/trunk"];
    for name in names {
        world.commit("app", name);
    }
    let _node = world.node(&[]);
    assert!(world.start(&["--all", "--now", "--wait"]).status.success());
    let hook = "#!/bin/sh\n[ \"$1\" != refs/heads/kept ]\n";
    script(&target.join("hooks/update"), hook);
    let dir = format!("--git-dir={}", source.display());
    for name in &names[..2] {
        git(&[&dir, "update-ref", "-d", name]);
    }
    world.notify("app", &names);
    world.until("it is given up", || world.row()["state"] == "dead");
    let row = world.row();
    assert_eq!(row["refs"], "refs/heads/kept", "{row}");
    assert!(
        refs(&target)
            .keys()
            .eq(["refs/heads/kept", "refs/heads/trunk"])
    );
}

#[test]
fn missing_targets_are_given_up_unless_they_may_be_created() {
    let world = World::new(&format!("{FAST}createMissingRepositories = false\n"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    world.notify("app", &[]);
    world.until("it is given up", || world.row()["state"] == "dead");
    assert!(
        world.row()["reason"]
            .as_str()
            .unwrap()
            .contains("does not appear to be a git repository"),
        "{}",
        world.row()
    );
}

#[test]
fn gr_t150_a_project_without_a_repository_is_not_retried() {
    let world = World::new(FAST);
    world.notify("gone", &["refs/heads/trunk"]);
    // Without any repository, a shared filesystem may not be mounted.
    let _node = world.node(&[]);
    world.until("it is retried", || world.row()["state"] == "retrying");
    let row = world.row();
    assert!(
        row["reason"].as_str().unwrap().contains("is mounted"),
        "{row}"
    );
    world.project("app");
    world.notify("gone", &["refs/heads/trunk"]);
    world.until("it ends", || world.row()["state"] == "idle");
    assert_eq!(world.row()["reason"], "the project has no repository here");
    // Neither is a ref that is gone before it was pushed.
    world.notify("app", &["refs/heads/gone"]);
    world.until("it ends", || {
        world
            .queue()
            .iter()
            .filter(|row| row["state"] == "idle")
            .count()
            == 2
    });
    // Nor an empty repository a failure.
    world.notify("app", &[]);
    world.until("it ends", || {
        world
            .queue()
            .iter()
            .all(|row| row["state"] == "idle" && row["arrived"] == "")
    });
}

#[test]
fn a_repository_that_cannot_be_read_is_retried() {
    let world = World::new(FAST);
    world.project("other");
    std::os::unix::fs::symlink("app.git", world.repository("app")).unwrap();
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("the push ends", || world.row()["reason"].is_string());
    let row = world.row();
    assert_eq!(
        (&row["state"], &row["refs"]),
        (&"retrying".into(), &"refs/heads/trunk".into()),
        "{row}"
    );
    assert!(
        row["reason"]
            .as_str()
            .unwrap()
            .contains("cannot read the repository")
    );
    fs::remove_file(world.repository("app")).unwrap();
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    world.until_equal("app", "app");
}

/// Its configuration could run commands as the user of the node.
#[test]
fn a_repository_of_another_user_is_refused_with_advice() {
    let world = World::new(FAST);
    let source = world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    let settings = world.path("gitconfig");
    let safe = |repositories: &[&Path]| {
        let lines = repositories
            .iter()
            .map(|path| format!("directory = {}\n", path.display()));
        fs::write(&settings, format!("[safe]\n{}", lines.collect::<String>())).unwrap();
    };
    safe(&[&target]);
    let variables = [
        ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1"),
        ("GIT_CONFIG_GLOBAL", settings.to_str().unwrap()),
    ];
    let _node = world.node_with(&[], &variables);
    let refused = || {
        let started = world.start(&["--all", "--now", "--wait"]);
        assert_eq!(started.status.code(), Some(1), "{}", text(&started.stdout));
        text(&started.stdout)
    };
    let told = refused();
    let dubious = |path: &Path| format!("dubious ownership in repository at '{}'", path.display());
    assert!(
        told.contains(&dubious(&source)) && told.contains("(User= in the unit)"),
        "{told}"
    );
    assert!(told.contains("safe.directory"), "{told}");
    assert_eq!(pushes(&target), 0);
    safe(&[&source]);
    let told = refused();
    assert!(
        told.contains(&dubious(&target)) && told.contains("safe.directory"),
        "{told}"
    );
    safe(&[&source, &target]);
    let started = world.start(&["--all", "--now", "--wait"]);
    assert!(started.status.success(), "{}", text(&started.stdout));
    world.until_equal("app", "app");
}

#[test]
fn git_may_be_set_up_to_refuse_bare_repositories() {
    let world = World::new(FAST);
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let settings = world.path("gitconfig");
    fs::write(&settings, "[safe]\nbareRepository = explicit\n").unwrap();
    let _node = world.node_with(&[], &[("GIT_CONFIG_GLOBAL", settings.to_str().unwrap())]);
    let started = world.start(&["--all", "--now", "--wait"]);
    assert!(started.status.success(), "{}", text(&started.stdout));
    world.until_equal("app", "app");
}

#[test]
fn targets_are_not_created_on_what_is_not_mounted() {
    let world = World::new(&FAST.replace("$DIR", "file://$DIR/./disk/mirrors"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it is retried", || world.row()["state"] == "retrying");
    let reason = world.row()["reason"].to_string();
    assert!(
        reason.contains("disk/mirrors/ does not exist; mount it"),
        "{reason}"
    );
    fs::create_dir_all(world.path("targets/disk/mirrors")).unwrap();
    world.until_equal("app", "disk/mirrors/app");
}

#[test]
fn without_repositories_nothing_is_started() {
    let world = World::new(FAST);
    let started = world.start(&["--all", "--wait"]);
    let told = text(&started.stderr);
    assert!(
        started.status.code() == Some(1) && told.contains("is mounted"),
        "{told}"
    );
}

/// Git takes a repository below `.git` first, and looks in the directories above last.
#[test]
fn no_other_repository_is_pushed_instead() {
    let world = World::new(FAST);
    let root = world.path("repositories");
    git(&["init", "-q", "--bare", root.to_str().unwrap()]);
    world.commit_in(&root, "refs/heads/above");
    let broken = world.project("app");
    fs::remove_dir_all(broken.join("refs")).unwrap();
    let nested = world.project("nested").join(".git");
    git(&["init", "-q", "--bare", nested.to_str().unwrap()]);
    world.commit_in(&nested, "refs/heads/nested");
    let _node = world.node(&[]);
    world.notify("app", &[]);
    world.notify("nested", &[]);
    world.until("both are refused", || {
        let queue = world.queue();
        let is_refused = |row: &serde_json::Value| row["state"] == "retrying";
        queue.len() == 2 && queue.iter().all(is_refused)
    });
    let reasons = world
        .queue()
        .iter()
        .map(|row| row["reason"].to_string())
        .collect::<String>();
    assert!(reasons.contains("not a git repository"), "{reasons}");
    assert!(reasons.contains("contains .git"), "{reasons}");
    assert!(!world.at("app").exists() && !world.at("nested").exists());
}

#[test]
fn a_silent_push_is_killed() {
    let world = World::new(&format!("{FAST}timeout = 1\n"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let target = world.target("app");
    fs::write(target.join("slow"), "600").unwrap();
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it is given up", || world.row()["state"] == "dead");
    assert_eq!(world.row()["reason"], "git push was silent for 1 s");
    let holder = fs::read_link(target.join("push.lock")).unwrap();
    world.until("its hook was killed", || {
        let state =
            fs::read_to_string(format!("/proc/{}/stat", holder.display())).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    });
    crate::harness::check(&target);
}

#[test]
fn events_wait_for_a_node_whose_configuration_is_older() {
    let world = World::new("[remote \"b\"]\nurl = $DIR/${name}.git\n");
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let old = world.node(&[]);
    world.configure(FAST);
    world.notify("app", &["refs/heads/trunk"]);
    world.until("it waits", || world.row()["state"] == "retrying");
    let row = world.row();
    assert_eq!(
        (&row["refs"], &row["reason"]),
        (
            &"refs/heads/trunk".into(),
            &"this node's configuration does not have the target".into()
        )
    );
    old.signal(Signal::HUP);
    world.until("it is read again", || {
        world.log().contains("the configuration was read again")
    });
    assert!(world.start(&["--all", "--now", "--wait"]).status.success());
    world.until_equal("app", "app");
}

/// Neither in the log, nor in the queue, nor in the store.
#[test]
fn passwords_of_urls_stay_in_the_configuration() {
    let world = World::new(&FAST.replace("$DIR", "http://me:s3cret@127.0.0.1:1"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let node = world.node(&[]);
    world.notify("app", &["refs/heads/trunk"]);
    let started = world.start(&["--all", "--now", "--wait"]);
    let told = text(&started.stdout);
    assert!(
        told.contains("failed: ") && !told.contains("s3cret"),
        "{told}"
    );
    world.until("it is given up", || world.row()["state"] == "dead");
    assert!(
        !world.row().to_string().contains("s3cret"),
        "{}",
        world.row()
    );
    assert!(node.stop());
    assert!(!world.log().contains("s3cret"), "{}", world.log());
    for file in fs::read_dir(world.path("store")).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|part| part == b"s3cret"));
    }
    world.configure("[remote \"a\"]\nurl = https://me:s3cret@host\n");
    let refused = world.command("notify").arg("app").output().unwrap();
    let told = text(&refused.stderr);
    assert!(
        told.contains("https://host") && !told.contains("s3cret"),
        "{told}"
    );
}
