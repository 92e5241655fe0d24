//! Which settings are accepted, where they come from, and how mistakes are reported.

use super::*;

fn sources(text: &str) -> (tempfile::TempDir, Sources) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.toml");
    std::fs::write(&path, text).unwrap();
    let sources = Sources {
        file: Some(path),
        ..Sources::default()
    };
    (directory, sources)
}

/// The problems of a file, without its directory.
fn refused(text: &str) -> String {
    let (directory, sources) = sources(text);
    let error = sources.load().unwrap_err().to_string();
    let error = error.replace(&format!("{}/", directory.path().display()), "");
    let first = "the configuration cannot be used\n";
    error
        .strip_prefix(first)
        .unwrap()
        .replace("  d.toml", "d.toml")
}

fn environment(pairs: &[(&str, &str)]) -> Sources {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Sources {
        environment: pairs.collect(),
        ..Sources::default()
    }
}

#[test]
fn later_layers_win() {
    let (_directory, mut sources) = sources(
        "[replicator]\nmax_jobs = 7\nmax_churn = 8\ninterval_sec = 9\n[network.egress]\nallow = [\"loopback\"]\n",
    );
    sources.environment = environment(&[
        ("DAVENPORT_REPLICATOR_MAX_CHURN", "80"),
        ("DAVENPORT_REPLICATOR_INTERVAL_SEC", "90"),
        ("DAVENPORT_NETWORK_EGRESS_DENY", "private, 10.0.0.0/8"),
        ("DAVENPORT_ADMINS_ANNA", "s3cr3t"),
        ("DAVENPORT_STORE", "memory:"),
        ("DAVENPORT_SERVICE_HOST", "10.0.0.1"),
        ("DAVENPORT_PORT", "tcp://10.0.0.1:5985"),
        ("PATH", "/bin"),
    ])
    .environment;
    let flag = |path: &str, value: &str| ("--set", path.to_owned(), value.to_owned());
    sources.flags = vec![
        flag("replicator.interval_sec", "900"),
        flag("replicator.valid_endpoint_protocols", r#"["https"]"#),
    ];
    let config = sources.load().unwrap().config;
    let replicator = &config.replicator;
    assert_eq!(replicator.max_jobs, 7);
    assert_eq!(replicator.max_churn, 80);
    assert_eq!(replicator.interval_sec, 900);
    assert_eq!(replicator.max_history, 20);
    assert_eq!(replicator.valid_endpoint_protocols, ["https"]);
    assert_eq!(config.network.egress.allow, ["loopback"]);
    assert_eq!(config.network.egress.deny, ["private", "10.0.0.0/8"]);
    assert_eq!(config.admins.0["anna"], "s3cr3t");
    assert_eq!(config.store.url, "memory:");
}

#[test]
fn what_is_unknown_is_refused_with_its_place() {
    assert_eq!(
        refused("[replicator]\nmax_jobs = 1\n  max_job = 2\n"),
        "d.toml:3:3: replicator.max_job: unknown option; did you mean `max_jobs`?"
    );
    assert_eq!(
        refused("[replicater]\nmax_jobs = 1\n"),
        "d.toml:1:2: [replicater]: unknown section; did you mean `replicator`?"
    );
    assert_eq!(
        refused("[replicator]\nverify_ssl_certificates = true\n"),
        "d.toml:2:1: replicator.verify_ssl_certificates: unknown option; it is an option of [network]"
    );
    assert_eq!(
        refused("[network.egress]\nallowed = []\n"),
        "d.toml:2:1: network.egress.allowed: unknown option; did you mean `allow`?"
    );
    assert_eq!(
        refused("replicator = 7\n"),
        "d.toml:1:1: replicator: is a section; start it with a line [replicator]"
    );
}

#[test]
fn what_is_impossible_is_refused_with_its_place() {
    assert_eq!(
        refused("[replicator]\ninterval_sec = 0\n"),
        "d.toml:2:1: replicator.interval_sec: `interval_sec` must be at least 1"
    );
    assert_eq!(
        refused("[store]\n\nurl = \"sqlite:x\"\n"),
        "d.toml:3:1: store.url: `url` is \"sqlite:x\"; use lmdb:DIRECTORY, fdb:CLUSTER_FILE or memory:"
    );
    assert_eq!(
        refused("[sources.a]\nurl = \"ftp://a\"\n"),
        "d.toml:1:10: sources.a: `a`: `url` must begin with http:// or https://"
    );
    assert_eq!(
        refused("[replicator]\nserver_limits = {\"a:80\" = {starts = 3}}\n"),
        "d.toml:2:1: replicator.server_limits: a limit is a number of runs, or `{ starts = 10, per_sec = 60 }`"
    );
    assert_eq!(
        refused("[webhooks.events]\nurl = \"http://a\"\nsecret = \"other\"\n"),
        "d.toml:3:1: webhooks.events.secret: `events.secret`: there is no section `[secrets.other]`"
    );
    // Said once, although a source refers to it.
    assert_eq!(
        refused("[sources.a]\nurl = \"http://a\"\nsecret = \"x\"\n[secrets.x]\nbasic = 1\n")
            .lines()
            .count(),
        1
    );
    assert_eq!(
        refused("[network]\negress.deny = [\"10.0.0.0/99\"]\n"),
        "d.toml:2:8: network.egress.deny: `deny`: the egress rule `10.0.0.0/99` is not valid; a rule is a host name, `*.domain`, an \
         address, a network or a class of addresses, each optionally with `:port`"
    );
    assert_eq!(
        refused("[log]\nlevel = \"info,couch=loud\"\n"),
        "d.toml:2:1: log.level: `level` is \"info,couch=loud\"; use error, warn, info, debug or trace, or a list as in info,couch=debug"
    );
    assert_eq!(
        refused("[admins]\nanna = \"\"\n"),
        "d.toml:2:1: admins.anna: `anna` has an empty password"
    );
    for short in [
        "\"\"",
        "\"fifteen bytes..\"",
        "\"a secret that is long\", \"\"",
    ] {
        let told = refused(&format!("[chttpd_auth]\nproxy_secrets = [{short}]\n"));
        let expected = "d.toml:2:1: chttpd_auth.proxy_secrets: `proxy_secrets` has a secret shorter than 16 bytes";
        assert!(told.starts_with(expected), "{told}");
    }
    let told = refused("[jwt_keys]\n\"hmac:_default\" = \"\"\n");
    assert!(
        told.contains("\"hmac:_default\" is shorter than 16 bytes"),
        "{told}"
    );
    let told = refused("[admins]\nanna = \"-pbkdf2:sha256-00,salt,9000000\"\n");
    assert!(
        told.contains("admins.anna: `anna` has an invalid password hash"),
        "{told}"
    );
    let many = refused("[replicator]\nmax_jobs = \"many\"\ninterval_sec = -1\n");
    assert!(
        many.contains("d.toml:2:1: replicator.max_jobs: invalid type: string \"many\""),
        "{many}"
    );
    assert!(
        many.contains("d.toml:3:1: replicator.interval_sec: invalid value: integer `-1`"),
        "{many}"
    );
    let broken = refused("[replicator\n");
    assert!(broken.starts_with("d.toml:1:12: "), "{broken}");
}

#[test]
fn secrets_that_cannot_sign_are_refused() {
    let origins = "origins = [\"http://a\"]";
    assert_eq!(
        refused(&format!(
            "[secrets.x]\n{origins}\nsigning = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\", \"s3cr3t\"]\n"
        )),
        "d.toml:1:10: secrets.x: `x`: `signing` must be one or more texts of `whsec_` and base64, as \
         `echo whsec_$(openssl rand -base64 32)` makes them"
    );
    let signing = "signing = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"";
    for (url, secret) in [("http://b", signing), ("http://a", "basic = {}")] {
        let events = format!("[webhooks.events]\nurl = \"{url}\"\nsecret = \"x\"\n");
        assert_eq!(
            refused(&format!("{events}[secrets.x]\n{origins}\n{secret}\n")),
            "d.toml:3:1: webhooks.events.secret: `events.secret`: `[secrets.x]` cannot sign calls of `events.url`: it needs \
             `signing`, and the server of the URL in `origins`"
        );
    }
}

#[test]
fn variables_and_flags_are_refused_by_name() {
    let refused = |pairs: &[(&str, &str)]| environment(pairs).load().unwrap_err().to_string();
    let unknown = refused(&[("DAVENPORT_REPLICATOR_MAX_JOB", "1")]);
    assert!(
        unknown.ends_with("\n  $DAVENPORT_REPLICATOR_MAX_JOB: unknown option; did you mean `DAVENPORT_REPLICATOR_MAX_JOBS`?"),
        "{unknown}"
    );
    let wrong = refused(&[("DAVENPORT_REPLICATOR_MAX_JOBS", "many")]);
    assert!(
        wrong.ends_with("$DAVENPORT_REPLICATOR_MAX_JOBS: replicator.max_jobs: must be a number"),
        "{wrong}"
    );
    let flags = Sources {
        flags: vec![("--set", "replicator.max_jobs".into(), "-1".into())],
        ..Sources::default()
    };
    let wrong = flags.load().unwrap_err().to_string();
    assert!(
        wrong.contains("--set: replicator.max_jobs: invalid value: integer `-1`"),
        "{wrong}"
    );
    let flags = Sources {
        flags: vec![("--set", "max_jobs".into(), "1".into())],
        ..Sources::default()
    };
    assert!(
        flags
            .load()
            .unwrap_err()
            .to_string()
            .contains("--set: max_jobs: unknown option")
    );
    let missing = Sources {
        file: Some("/nowhere/d.toml".into()),
        ..Sources::default()
    };
    let missing = missing.load().unwrap_err().to_string();
    assert!(
        missing.contains("/nowhere/d.toml: cannot be read: "),
        "{missing}"
    );
}

#[test]
fn secrets_are_not_told() {
    for text in [
        "[admins]\nanna = [\"s3cr3t\"]\n",
        "[secrets]\na = \"s3cr3t\"\n",
        "[secrets.a]\nbasic = 1\n[admins]\n\"\" = \"s3cr3t\"\n",
    ] {
        let told = refused(text);
        assert!(!told.contains("s3cr3t"), "{told}");
    }
    let (_directory, sources) = sources(
        "[secrets.a]\norigins = [\"https://a.example\"]\nbasic = {username = \"u\", password = \"s3cr3t\"}\n",
    );
    let loaded = sources.load().unwrap();
    assert_eq!(loaded.config.secrets.0["a"]["basic"]["password"], "s3cr3t");
    assert!(!format!("{:?}", loaded.config).contains("s3cr3t"));
}

#[test]
fn a_secret_names_the_servers_it_is_for() {
    for (origins, why) in [
        ("", "`a` must have `origins`, a list of the servers"),
        ("origins = []\n", "`a` must have `origins`"),
        ("origins = \"http://s3cr3t\"\n", "`a` must have `origins`"),
        (
            "origins = [\"a.example\"]\n",
            "`a` has an entry in `origins` that is not",
        ),
        (
            "origins = [\"http://u:s3cr3t@a\"]\n",
            "`a` has an entry in `origins`",
        ),
    ] {
        let told = refused(&format!("[secrets.a]\nbearer = \"s3cr3t\"\n{origins}"));
        assert!(told.contains(why), "{told}");
        assert!(
            told.contains("d.toml") && !told.contains("s3cr3t"),
            "{told}"
        );
    }
}

#[test]
fn roles_come_from_the_flag_or_the_environment_or_the_file() {
    let (_directory, mut sources) = sources("[node_types]\nreplication = false\n");
    let types = |sources: &Sources| sources.load().unwrap().config.node_types;
    assert_eq!(types(&sources), NodeTypes::only(&[Role::ApiFrontend]));
    let variable = ("COUCHDB_NODE_TYPE_REPLICATION".to_owned(), String::new());
    sources.environment.extend([variable]);
    assert_eq!(types(&sources), NodeTypes::default());
    sources.roles = Some(vec![Role::Replication]);
    assert_eq!(types(&sources), NodeTypes::only(&[Role::Replication]));
    let off = ["API_FRONTEND", "REPLICATION"]
        .map(|role| (format!("COUCHDB_NODE_TYPE_{role}"), "FALSE".to_owned()));
    let off = Sources {
        environment: off.into(),
        ..Sources::default()
    };
    assert!(
        off.load()
            .unwrap_err()
            .to_string()
            .contains("all roles are turned off")
    );
}

#[test]
fn changes_are_named_without_their_values() {
    let before = environment(&[
        ("DAVENPORT_ADMINS_ANNA", "a"),
        ("DAVENPORT_REPLICATOR_MAX_JOBS", "1"),
    ]);
    let after = environment(&[
        ("DAVENPORT_ADMINS_ANNA", "b"),
        ("DAVENPORT_LOG_LEVEL", "warn"),
        ("DAVENPORT_REPLICATOR_MAX_JOBS", "1"),
    ]);
    let changed = before.load().unwrap().changed(&after.load().unwrap());
    assert_eq!(changed, ["admins.anna", "log.level"]);
}

#[test]
fn administrators_may_have_a_file_of_their_own() {
    use std::os::unix::fs::PermissionsExt as _;
    let (directory, mut sources) = sources("[admins]\nanna = \"first\"\nberta = \"b\"\n");
    let path = directory.path().join("admins");
    let write = |text: &str, mode| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    sources.admin_file = Some(path.clone());
    write("# ours\n\nanna:second:with:colons\ncarla:c\n", 0o600);
    sources.admins = Admins([("carla".to_owned(), "flag".to_owned())].into());
    let mut loaded = sources.load().unwrap();
    let admins = |loaded: &Loaded| loaded.config.admins.0.clone();
    let expected = [
        ("anna", "second:with:colons"),
        ("berta", "b"),
        ("carla", "flag"),
    ];
    let expected = expected.map(|(name, given)| (name.to_owned(), given.to_owned()));
    assert_eq!(admins(&loaded), expected.into());
    let hashes = ["anna", "berta", "carla"].map(|name| (name.to_owned(), format!("{name}'s hash")));
    let hashes = hashes.into();
    loaded.seal_admins(&hashes);
    sources.seal_admins(&hashes);
    assert_eq!(admins(&loaded), hashes);
    assert_eq!(sources.admins.0["carla"], "carla's hash");
    for (text, mode, says) in [
        (
            "anna:x\n",
            0o640,
            "admins: other users can read these passwords; run: chmod 600",
        ),
        ("anna:x\nberta\n", 0o600, "admins:2:1: write NAME:PASSWORD"),
        (
            "anna:\n",
            0o600,
            "admins:1:1: admins.anna: `anna` has an empty password",
        ),
    ] {
        write(text, mode);
        let told = sources.load().unwrap_err().to_string();
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn secrets_that_others_can_read_are_found() {
    use std::os::unix::fs::PermissionsExt as _;

    let (_directory, sources) = sources(
        "[admins]\nanna = \"-pbkdf2-ea6c014dc72d6f8ffcd56d1b41a3e8b1d6a2c0f5,salt,2\"\nbert = \"pw\"\n\
         [chttpd_auth]\nproxy_secrets = [\"0123456789abcdef\"]\n\
         [jwt_keys]\n\"hmac:a\" = \"MDEyMzQ1Njc4OWFiY2RlZg==\"\n\
         [secrets.there]\nbasic = {username = \"u\", password = \"pw\"}\norigins = [\"https://a\"]\n\
         [sources.a]\nurl = \"https://u:pw@a\"\n\
         [store]\nurl = \"memory:\"\n",
    );
    let file = sources.file.as_ref().unwrap();
    let exposed = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file, mode).unwrap();
        let mut exposed = sources.load().unwrap().exposed;
        exposed.sort();
        exposed.join(" ")
    };
    assert_eq!(
        exposed(0o644),
        "admins.bert chttpd_auth.proxy_secrets jwt_keys.hmac:a secrets.there sources.a"
    );
    for private in [0o600, 0o640] {
        assert_eq!(exposed(private), "");
    }
}
