//! Pushes that work: which refs of which projects get where, and how often.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{World, check, git, now, pause, pushes, refs, request, text};

const FOLLOWED: &str = "[gerrit]\nautoReload = true\n[remote \"a\"]\nurl = $DIR/${name}.git\n";

#[test]
fn gr_t110_to_t120_a_new_project_gets_where_it_belongs() {
    let world = World::new(
        "[remote \"eu\"]\nurl = $DIR/eu1/${name}.git\nurl = file://$DIR/eu2/${name}.git\nreplicationDelay = 0\nprojects = team/*\n\
         [remote \"us\"]\nurl = $DIR/us/${name}.git\nreplicationDelay = 0\nprojects = team/app\n\
         [remote \"other\"]\nurl = $DIR/other/${name}.git\nexcludeProjects = team/*\n",
    );
    let source = world.project("team/app");
    world.commit("team/app", "refs/heads/trunk");
    world.commit("team/app", "refs/changes/01/1/1");
    let node = world.node(&[]);
    world.notify("team/app.git", &["refs/heads/trunk"]);
    for target in ["eu1", "eu2", "us"] {
        let target = world.at(&format!("{target}/team/app"));
        world.until("the branch arrives", || refs(&target).len() == 1);
        assert_eq!(
            refs(&target)["refs/heads/trunk"],
            refs(&source)["refs/heads/trunk"]
        );
        assert_eq!(
            fs::read_to_string(target.join("HEAD")).unwrap(),
            "ref: refs/heads/trunk\n"
        );
    }
    // Without names, all refs.
    world.notify("team/app", &[]);
    world.until_equal("team/app", "us/team/app");
    world.until("all are idle", || {
        let queue = world.queue();
        queue.len() == 3 && queue.iter().all(|row| row["state"] == "idle")
    });
    assert!(!world.at("other/team/app").exists());
    assert!(node.stop());
}

#[test]
fn gr_t098_t121_t122_only_mirrors_delete() {
    let world = World::new(
        "[remote \"mirror\"]\nurl = $DIR/mirror/${name}.git\nreplicationDelay = 0\nreplicationRetry = 0\nmirror = true\npush = +refs/heads/*:refs/heads/*\npush = ^refs/heads/secret\n\
         [remote \"keep\"]\nurl = $DIR/keep/${name}.git\nreplicationDelay = 0\n",
    );
    let source = world.project("app");
    for name in ["a", "b", "c", "secret"] {
        world.commit("app", &format!("refs/heads/{name}"));
    }
    let _node = world.node(&[]);
    world.notify("app", &[]);
    world.until_equal("app", "keep/app");
    let mirror = world.at("mirror/app");
    world.until("the mirror is filled", || refs(&mirror).len() == 3);
    let dir = format!("--git-dir={}", source.display());
    git(&[&dir, "update-ref", "-d", "refs/heads/a"]);
    world.notify("app", &["refs/heads/a", "refs/heads/secret"]);
    world.until("the branch is deleted", || refs(&mirror).len() == 2);
    // Forced, as the refspec says, and with all refs deletions, too.
    git(&[&dir, "update-ref", "-d", "refs/heads/b"]);
    let rewritten = world.commit("app", "refs/heads/c");
    assert_eq!(
        text(
            &world
                .start(&["--project", "app", "--remote", "mirror", "--now", "--wait"])
                .stderr
        ),
        ""
    );
    assert_eq!(refs(&mirror).into_values().collect::<Vec<_>>(), [rewritten]);
    assert_eq!(refs(&world.at("keep/app")).len(), 4);
}

/// Git leaves a damaged ref out of its lists, as if it had been deleted.
#[test]
fn a_damaged_ref_is_not_deleted_at_the_target() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nreplicationRetry = 0\nmirror = true\npush = +refs/*:refs/*\n",
    );
    let source = world.project("app");
    world.commit("app", "refs/heads/a");
    let commit = world.commit("app", "refs/heads/b");
    let _node = world.node(&[]);
    world.notify("app", &[]);
    world.until_equal("app", "app");
    world.until("it is idle", || world.row()["state"] == "idle");
    let both = refs(&source);
    fs::write(source.join("refs/heads/b"), "").unwrap();
    world.notify("app", &["refs/heads/b"]);
    world.until("it fails", || world.row()["state"] == "retrying");
    let reason = world.row()["reason"].to_string();
    assert!(reason.contains("broken ref refs/heads/b"), "{reason}");
    let started = world.start(&["--all", "--now", "--wait"]);
    assert_eq!(started.status.code(), Some(1), "{}", text(&started.stdout));
    assert_eq!(refs(&world.at("app")), both);
    fs::write(source.join("refs/heads/b"), commit + "\n").unwrap();
    world.commit("app", "refs/heads/a");
    world.until_equal("app", "app");
}

/// On NFS, another node may have created a ref, and even pushed it.
#[test]
fn a_ref_that_is_not_there_yet_is_looked_for_again() {
    let world =
        World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nmirror = true\n");
    world.project("app");
    let target = world.target("app");
    world.commit_in(&target, "refs/heads/pushed");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/pushed", "refs/heads/new"]);
    world.until("the event is done", || {
        world.row()["arrived"] == "" && world.row()["state"] != "running"
    });
    let row = world.row();
    assert_eq!(
        (&row["state"], &row["refs"]),
        (
            &"delayed".into(),
            &"refs/heads/new, refs/heads/pushed".into()
        ),
        "{row}"
    );
    assert_eq!(refs(&target).len(), 1);
    // Other events do not wait, and take it along.
    for name in ["new", "pushed", "other"] {
        world.commit("app", &format!("refs/heads/{name}"));
    }
    let dir = format!("--git-dir={}", target.display());
    git(&[&dir, "update-ref", "-d", "refs/heads/pushed"]);
    world.notify("app", &["refs/heads/other"]);
    world.until_equal("app", "app");
}

#[test]
fn refs_of_a_project_that_is_removed_are_not_looked_for() {
    let world = World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\n");
    world.project("other");
    let source = world.project("app");
    let _node = world.node(&[]);
    world.notify("app", &["refs/heads/new"]);
    world.until("it is looked for again", || {
        world.row()["state"] == "delayed" && world.row()["arrived"] == ""
    });
    fs::remove_dir_all(source).unwrap();
    world.notify("app", &["refs/heads/more"]);
    world.until("the push ends", || {
        let row = world.row();
        row["reason"] == "the project has no repository here" && row["state"] != "running"
    });
    assert_eq!(world.row()["state"], "idle");
}

/// Events and pushes of all refs do the same, whatever names refs get at the target.
#[test]
fn refspecs_that_rename_withhold_and_overlap() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\npush = refs/heads/*:refs/m/*\npush = refs/heads/main:refs/m/prod\npush = ^refs/heads/secret\n",
    );
    world.project("app");
    let target = world.target("app");
    for name in ["main", "secret", "other"] {
        world.commit("app", &format!("refs/heads/{name}"));
    }
    let _node = world.node(&[]);
    let there = || refs(&target).into_keys().collect::<Vec<_>>();
    world.notify("app", &["refs/heads/main", "refs/heads/secret"]);
    world.until("the event is done", || {
        pushes(&target) == 1 && world.row()["state"] == "idle"
    });
    assert_eq!(there(), ["refs/m/main", "refs/m/prod"]);
    let started = world.start(&["--all", "--now", "--wait"]);
    assert!(started.status.success(), "{}", text(&started.stdout));
    assert_eq!(there(), ["refs/m/main", "refs/m/other", "refs/m/prod"]);
}

/// As git does it in a push of all refs: a pattern gives the name to another ref if there is no `main`.
#[test]
fn a_name_that_two_refspecs_give_is_not_deleted() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nreplicationRetry = 0\nmirror = true\npush = refs/heads/main:refs/heads/prod\npush = +refs/heads/*:refs/heads/*\n",
    );
    world.project("app");
    world.commit("app", "refs/heads/prod");
    world.commit("app", "refs/heads/other");
    let _node = world.node(&[]);
    for _ in 0..2 {
        let started = world.start(&["--all", "--now", "--wait"]);
        assert!(started.status.success(), "{}", text(&started.stdout));
        assert_eq!(refs(&world.at("app")), refs(&world.repository("app")));
    }
    let attempts = || world.log().matches(" refs=\"refs/heads/main\"").count();
    world.notify("app", &["refs/heads/main"]);
    world.until("it is looked for twice", || attempts() == 2);
    assert_eq!(refs(&world.at("app")), refs(&world.repository("app")));
    world.commit("app", "refs/heads/prod");
    world.notify("app", &["refs/heads/prod"]);
    world.until_equal("app", "app");
}

/// Refspecs may name refs that a project does not have, or match none of its refs.
#[test]
fn refspecs_without_a_ref_do_not_fail_a_push() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\npush = refs/heads/*:refs/heads/*\npush = refs/meta/one:refs/meta/one\npush = refs/meta/two:refs/meta/two\n",
    );
    for (project, name) in [
        ("app", "refs/heads/trunk"),
        ("app", "refs/meta/two"),
        ("other", "refs/changes/01/1/1"),
    ] {
        let repository = world.repository(project);
        if !repository.exists() {
            world.project(project);
            world.target(project);
        }
        world.commit(project, name);
    }
    let _node = world.node(&[]);
    let started = world.start(&["--all", "--now", "--wait"]);
    assert!(started.status.success(), "{}", text(&started.stdout));
    world.until_equal("app", "app");
    assert!(refs(&world.at("other")).is_empty());
}

#[test]
fn projects_with_one_target_are_all_pushed() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nremoteNameStyle = basenameOnly\n",
    );
    for project in ["one/app", "two/app"] {
        world.project(project);
        let name = format!("refs/heads/{}", &project[..3]);
        world.commit(project, &name);
        world.notify(project, &[&name]);
    }
    let _node = world.node(&[]);
    world.until("the target has the refs of both", || {
        refs(&world.at("app")).len() == 2
    });
}

/// Events for a target on two nodes: the delay counts from the first one, and later ones do not put a push off.
#[test]
fn gr_s06_events_of_a_target_meet_in_one_push() {
    const DELAY: Duration = Duration::from_secs(3);
    // As many delays as 60 s are of 15 s.
    const OFFERED: Duration = DELAY.saturating_mul(4);
    const EVERY: Duration = Duration::from_millis(10);
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 3\npush = +refs/*:refs/*\n",
    );
    world.project("app");
    let target = world.target("app");
    let nodes = [
        world.node(&["--node", "one"]),
        world.node(&["--node", "two"]),
    ];
    let began = now();
    let mut events = 0;
    while now().saturating_sub(began) < OFFERED {
        let name = format!("refs/heads/{}", events % 100);
        if events % 50 == 0 {
            world.commit("app", &name);
        }
        let event = format!(r#"{{"ref":"{name}","repository":{{"full_name":"app"}}}}"#);
        let url = format!("{}/_git/events", nodes[events % 2].url);
        assert_eq!(request(&url, "POST", &[], &event).0, 202);
        events += 1;
        let next = EVERY * u32::try_from(events).unwrap();
        pause(next.saturating_sub(now().saturating_sub(began)));
    }
    world.until_equal("app", "app");
    world.until("it is idle", || world.row()["state"] == "idle");
    let pushes = pushes(&target);
    println!("{events} events in {OFFERED:?}, {pushes} pushes");
    assert!(
        (3..=6).contains(&pushes),
        "{events} events, {pushes} pushes"
    );
    check(&target);
}

#[test]
fn gr_t095_and_s01_threads_count_all_nodes() {
    let world =
        World::new("[remote \"a\"]\nurl = $DIR/${name}.git\nreplicationDelay = 0\nthreads = 2\n");
    for number in 0..8 {
        let name = format!("p{number}");
        world.project(&name);
        world.commit(&name, "refs/heads/trunk");
        let target = world.target(&name);
        fs::write(target.join("slow"), "0.5").unwrap();
    }
    let _nodes = [
        world.node(&["--node", "one"]),
        world.node(&["--node", "two"]),
    ];
    assert!(world.start(&["--all", "--now"]).status.success());
    let running = || {
        (0..8)
            .filter(|number| {
                world
                    .at(&format!("p{number}"))
                    .join("push.lock")
                    .is_symlink()
            })
            .count()
    };
    let (mut most, mut waits) = (0, false);
    world.until("all are pushed", || {
        most = most.max(running());
        waits |= world
            .queue()
            .iter()
            .any(|row| row["reason"] == "all threads of remote a are in use");
        (0..8).all(|number| pushes(&world.at(&format!("p{number}"))) > 0)
    });
    assert!(most <= 2, "{most} pushes at a time");
    assert!(waits, "the queue does not tell what is waited for");
    for number in 0..8 {
        world.until_equal(&format!("p{number}"), &format!("p{number}"));
        assert_eq!(pushes(&world.at(&format!("p{number}"))), 1);
    }
}

#[test]
fn gr_t116_to_t128_start_chooses_and_waits() {
    let world = World::new(
        "[remote \"a\"]\nurl = $DIR/a1/${name}.git\nurl = $DIR/a2/${name}.git\n[remote \"b\"]\nurl = $DIR/b/${name}.git\n",
    );
    for name in ["one", "two"] {
        world.project(name);
        world.commit(name, "refs/heads/trunk");
    }
    let _node = world.node(&[]);
    let there = |remote: &str, project: &str| world.at(&format!("{remote}/{project}")).exists();
    let started = world.start(&["--url", "a2/${name}", "--project", "one", "--now", "--wait"]);
    assert!(started.status.success(), "{}", text(&started.stdout));
    assert!(
        text(&started.stdout).ends_with("a2/one.git: pushed"),
        "{}",
        text(&started.stdout)
    );
    assert!(there("a2", "one") && !there("a1", "one") && !there("b", "one"));
    assert!(
        world
            .start(&["--url", "a1/two", "--now", "--wait"])
            .status
            .success()
    );
    assert!(there("a1", "two") && !there("a1", "one"));
    assert!(
        world
            .start(&["--remote", "b", "--project", "^t.*", "--now", "--wait"])
            .status
            .success()
    );
    assert!(there("b", "two") && !there("b", "one"));
    for unknown in [["--remote", "c"], ["--project", "nosuch"]] {
        let none = world.start(&unknown);
        let told = text(&none.stderr);
        assert!(
            none.status.code() == Some(2)
                && told.contains("nothing to push: no project and remote match"),
            "{told}"
        );
    }
    for wrong in [&[][..], &["--project", "^("]] {
        assert_eq!(world.start(wrong).status.code(), Some(2));
    }
    assert!(world.start(&["--all", "--now", "--wait"]).status.success());
    for remote in ["a1", "a2", "b"] {
        world.until_equal("one", &format!("{remote}/one"));
    }
}

#[test]
fn gr_t200_to_t206_the_configuration_is_followed() {
    let config = |delay: &str| {
        format!(
            "[gerrit]\nautoReload = true\nreplicateOnStartup = true\n[remote \"a\"]\nurl = $DIR/${{name}}.git\nreplicationDelay = {delay}\n"
        )
    };
    let world = World::new(&config("0"));
    world.project("app");
    world.commit("app", "refs/heads/trunk");
    let node = world.node(&[]);
    // On start-up.
    world.until_equal("app", "app");
    world.configure(&config("soon"));
    world.until("the bad one is refused", || {
        world.log().contains("keeping the current one")
    });
    world.commit("app", "refs/heads/more");
    let event = r#"{"ref":"refs/heads/more","repository":{"full_name":"app"}}"#;
    let url = format!("{}/_git/events", node.url);
    assert_eq!(request(&url, "POST", &[], event).0, 202);
    world.until_equal("app", "app");
    world.configure(&config("3600"));
    world.until("the good one is read", || {
        world.log().contains("the configuration was read again")
    });
    world.commit("app", "refs/heads/late");
    world.notify("app", &["refs/heads/late"]);
    world.until("it waits", || world.row()["state"] == "delayed");
    world.configure("nonsense");
    node.signal(Signal::HUP);
    world.until("a signal reads it, too", || {
        world.log().matches("keeping the current one").count() == 2
    });
}

/// The node waits for the end of its secret: it has read its configuration by then.
fn read_again_after(what: impl FnOnce(&World, &Path)) {
    let world = World::new(FOLLOWED);
    let secret = world.path("secret");
    let made = std::process::Command::new("mkfifo").arg(&secret).status();
    assert!(made.unwrap().success());
    std::thread::scope(|scope| {
        let node = scope.spawn(|| world.node(&["--secret-file", secret.to_str().unwrap()]));
        // Waits until the node opens it.
        let mut writer = fs::File::options().write(true).open(&secret).unwrap();
        what(&world, &secret);
        std::io::Write::write_all(&mut writer, b"0123456789abcdef").unwrap();
        drop(writer);
        let _node = node.join().unwrap();
        world.until("it is read again", || {
            world.log().contains("the configuration was read again")
        });
    });
}

#[test]
fn a_change_during_the_start_is_noticed() {
    read_again_after(|world, _| world.configure(&FOLLOWED.replace("$DIR", "$DIR/other")));
}

#[test]
fn a_node_that_starts_survives_sighup() {
    read_again_after(|_, secret| hang_up(secret));
}

/// Sends SIGHUP to the process with this argument.
fn hang_up(argument: &Path) {
    for process in fs::read_dir("/proc").unwrap() {
        let path = process.unwrap().path();
        let words = fs::read(path.join("cmdline")).unwrap_or_default();
        let argument = argument.as_os_str().as_encoded_bytes();
        let id = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw)
            && words.split(|byte| *byte == 0).any(|word| word == argument)
        {
            return kill_process(id, Signal::HUP).unwrap();
        }
    }
    panic!("the node does not run");
}

/// What a plain loop of `git push` takes, and how many pushes events that meet need.
#[test]
fn pushes_are_saved_against_a_plain_loop() {
    let (projects, rounds) = (4, 10);
    let config = "[remote \"a\"]\nurl = $DIR/a/${name}.git\nthreads = 2\nreplicationDelay = 1\n[remote \"b\"]\nurl = $DIR/b/${name}.git\nthreads = 2\nreplicationDelay = 1\n";
    let run = |push: &dyn Fn(&World, &str, &str)| {
        let world = World::new(config);
        for number in 0..projects {
            world.project(&format!("p{number}"));
            for remote in ["a", "b"] {
                world.target(&format!("{remote}/p{number}"));
            }
        }
        let node = world.node(&[]);
        let began = now();
        for round in 0..rounds {
            for number in 0..projects {
                let (project, name) = (format!("p{number}"), format!("refs/heads/{round}"));
                world.commit(&project, &name);
                push(&world, &project, &name);
            }
        }
        let offered = now().saturating_sub(began);
        let mut pushed = 0;
        for number in 0..projects {
            for remote in ["a", "b"] {
                let name = format!("{remote}/p{number}");
                world.until_equal(&format!("p{number}"), &name);
                check(&world.at(&name));
                pushed += pushes(&world.at(&name));
            }
        }
        let took = now().saturating_sub(began);
        assert!(node.stop());
        (pushed, offered, took)
    };
    let plain = run(&|world, project, name| {
        for remote in ["a", "b"] {
            let target = world.at(&format!("{remote}/{project}"));
            let dir = format!("--git-dir={}", world.repository(project).display());
            git(&[&dir, "push", "-q", target.to_str().unwrap(), name]);
        }
    });
    let here = run(&|world, project, name| world.notify(project, &[name]));
    println!("{} events for 2 targets each", projects * rounds);
    println!(
        "plain loop: {} pushes; events took {:.1?}, all {:.1?}",
        plain.0, plain.1, plain.2
    );
    println!(
        "davenport-git: {} pushes; events took {:.1?}, all {:.1?}",
        here.0, here.1, here.2
    );
    assert!(here.0 < plain.0);
}
