use std::fs;

use super::*;

/// The configuration in a file with this text. Errors are without the file's directory.
pub(crate) fn read(text: &str) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("replication.config");
    fs::write(&file, text).unwrap();
    let dir = dir.path().display().to_string();
    Config::read(&file).map_err(|error| error.to_string().replace(&dir, ""))
}

fn places(config: &Config, project: &str) -> Vec<String> {
    let project = Project::new(project).unwrap();
    config
        .targets(&project)
        .map(|target| target.place)
        .collect()
}

#[test]
fn gerrits_file_is_read_as_it_is() {
    let config = read(
        r#"
# the example of Gerrit's manual
[remote "host-one"]
    url = gerrit2@host-one.example.com:/some/path/${name}.git
    mirror = true

[remote "pubmirror"]
    url = mirror1.us.some.org:/pub/git/${name}.git
    url = mirror2.us.some.org:/pub/git/${name}.git
    push = +refs/heads/*:refs/heads/*
    push = +refs/tags/*:refs/tags/* ; not the changes
    threads = 3
    authGroups = nobody
    projects = "^public/.*"
    replicationDelay = 0
    replicationRetry = 2
    replicationMaxRetries = 5
    timeout = 30
    createMissingRepositories = false
[gerrit]
    autoReload
    replicateOnStartup = false
[replication]
    distributionInterval = 3
    maxRetries = 7
    updateRefErrorMaxRetries = 2
    lockErrorMaxRetries = 4
"#,
    )
    .unwrap();
    let ignored: Vec<&str> = config.ignored.iter().map(String::as_str).collect();
    assert_eq!(
        ignored,
        [
            "remote.pubmirror.authgroups",
            "replication.distributioninterval"
        ]
    );
    assert!(config.auto_reload && !config.replicate_on_startup);
    let [one, two] = &config.remotes[..] else {
        panic!("{:?}", config.remotes);
    };
    assert!(one.mirror && one.create_missing && one.threads == 1);
    assert_eq!(one.timeout, Some(Duration::from_hours(1)));
    assert_eq!((one.retry.max, one.lock_retry.max), (Some(7), Some(2)));
    assert_eq!(
        (one.delay.as_secs(), one.reschedule_delay.as_secs()),
        (15, 3)
    );
    let push: Vec<_> = one.push.iter().map(Refspec::whole).collect();
    assert_eq!(push, ["refs/*:refs/*", "^refs/cache-automerge/*"]);
    assert_eq!(
        (two.threads, two.retry.max, two.retry.delay.as_secs()),
        (3, Some(5), 120)
    );
    assert_eq!(two.timeout, Some(Duration::from_secs(30)));
    assert_eq!(two.push.len(), 2);
    assert!(two.delay.is_zero() && !two.create_missing);
    assert_eq!(
        places(&config, "private/a"),
        ["ssh://host-one.example.com/some/path/private/a.git"]
    );
    assert_eq!(places(&config, "public/a").len(), 3);
}

#[test]
fn gr_t129_to_t131_exclusion_wins() {
    let config = read(
        "[remote \"a\"]\nurl = /m/${name}\nprojects = a*\nprojects = b\nexcludeProjects = ^.*x\n",
    )
    .unwrap();
    let pushed = |name| !places(&config, name).is_empty();
    assert!(pushed("ab") && pushed("b") && !pushed("ax") && !pushed("bb"));
}

#[test]
fn bad_files_are_refused_with_advice() {
    let refused = |text: &str| read(text).unwrap_err();
    assert_eq!(
        refused(
            "[remote \"a\"]\n  url = /m/${name}\n  threads = 2\n[remote \"b\"]\n  url = /m/${name}\n  threads = many\n"
        ),
        "/replication.config: remote.b.threads is \"many\": give a number from 1 to 10000"
    );
    assert_eq!(
        refused("[remote \"a\"]\n  url = /m/${name}\n  replicationDelay = -1\n"),
        "/replication.config: remote.a.replicationdelay is \"-1\": give a number from 0 to 4294967295"
    );
    assert_eq!(
        refused("[remote \"a\"]\n  url = /m/${name}\n  url = ext::x${name}\n"),
        "/replication.config: remote.a.url is \"ext::x${name}\": give a URL of file, ssh, git, http or https, HOST:PATH, or an absolute path"
    );
    assert!(
        refused("[remote \"a\"]\nurl = /m/${name}\n[remote \"b\"\nurl = x\n")
            .starts_with("/replication.config: git cannot read it: bad config line 4 ")
    );
    assert!(
        refused("[remote \"a\"]\n\nmirror\n")
            .starts_with("/replication.config: remote \"a\" has no url")
    );
    assert!(
        refused("[gerrit]\nautoReload = perhaps\n")
            .contains("gerrit.autoreload is \"perhaps\": give true or false")
    );
    assert!(refused("[gerrit]\n").contains("it has no remote"));
    assert!(refused("[remote]\nurl = /m/${name}\n").contains("name the section"));
}

#[test]
fn passwords_are_not_shown_however_they_are_written() {
    for password in ["12/s3cret", "a/s3cret", "a@b/s3cret", "a's3cret", "s3cret"] {
        for end in ["", "/${name}", "/x y"] {
            let url = format!("https://me:{password}@${{host}}{end}");
            let refused = read(&format!("[remote \"a\"]\nurl = {url}\nthreads = 0\n"));
            let refused = refused.unwrap_err();
            assert!(!refused.contains("s3cret"), "{refused}");
        }
    }
}

#[test]
fn gr_t217_a_url_without_name_is_for_one_project() {
    assert!(
        read("[remote \"a\"]\nurl = /m/x.git\n")
            .unwrap_err()
            .contains("has no `${name}`")
    );
    assert!(read("[remote \"a\"]\nurl = /m/x.git\nprojects = ^x\n").is_err());
    let config = read("[remote \"a\"]\nurl = /m/x.git\nprojects = x\n").unwrap();
    assert_eq!(places(&config, "x"), ["file:///m/x.git"]);
}

#[test]
fn gr_t237_a_remote_that_only_fetches_is_no_target() {
    let text = "[remote \"a\"]\nurl = /a/${name}\nfetch = +refs/*:refs/*\n";
    assert!(read(text).unwrap_err().contains("it has no remote"));
    let other = "[remote \"b\"]\nurl = /b/${name}\nfetch = +refs/*:refs/*\npush = refs/*:refs/*\n";
    let config = read(&format!("{text}{other}")).unwrap();
    assert_eq!(places(&config, "x"), ["file:///b/x"]);
    let ignored: Vec<&str> = config.ignored.iter().map(String::as_str).collect();
    assert_eq!(ignored, ["remote.a (it only fetches)", "remote.b.fetch"]);
}

/// Ignoring them would publish what Gerrit keeps back.
#[test]
fn settings_that_withhold_are_not_ignored() {
    for setting in [
        "authGroup = g",
        "excludedRefsPattern = ^x",
        "replicatePermissions = false",
        "replicateNoteDbMetaRefs = false",
        "replicateHiddenProjects = false",
    ] {
        let text = format!("[remote \"a\"]\nurl = /m/${{name}}\n{setting}\n");
        assert!(
            read(&text)
                .unwrap_err()
                .starts_with("/replication.config: remote.a."),
            "{setting}"
        );
    }
    let config = read(
        "[remote \"a\"]\nurl = /m/${name}\npush = ^refs/meta/config\nreplicatePermissions = true\n",
    )
    .unwrap();
    assert_eq!(config.remotes[0].push.len(), 3);
    assert!(config.ignored.is_empty());
}

#[test]
fn gr_t135_and_t213_to_t220_remotes_in_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("replication.config");
    fs::write(
        &file,
        "[gerrit]\nautoReload = true\n[remote \"main\"]\nurl = /main/${name}\n",
    )
    .unwrap();
    let names = || -> Vec<String> {
        let remotes = Config::read(&file).unwrap().remotes;
        remotes.into_iter().map(|remote| remote.name).collect()
    };
    assert_eq!(names(), ["main"]);
    let before = contents(&file);
    let single = dir.path().join("replication");
    let refused = || Config::read(&file).unwrap_err().to_string();
    std::os::unix::fs::symlink("replication", &single).unwrap();
    assert!(refused().contains("cannot read the directory"));
    fs::remove_file(&single).unwrap();
    fs::create_dir_all(single.join("sub.config")).unwrap();
    assert!(refused().contains("replaces its remotes"));
    fs::write(single.join("eu.config"), "[remote]\nurl = /eu/${name}\n").unwrap();
    fs::write(
        single.join("us.config"),
        "[remote]\nurl = /us/${name}\nurl = /us2/${name}\n",
    )
    .unwrap();
    fs::write(single.join("old.bak"), "[remote]\nurl = /old/${name}\n").unwrap();
    assert_eq!(names(), ["eu", "us"]);
    assert_ne!(contents(&file), before);
    fs::write(
        single.join("named.config"),
        "[remote \"x\"]\nurl = /x/${name}\n",
    )
    .unwrap();
    assert!(
        Config::read(&file)
            .unwrap_err()
            .to_string()
            .contains("named.config: remote \"named\" has no url")
    );
}
