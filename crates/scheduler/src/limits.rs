//! Limits over the whole fleet: one run per target database, and runs per server.
//!
//! A replication of a remote has the limit of its remote in place of that of a server.
//! They are limits of the queue, which a node claims a job with. A replication that has caught up and only listens gives
//! its slots back, and takes them again when its source has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use couch::Endpoint;
use jobs::{LIMIT_BYTES_MAX, LIMIT_SLOTS_MAX, Limit, LimitName, Limits};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;
use url::Url;

use crate::data::{JobData, REMOTES, Remote, Shown, hash, remote_of};
use crate::fault::ServiceError;
use crate::options::Options;
use crate::service::Replications;
use replication::params::Invalid;

/// The limit of one run per target, followed by the target.
const TARGETS: &str = "target";
/// The limit of runs per server, followed by the server.
const SERVERS: &str = "server";

/// Servers with a limit of their own. The queue has room for 1,000 limits with a setting, and remotes need some.
const SERVERS_MAX: usize = 900;

/// Before the limits of the settings are written again after a failure.
const LIMITS_PAUSE: Duration = Duration::from_secs(5);

/// A limit of runs for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a limit is a number of runs, or `{ starts = 10, per_sec = 60 }`"
)]
pub enum ServerLimit {
    /// Runs at a time.
    Runs(u32),
    /// Starts of runs per period.
    Starts(StartsLimit),
}

/// At most so many starts of runs in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartsLimit {
    /// Maximum number of starts.
    pub starts: u32,
    /// Length of the period in seconds.
    pub per_sec: u64,
}

impl ServerLimit {
    fn limit(self) -> Limit {
        match self {
            Self::Runs(max) => Limit::at_once(max),
            Self::Starts(StartsLimit { starts, per_sec }) => {
                Limit::per(starts, per_sec.saturating_mul(1000))
            }
        }
    }
}

impl Options {
    pub(crate) fn validate_limits(&self) -> Result<(), Invalid> {
        if self.server_limits.len() > SERVERS_MAX {
            return Err(Invalid::new(format!(
                "`server_limits` has more than {SERVERS_MAX} servers"
            )));
        }
        for (server, limit) in &self.server_limits {
            if server_of(&format!("http://{server}/")).as_deref() != Some(server) {
                return Err(Invalid::new(format!(
                    "`server_limits`: `{server}` is not of the form `HOST:PORT` in lower case"
                )));
            }
            let limit = limit.limit();
            if limit.max > LIMIT_SLOTS_MAX || limit.per_ms == Some(0) {
                return Err(Invalid::new(format!(
                    "`server_limits`: the limit of `{server}` must be at most {LIMIT_SLOTS_MAX}, and its period at least \
                     a second"
                )));
            }
        }
        if self.max_runs_per_server > LIMIT_SLOTS_MAX {
            return Err(Invalid::new(format!(
                "`max_runs_per_server` must be at most {LIMIT_SLOTS_MAX}"
            )));
        }
        Ok(())
    }

    /// The limits of a job's runs.
    pub(crate) fn limits_of_job(&self, data: &JobData) -> Limits {
        let limits = self.limits_of(&data.shown);
        let pool = data.remote().map_or(limits.pool, Remote::pool);
        Limits { pool, ..limits }
    }

    /// The limits of a replication's runs. The limit of targets is always there, so that `target_lock` can change while
    /// jobs run.
    fn limits_of(&self, shown: &Shown) -> Limits {
        let target = shown.target.as_deref();
        let local = server_of(&self.local_endpoint_base_url);
        let server = target.and_then(server_of);
        let server = match (&server, shown.source.as_deref().and_then(server_of)) {
            (target, Some(source)) if *target == local => Some(source),
            _ => server,
        };
        let limited = |server: &String| {
            self.max_runs_per_server > 0 || self.server_limits.contains_key(server)
        };
        Limits {
            key: target.map(|target| name(TARGETS, &canonical(target))),
            pool: server.filter(limited).map(|server| name(SERVERS, &server)),
        }
    }

    /// Whether a run has limits that its job was claimed without.
    pub(crate) fn lacks_limits(&self, has: &Limits, data: &JobData) -> bool {
        let wanted = self.limits_of_job(data);
        (wanted.key.is_some() && has.key != wanted.key)
            || (wanted.pool.is_some() && has.pool != wanted.pool)
    }

    /// Whether the limits of a run can keep others waiting.
    pub(crate) fn restricts(&self, limits: &Limits) -> bool {
        (self.target_lock && limits.key.is_some()) || limits.pool.is_some()
    }

    /// Those of `server_limits` that limit starts: a run that stops makes no room for another.
    pub(crate) fn rates(&self) -> BTreeSet<LimitName> {
        let rates = (self.server_limits.iter()).filter(|(_, limit)| limit.limit().per_ms.is_some());
        rates.map(|(server, _)| name(SERVERS, server)).collect()
    }

    /// The limits of the queue that the settings ask for.
    fn limits(&self) -> BTreeMap<LimitName, Limit> {
        let most = |max| match max {
            0 => LIMIT_SLOTS_MAX,
            max => max,
        };
        let targets = Limit::at_once(most(u32::from(self.target_lock)));
        let servers = Limit::at_once(most(self.max_runs_per_server));
        let each = self.server_limits.iter();
        let each = each.map(|(server, limit)| (name(SERVERS, server), limit.limit()));
        let groups = [(TARGETS, targets), (SERVERS, servers)];
        let groups = groups
            .into_iter()
            .map(|(group, limit)| (group_name(group), limit));
        groups.chain(each).collect()
    }
}

impl Replications {
    async fn apply_settings(&self) -> Result<(), ServiceError> {
        self.apply_limits().await?;
        self.apply_shares().await
    }

    /// Writes the limits of the settings. Those of the node that does it last apply to all.
    pub(crate) async fn apply_limits(&self) -> Result<(), ServiceError> {
        let (jobs, ty) = (&self.0.jobs, &self.0.ty);
        let wanted = self.options().limits();
        let stored = jobs.limits(ty).await?;
        // Those of remotes follow their documents.
        let is_own = |name: &&LimitName| remote_of(name).is_none();
        let own = stored.keys().filter(is_own);
        // First, for there is room for a limited number.
        for name in own.filter(|name| !wanted.contains_key(name)) {
            jobs.set_limit(ty, name, None).await?;
        }
        for (name, limit) in &wanted {
            if stored.get(name) != Some(limit) {
                jobs.set_limit(ty, name, Some(*limit)).await?;
            }
        }
        Ok(())
    }
}

/// Writes the limits and the shares of the settings, now and when they change.
pub(crate) async fn keep_limits(replications: Replications) {
    let mut options = replications.watch_options();
    loop {
        options.mark_unchanged();
        while let Err(error) = replications.apply_settings().await {
            tracing::warn!(error = %wire::chain(&error), "cannot write the limits and shares of replications");
            sleep(LIMITS_PAUSE).await;
        }
        if options.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// What a job waits for, as users see it.
pub(crate) fn shown(name: &LimitName) -> String {
    let text = name.to_string();
    match text.split_once('|') {
        Some((SERVERS, server)) => {
            format!("other replications with {server} (max_runs_per_server, server_limits)")
        }
        Some((REMOTES, remote)) => format!("other replications of remote {remote} (threads)"),
        _ => "another replication with this target (target_lock)".to_owned(),
    }
}

fn group_name(group: &'static str) -> LimitName {
    LimitName::new(group).expect("a short name")
}

fn name(group: &str, of: &str) -> LimitName {
    let mut name = format!("{group}|{of}");
    if name.len() > LIMIT_BYTES_MAX {
        name = format!("{group}|{}", hash(of));
    }
    LimitName::new(name).expect("long names are hashed")
}

/// However users spell the URL of a database, it has one lock.
fn canonical(target: &str) -> String {
    let normal = Url::parse(target).map_or_else(|_| target.to_owned(), String::from);
    let database = Endpoint::from_url(&normal).ok().and_then(|target| {
        let (server, name) = target.server()?;
        server.database(&name)
    });
    database.map_or(normal, |url| url.url_text().to_owned())
}

/// `HOST:PORT` of a URL.
fn server_of(url: &str) -> Option<String> {
    let endpoint = Endpoint::from_url(url).ok()?;
    let default = match endpoint.scheme() {
        "https" => 443,
        _ => 80,
    };
    let port = endpoint.port().unwrap_or(default);
    Some(format!("{}:{port}", endpoint.host().to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Setup;

    fn shown(source: &str, target: &str) -> Shown {
        Shown {
            source: Some(source.to_owned()),
            target: Some(target.to_owned()),
            ..Shown::default()
        }
    }

    fn options(json: &str) -> Options {
        serde_json::from_str(json).unwrap()
    }

    fn text(name: Option<LimitName>) -> String {
        name.map(|name| name.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_run_has_a_limit_for_its_target_and_the_server_that_is_not_local() {
        let limits = Options::default().limits_of(&shown("http://a/x/", "http://b:1/y/"));
        assert_eq!(text(limits.key), "target|http://b:1/y/");
        assert_eq!(limits.pool, None);
        let options = options(
            r#"{"max_runs_per_server":3,"local_endpoint_base_url":"http://b:1","server_limits":{"a:80":7}}"#,
        );
        let pool = |source, target| text(options.limits_of(&shown(source, target)).pool);
        assert_eq!(pool("http://a/x/", "http://b:1/y/"), "server|a:80");
        assert_eq!(pool("http://b:1/x/", "https://a/y/"), "server|a:443");
        assert_eq!(pool("http://b:1/x/", "http://b:1/y/"), "server|b:1");
        let limits = options.limits();
        let limit = |name: &str| limits[&LimitName::try_from(name).unwrap()];
        assert_eq!(limit("target"), Limit::at_once(1));
        assert_eq!(limit("server"), Limit::at_once(3));
        assert_eq!(limit("server|a:80"), Limit::at_once(7));
        let key = |target| {
            text(
                Options::default()
                    .limits_of(&shown("http://a/x/", target))
                    .key,
            )
        };
        assert_eq!(key("HTTP://B:80/y/"), "target|http://b/y/");
        for spelled in [
            "http://b/x%2fy+/",
            "http://b/x%2Fy%2B",
            "http://b/%78%2Fy%2b/",
        ] {
            assert_eq!(key(spelled), "target|http://b/x%2Fy%2B/");
        }
        let long = format!("http://a/{}/", "x".repeat(LIMIT_BYTES_MAX));
        let key = Options::default().limits_of(&shown("http://b/", &long)).key;
        assert_eq!(text(key).len(), "target|".len() + 32);
    }

    /// As many servers as there may be, and then as many others.
    #[tokio::test]
    async fn all_servers_may_change_at_once() {
        let store = store::Store::open("memory:").await.unwrap();
        let jobs = jobs::Jobs::new(
            store.clone(),
            jobs::Clock::system(),
            jobs::Entropy::from_os(),
        );
        let docs = docstore::DocStore::new(store, docstore::Options::default());
        let replications = Replications::open(jobs, docs, Setup::default())
            .await
            .unwrap();
        for first in [0, SERVERS_MAX] {
            let servers = first..first + SERVERS_MAX;
            let limits = servers.map(|nth| (format!("s{nth}:80"), ServerLimit::Runs(1)));
            let options = Options {
                server_limits: limits.collect(),
                ..Options::default()
            };
            replications.set_options(options).unwrap();
            replications.apply_limits().await.unwrap();
            let (jobs, ty) = (&replications.0.jobs, &replications.0.ty);
            let stored = jobs.limits(ty).await.unwrap();
            assert_eq!(stored, replications.options().limits());
        }
    }

    #[test]
    fn limits_of_servers_are_checked() {
        let problem = |json: &str| options(json).validate().unwrap_err().to_string();
        assert!(problem(r#"{"server_limits":{"a":1}}"#).contains("`a` is not of the form"));
        assert!(problem(r#"{"server_limits":{"A:1":1}}"#).contains("HOST:PORT"));
        assert!(problem(r#"{"server_limits":{"a:1":10001}}"#).contains("10000"));
        assert!(
            problem(r#"{"server_limits":{"a:1":{"starts":1,"per_sec":0}}}"#).contains("a second")
        );
        assert!(problem(r#"{"max_runs_per_server":10001}"#).contains("10000"));
        let servers = (0..=SERVERS_MAX).map(|nth| (format!("s{nth}:80"), ServerLimit::Runs(1)));
        let many = Options {
            server_limits: servers.collect(),
            ..Options::default()
        };
        let problem = many.validate().unwrap_err().to_string();
        assert!(problem.contains("more than 900 servers"), "{problem}");
        let rate = options(r#"{"server_limits":{"a:1":{"starts":5,"per_sec":60}}}"#);
        rate.validate().unwrap();
        assert_eq!(rate.limits()[&name(SERVERS, "a:1")], Limit::per(5, 60_000));
    }
}
