//! `[sources.NAME]`: which servers are followed, and how.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use couch::{Endpoint, InvalidEndpoint, NamedSecret, Reach};
use regex_automata::meta::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// How much later than `_dbs_info` a feed may report a change. One that ends sooner without an update has failed.
pub(super) const FEED_DELAY: Duration = Duration::from_secs(5);

/// The section `[sources]`: a section for each name.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SourcesOptions(pub BTreeMap<String, SourceOptions>);

/// The section `[sources.NAME]`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SourceOptions {
    /// URL of the server, such as `https://repl:password@couch.example.com:6984`. Replications whose source is a database
    /// of this URL sleep between changes. Its user must be a server administrator to read `_db_updates`.
    pub url: String,
    /// Name of a section `[secrets.NAME]` with the credentials, instead of a user and password in the URL.
    pub secret: String,
    /// How changes are noticed: `db_updates`, `global_changes` (reads that database directly), `dbs_info` (compares
    /// sequences), or `auto`, the first of them that the server allows.
    pub feed: FeedKind,
    /// Maximum number of updates that are handled together.
    pub batch_rows: usize,
    /// Milliseconds for which updates are gathered, counted from the first one.
    pub batch_msec: u64,
    /// Seconds between comparisons of sequences, which find what a feed has missed.
    pub sweep_sec: u64,
    /// Seconds between comparisons where there is no feed. If a comparison takes longer, as with very many databases, the
    /// pause is as long as it took, up to `sweep_sec`.
    pub poll_sec: u64,
    /// Regular expressions: rules do not apply to databases whose names match one, and replications that sleep on them are
    /// woken by comparisons only.
    pub exclude: Vec<String>,
}

/// A server whose databases are followed, from `[sources.NAME]`.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    server: Endpoint,
    options: SourceOptions,
    exclude: Regex,
    /// A hash of `exclude`, unless it is empty.
    excludes: Option<String>,
}

impl Source {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server, with the source's credentials.
    pub fn server(&self) -> &Endpoint {
        &self.server
    }

    pub fn options(&self) -> &SourceOptions {
        &self.options
    }

    /// What it excludes: a text that changes with it.
    pub(crate) fn excludes(&self) -> Option<&str> {
        self.excludes.as_deref()
    }

    /// Whether changes of a database count.
    pub fn follows(&self, database: &str) -> bool {
        self.options.exclude.is_empty() || !self.exclude.is_match(database)
    }
}

/// How changes of a server's databases are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum FeedKind {
    #[default]
    Auto,
    DbUpdates,
    GlobalChanges,
    DbsInfo,
}

/// A source that cannot be used. Contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}`: {reason}")]
pub struct InvalidSource {
    name: String,
    reason: String,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            secret: String::new(),
            feed: FeedKind::Auto,
            batch_rows: 500,
            batch_msec: 50,
            sweep_sec: 60,
            poll_sec: 3,
            exclude: Vec::new(),
        }
    }
}

impl SourcesOptions {
    /// All sources, the cluster behind the frontends among them.
    pub fn sources(
        &self,
        upstream: Option<&str>,
        secrets: &scheduler::Secrets,
    ) -> Result<Vec<Source>, InvalidSource> {
        let sources = self
            .0
            .iter()
            .map(|(name, options)| options.source(name, |secret| secrets.get(secret).cloned()));
        let mut sources = sources.collect::<Result<Vec<_>, _>>()?;
        for (nth, source) in sources.iter().enumerate() {
            let same = |other: &&Source| other.server.url_text() == source.server.url_text();
            if let Some(other) = sources[..nth].iter().find(same) {
                return Err(InvalidSource {
                    name: source.name.clone(),
                    reason: format!("its `url` is that of `{}`", other.name),
                });
            }
        }
        if let Some(url) = upstream {
            let options = SourceOptions {
                url: url.to_owned(),
                ..SourceOptions::default()
            };
            let upstream = options.source("upstream", |_| None)?;
            let is_there = |source: &Source| {
                source.name == "upstream" || source.server.url_text() == upstream.server.url_text()
            };
            if !sources.iter().any(is_there) {
                sources.push(upstream);
            }
        }
        Ok(sources)
    }
}

/// Without the URL, in which a password may stand.
impl fmt::Debug for SourceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOptions")
            .field("feed", &self.feed)
            .finish_non_exhaustive()
    }
}

impl FeedKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::DbUpdates => "db_updates",
            Self::GlobalChanges => "global_changes",
            Self::DbsInfo => "dbs_info",
        }
    }

    /// The feeds to try, best first.
    pub(super) fn choices(self) -> &'static [Self] {
        match self {
            Self::Auto => &[Self::DbUpdates, Self::GlobalChanges, Self::DbsInfo],
            Self::DbUpdates => &[Self::DbUpdates],
            Self::GlobalChanges => &[Self::GlobalChanges],
            Self::DbsInfo => &[Self::DbsInfo],
        }
    }
}

impl SourceOptions {
    /// The source of this name. Its server may have any address, as it is the operator who names it.
    pub fn source(
        &self,
        name: &str,
        secret: impl FnOnce(&str) -> Option<NamedSecret>,
    ) -> Result<Source, InvalidSource> {
        let invalid = |reason: String| InvalidSource {
            name: name.to_owned(),
            reason,
        };
        if self.url.is_empty() {
            return Err(invalid("`url` is missing".to_owned()));
        }
        let server = Endpoint::from_url(&self.url).map_err(|error| match error {
            InvalidEndpoint::Local => {
                invalid("`url` must begin with http:// or https://".to_owned())
            }
            error => invalid(error.to_string()),
        })?;
        let server = match self.secret.as_str() {
            "" => server,
            named => {
                let secret = secret(named)
                    .ok_or_else(|| invalid(format!("there is no section `[secrets.{named}]`")))?;
                server
                    .with_secret(&secret)
                    .map_err(|error| invalid(error.to_string()))?
            }
        };
        let exclude = Regex::new_many(&self.exclude)
            .map_err(|error| invalid(format!("`exclude` has an invalid pattern: {error}")))?;
        if self.batch_rows == 0 || self.sweep_sec == 0 || self.poll_sec == 0 {
            let options = "`batch_rows`, `sweep_sec` and `poll_sec` must be 1 or more";
            return Err(invalid(options.to_owned()));
        }
        Ok(Source {
            name: name.to_owned(),
            server: server.normalized().reaching(Reach::Private),
            options: self.clone(),
            exclude,
            excludes: (!self.exclude.is_empty()).then(|| {
                let hash = Sha256::digest(self.exclude.join("\0"));
                wire::hex(&hash[..8])
            }),
        })
    }

    pub(super) fn batch(&self) -> Duration {
        Duration::from_millis(self.batch_msec)
    }

    pub(super) fn sweep(&self) -> Duration {
        Duration::from_secs(self.sweep_sec)
    }

    /// From one comparison to the next where there is no feed. A look at many databases takes long, and must not occupy
    /// their server all the time; nor must one that fails.
    pub(super) fn poll(&self, took: Duration, failures: u32) -> Duration {
        let poll = Duration::from_secs(self.poll_sec);
        let pause = took.min(self.sweep()).max(poll);
        pause.max(poll * 2_u32.pow(failures.min(4)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &SourceOptions) -> String {
        options.source("a", |_| None).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let options = SourceOptions::default();
        assert_eq!(refused(&options), "`a`: `url` is missing");
        let url = "http://u:s3cr3t@host:5984".to_owned();
        let options = SourceOptions { url, ..options };
        let with = |change: fn(&mut SourceOptions)| {
            let mut options = options.clone();
            change(&mut options);
            let told = refused(&options);
            assert!(!told.contains("s3cr3t"), "{told}");
            told
        };
        let told = with(|options| options.exclude = vec!["(".to_owned()]);
        assert!(told.contains("`exclude` has an invalid pattern"), "{told}");
        let told = with(|options| options.secret = "x".to_owned());
        assert!(told.contains("[secrets.x]"), "{told}");
        let told = with(|options| options.poll_sec = 0);
        assert!(told.contains("1 or more"), "{told}");
        let told = with(|options| options.url = "ftp://u:s3cr3t@host".to_owned());
        assert!(!told.is_empty());
        assert!(!format!("{options:?}").contains("s3cr3t"));
    }

    #[test]
    fn excluded_databases_are_ignored() {
        let options = SourceOptions {
            url: "http://host:5984".to_owned(),
            exclude: vec!["^tmp_".to_owned(), "_old$".to_owned()],
            ..SourceOptions::default()
        };
        let source = options.source("a", |_| None).unwrap();
        let follows = ["tmp_a", "a_tmp_", "a_old", "a"].map(|name| source.follows(name));
        assert_eq!(follows, [false, true, false, true]);
        assert_eq!(source.server().url_text(), "http://host:5984/");
    }

    /// Jobs know their server by the URL that follows from that of their database.
    #[test]
    fn servers_are_known_by_the_url_that_jobs_have() {
        for url in ["http://u:p@HOST:80", "http://host/", "http://Host:80/?a=b"] {
            let options = SourceOptions {
                url: url.to_owned(),
                ..SourceOptions::default()
            };
            let source = options.source("a", |_| None).unwrap();
            let database = Endpoint::from_url("http://HOST:80/app").unwrap();
            let (server, _) = database.server().unwrap();
            assert_eq!(source.server().url_text(), server.url_text());
        }
    }

    #[test]
    fn long_polls_are_followed_by_long_pauses() {
        let options = SourceOptions::default();
        let pauses = [(1, 0), (20, 0), (200, 0), (1, 1), (1, 9)]
            .map(|(took, failures)| options.poll(Duration::from_secs(took), failures).as_secs());
        assert_eq!(pauses, [3, 20, 60, 6, 48]);
    }

    #[test]
    fn the_cluster_is_a_source() {
        let names = |urls: &[(&str, &str)], upstream| {
            let options = urls.iter().map(|(name, url)| {
                let url = (*url).to_owned();
                (
                    (*name).to_owned(),
                    SourceOptions {
                        url,
                        ..SourceOptions::default()
                    },
                )
            });
            let options = SourcesOptions(options.collect());
            let sources = options.sources(upstream, &scheduler::Secrets::new());
            let names =
                |sources: Vec<Source>| sources.into_iter().map(|source| source.name).collect();
            sources.map(names).map_err(|error| error.to_string())
        };
        let found: Result<Vec<String>, _> = names(&[("a", "http://a:1")], Some("http://b:1"));
        assert_eq!(found.unwrap(), ["a", "upstream"]);
        let found = names(&[("b", "http://u:p@b:1/")], Some("http://b:1"));
        assert_eq!(found.unwrap(), ["b"]);
        let found = names(&[("a", "http://a:80"), ("b", "http://u:p@A/")], None);
        assert_eq!(found.unwrap_err(), "`b`: its `url` is that of `a`");
    }
}
