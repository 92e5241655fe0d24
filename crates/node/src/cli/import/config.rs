//! `davenport import config`: the options of a `CouchDB` as a configuration of this service. What does not apply is listed with the
//! reason, as comments.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use clap::Args;

use super::cluster::Cluster;
use crate::cli::output;
use crate::config::setting;

/// The sections that are converted.
const SECTIONS: [&str; 4] = ["chttpd", "couchdb", "replicator", "replicator.shares"];

const LISTEN: &str = "set http.listen, to an address that CouchDB does not use";
const COEFFICIENT: &str = "the recorded use of shares does not decay";

/// Options with another name or unit here: section, name, and the option.
const RENAMED: [(&str, &str, &str); 4] = [
    ("chttpd", "max_http_request_size", "api.request_bytes_max"),
    ("chttpd", "require_valid_user", "api.require_valid_user"),
    ("chttpd", "changes_timeout", "api.changes_timeout"),
    (
        "replicator",
        "health_threshold",
        "replicator.health_threshold_sec",
    ),
];

/// Options of sections that have others of the same name here, which mean something else, or nothing: section, name, reason.
const NOT_APPLICABLE: [(&str, &str, &str); 10] = [
    ("chttpd", "bind_address", LISTEN),
    ("chttpd", "port", LISTEN),
    (
        "replicator",
        "update_docs",
        "documents get final states only; _scheduler/docs shows all",
    ),
    (
        "replicator",
        "password",
        "keys must not be encrypted: write the key without a password",
    ),
    (
        "replicator",
        "ssl_certificate_max_depth",
        "chains of certificates have no such limit",
    ),
    (
        "replicator",
        "valid_socket_options",
        "connections are shared between replications",
    ),
    ("replicator", "usage_coeff", COEFFICIENT),
    ("replicator", "priority_coeff", COEFFICIENT),
    (
        "chttpd",
        "admin_only_all_dbs",
        "the cluster decides, or only administrators may",
    ),
    (
        "chttpd",
        "require_valid_user_except_for_up",
        "with api.require_valid_user, `/_up` needs no login",
    ),
];

/// Sections by name, each with its options.
pub(super) type Ini = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Args)]
pub(crate) struct ImportConfig {
    /// local.ini or another file of CouchDB, or the URL of a node
    #[arg(value_name = "FILE|URL")]
    from: String,
    /// Name and password of an administrator, for a URL
    #[arg(
        long,
        value_name = "NAME:PASSWORD",
        env = "DAVENPORT_USER",
        hide_env_values = true
    )]
    user: Option<String>,
}

/// The options here, by section, and the comments on others.
#[derive(Debug, Default)]
struct Converted {
    options: BTreeMap<String, BTreeMap<String, toml::Value>>,
    not_applicable: Vec<String>,
}

impl ImportConfig {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let is_url = self.from.starts_with("http://") || self.from.starts_with("https://");
        let ini = if is_url {
            let user = self
                .user
                .as_deref()
                .context("--user: write NAME:PASSWORD")?;
            Cluster::new(&self.from, user)?.config().await?
        } else {
            let path = Path::new(&self.from);
            let text = std::fs::read_to_string(path);
            parse(&text.with_context(|| format!("cannot read {}", path.display()))?)
        };
        output::text(&convert(&ini).to_string());
        Ok(())
    }
}

/// Reads a file of `CouchDB`. An indented line continues the one before.
fn parse(text: &str) -> Ini {
    let mut ini = Ini::new();
    let (mut section, mut last) = (String::new(), None::<String>);
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with([';', '#']) {
            continue;
        }
        if let Some(name) = bare.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            name.0.trim().clone_into(&mut section);
            last = None;
            continue;
        }
        let options = ini.entry(section.clone()).or_default();
        let value = |text: &str| {
            let ends = [" ;", "\t;"].map(|comment| text.find(comment).unwrap_or(text.len()));
            text[..ends[0].min(ends[1])].trim().to_owned()
        };
        if line.starts_with([' ', '\t'])
            && let Some(before) = last.as_ref().and_then(|name| options.get_mut(name))
        {
            before.push(' ');
            before.push_str(&value(bare));
        } else if let Some((name, given)) = bare.split_once('=') {
            let name = name.trim().to_owned();
            options.insert(name.clone(), value(given));
            last = Some(name);
        }
    }
    ini
}

fn convert(ini: &Ini) -> Converted {
    let mut converted = Converted::default();
    for section in SECTIONS {
        for (name, value) in ini.get(section).into_iter().flatten() {
            match (section, name.as_str()) {
                ("couchdb", "uuid") => converted.add(section, name, "couchdb.uuid", value),
                // The rest is about databases.
                ("couchdb", _) => {}
                ("replicator", "interval") => {
                    let seconds = value.parse::<u64>().map(|ms| ms.div_ceil(1000).to_string());
                    let seconds = seconds.as_ref().unwrap_or(value);
                    converted.add(section, name, "replicator.interval_sec", seconds);
                }
                ("replicator", "auth_plugins") => {
                    let sessions = value.contains("session").to_string();
                    converted.add(section, name, "network.auth_session", &sessions);
                }
                ("replicator", "max_document_id_length" | "request_timeout")
                    if value == "infinity" =>
                {
                    converted.add(section, name, &format!("replicator.{name}"), "0");
                }
                ("replicator.shares", _) => converted.share(section, name, value),
                _ => converted.same(section, name, value),
            }
        }
    }
    converted
}

impl Converted {
    /// An option that has the same meaning here, under this or another name.
    fn same(&mut self, section: &str, name: &str, value: &str) {
        let of = |(of, named, _): &&(&str, &str, &str)| *of == section && *named == name;
        if let Some((.., why)) = NOT_APPLICABLE.iter().find(of) {
            return self.refuse(section, name, value, why);
        }
        if let Some((.., path)) = RENAMED.iter().find(of) {
            return self.add(section, name, path, value);
        }
        let places = match section {
            "replicator" => &["replicator", "network"][..],
            _ => &[],
        };
        let known = |place: &&&str| setting::exists(&format!("{place}.{name}"));
        match places.iter().find(known) {
            Some(place) => self.add(section, name, &format!("{place}.{name}"), value),
            None => self.refuse(section, name, value, "there is no such option here"),
        }
    }

    fn add(&mut self, section: &str, name: &str, path: &str, value: &str) {
        match setting::parse(path, value) {
            Ok(parsed) => {
                let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
                let options = self.options.entry(section.to_owned()).or_default();
                options.insert(name.to_owned(), parsed);
            }
            Err(what) => self.refuse(section, name, value, &format!("{path} {what}")),
        }
    }

    /// The name may have dots in it.
    fn share(&mut self, section: &str, name: &str, value: &str) {
        let Ok(shares) = value.parse::<i64>() else {
            return self.refuse(section, name, value, "shares must be a number");
        };
        let options = self.options.entry(section.to_owned()).or_default();
        options.insert(name.to_owned(), shares.clamp(1, 1_000).into());
    }

    fn refuse(&mut self, section: &str, name: &str, value: &str, why: &str) {
        // Passwords are not printed.
        let shown = if name == "password" { "…" } else { value };
        let line = format!("[{section}] {name} = {shown}: {why}");
        self.not_applicable.push(line);
    }
}

impl std::fmt::Display for Converted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        for (section, options) in &self.options {
            writeln!(text, "[{section}]")?;
            for (name, value) in options {
                let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                if !name.is_empty() && name.chars().all(is_bare) {
                    writeln!(text, "{name} = {value}")?;
                } else {
                    writeln!(text, "{} = {value}", toml::Value::from(name.as_str()))?;
                }
            }
            text.push('\n');
        }
        if !self.not_applicable.is_empty() {
            writeln!(text, "# These do not apply:")?;
        }
        for line in &self.not_applicable {
            writeln!(text, "# {line}")?;
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_couchdb_are_read() {
        let ini = parse(
            "; a comment\n[replicator]\nmax_jobs = 7 ; of them\nsocket_options = [{keepalive, true},\n  {nodelay, false}]\n\
             [replicator.shares]\n_replicator=50\n",
        );
        assert_eq!(ini["replicator"]["max_jobs"], "7");
        assert_eq!(
            ini["replicator"]["socket_options"],
            "[{keepalive, true}, {nodelay, false}]"
        );
        assert_eq!(ini["replicator.shares"]["_replicator"], "50");
    }

    #[test]
    fn options_keep_their_meaning() {
        let ini = parse(
            "[replicator]\nmax_jobs=7\ninterval=60000\nverify_ssl_certificates=true\nauth_plugins=couch_replicator_auth_noop\n\
             valid_endpoint_protocols=http,https\nupdate_docs=true\nrequest_timeout=infinity\nmax_churn=many\nodd=1\nusage_coeff=0.5\n\
             [replicator.shares]\nother/_replicator=50\n_replicator=1001\njoe.b=some\n\
             [chttpd]\nbind_address=any\nport=5984\nrequire_valid_user=true\nbacklog=512\n[couchdb]\nuuid=abc\ndata_dir=x\n",
        );
        let expected = "\
[api]
require_valid_user = true

[couchdb]
uuid = \"abc\"

[network]
auth_session = false
verify_ssl_certificates = true

[replicator]
interval_sec = 60
max_jobs = 7
request_timeout = 0
valid_endpoint_protocols = [\"http\", \"https\"]

[replicator.shares]
_replicator = 1000
\"other/_replicator\" = 50

# These do not apply:
# [chttpd] backlog = 512: there is no such option here
# [chttpd] bind_address = any: set http.listen, to an address that CouchDB does not use
# [chttpd] port = 5984: set http.listen, to an address that CouchDB does not use
# [replicator] max_churn = many: replicator.max_churn must be a number
# [replicator] odd = 1: there is no such option here
# [replicator] update_docs = true: documents get final states only; _scheduler/docs shows all
# [replicator] usage_coeff = 0.5: the recorded use of shares does not decay
# [replicator.shares] joe.b = some: shares must be a number
";
        assert_eq!(convert(&ini).to_string(), expected);
    }
}
