//! A `CouchDB` cluster behind this service: replication requests are handled here, all others are forwarded unchanged,
//! and the cluster authenticates callers.
//!
//! | what | where |
//! |---|---|
//! | connections | `upstream/connect.rs` |
//! | forwarding requests | `upstream/forward.rs` |
//! | authentication | `upstream/identity.rs` |

mod connect;
mod forward;
mod identity;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::body::Body;
use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_rustls::rustls::ClientConfig;
use url::Url;

use crate::Error;
use crate::auth::authenticator::Proven;
use crate::once::Once;
use crate::options::InvalidOption;
use connect::{Connector, connector};
pub(crate) use forward::Untouched;
use identity::Known;
pub(crate) use identity::PROOFS;

/// Shorter than the idle time-outs of servers and balancers.
const IDLE: Duration = Duration::from_secs(20);

/// The section `[upstream]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamOptions {
    /// URL of a CouchDB cluster, such as `http://couchdb:5984`. The frontend handles replication
    /// requests itself and forwards all other paths to the cluster, which also supplies users and
    /// administrators. Empty means no cluster.
    pub url: String,
    /// Seconds to cache the cluster's answer about a caller's identity. 0 asks the cluster on every
    /// request.
    pub session_cache_sec: u64,
    /// Timeout for connecting to the cluster, in seconds.
    pub connect_timeout_sec: u64,
    /// Forward the client's `Host` header, so that `Location` headers contain the address that the
    /// client used. If `false`, the host of `upstream.url` is sent, which a server with virtual
    /// hosts may need.
    pub preserve_host: bool,
    /// PEM file with the certificate authorities to trust for the cluster, instead of the operating
    /// system's.
    pub ca_file: Option<PathBuf>,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            session_cache_sec: 5,
            connect_timeout_sec: 10,
            preserve_host: true,
            ca_file: None,
        }
    }
}

impl UpstreamOptions {
    pub fn target(&self) -> Result<Option<Url>, InvalidOption> {
        if self.url.is_empty() {
            return Ok(None);
        }
        let invalid = |problem| InvalidOption {
            name: "url",
            problem,
        };
        let url = Url::parse(&self.url).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.ok_or_else(|| invalid("must be a URL such as `http://couchdb:5984`"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(
                "must not contain credentials: callers authenticate with the cluster",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("must not contain `?` or `#`"));
        }
        Ok(Some(url))
    }

    /// Validates the values.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        if self.connect_timeout_sec == 0 {
            return Err(InvalidOption {
                name: "connect_timeout_sec",
                problem: "must be at least 1",
            });
        }
        self.target().map(drop)
    }
}

#[derive(Clone)]
pub struct Upstream(Arc<Shared>);

struct Shared {
    /// Without a trailing slash.
    base: String,
    authority: String,
    options: UpstreamOptions,
    client: HttpClient<Connector, Body>,
    /// Keys the digests of credentials in `known`.
    key: hmac::Key,
    known: Mutex<Known>,
    /// Authentication requests in progress.
    asked: Once<Result<Proven, Error>>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("base", &self.0.base)
            .finish_non_exhaustive()
    }
}

impl Upstream {
    /// The configured cluster, if any. `tls` is for `https`; `random` is the secret of this process.
    pub fn new(
        options: UpstreamOptions,
        tls: Option<Arc<ClientConfig>>,
        random: [u8; 32],
    ) -> Result<Option<Self>, InvalidOption> {
        options.validate()?;
        let Some(url) = options.target()? else {
            return Ok(None);
        };
        let base = url.as_str().trim_end_matches('/').to_owned();
        let authority = url[url::Position::BeforeHost..url::Position::AfterPort].to_owned();
        let time_limit = Duration::from_secs(options.connect_timeout_sec);
        let client = HttpClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .set_host(false)
            .build(connector(tls, time_limit));
        Ok(Some(Self(Arc::new(Shared {
            base,
            authority,
            options,
            client,
            key: hmac::Key::new(hmac::HMAC_SHA256, &random),
            known: Mutex::default(),
            asked: Once::default(),
        }))))
    }

    /// The server that plain database names refer to.
    pub(crate) fn base(&self) -> &str {
        &self.0.base
    }

    /// The cluster's URL for a path and query.
    fn uri(&self, path_and_query: &str) -> Option<Uri> {
        let is_path = path_and_query.starts_with('/');
        is_path.then(|| format!("{}{path_and_query}", self.0.base).parse().ok())?
    }
}

/// Whether a path is handled here even if there is a cluster.
pub(crate) fn is_answered_here(path: &str) -> bool {
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    let mut segments = segments.map(|segment| percent_decode_str(segment).decode_utf8_lossy());
    let Some(first) = segments.next() else {
        return false;
    };
    match &*first {
        "_replicate" | "_scheduler" | "_active_tasks" | "_deliveries" | "_jobs" | "_schedules"
        | "_tokens" | "_sources" | "_remotes" | "_all_dbs" | "_dbs_info" | "_dashboard"
        | "_metrics" | "_openapi.json" | "_up" => true,
        name if is_ours(name) => true,
        name => {
            !name.starts_with('_')
                && matches!(segments.next().as_deref(), Some("_replicator" | "_rules"))
        }
    }
}

/// Whether a database is in the store of this service, if it exists, and not in the cluster.
pub(crate) fn is_ours(name: &str) -> bool {
    let kind = name.rsplit('/').next().unwrap_or_default();
    matches!(kind, "_replicator" | "_rules") || name == "spiegel"
}

#[cfg(test)]
mod tests {
    use super::{UpstreamOptions, is_answered_here};

    #[test]
    fn replication_is_answered_here_and_nothing_else() {
        for here in [
            "/_replicate",
            "/_repli%63ate",
            "//_replicator",
            "/_replicator/_changes",
            "/_scheduler/nothing",
            "/a/_replicator/doc",
            "/a%2f_replicator/doc",
            "/_up",
            "/_jobs/mail",
            "/_schedules",
            "/_tokens/ci",
            "/_remotes/eu",
            "/_all_dbs",
            "/_dashboard/app.js",
        ] {
            assert!(is_answered_here(here), "{here}");
        }
        for there in [
            "/",
            "/a",
            "/_session",
            "/_users/_replicator",
            "/_utils/_replicator",
            "/a/_design/_replicator",
            "/_node/_local/_prometheus",
            "/_replicators",
            "/%ff",
            "/a/../_replicate",
        ] {
            assert!(!is_answered_here(there), "{there}");
        }
    }

    #[test]
    fn urls_are_checked() {
        let with = |url: &str| UpstreamOptions {
            url: url.to_owned(),
            ..UpstreamOptions::default()
        };
        for good in ["", "http://couchdb:5984", "https://[::1]/couch/"] {
            assert_eq!(with(good).validate(), Ok(()), "{good}");
        }
        for bad in [
            "couchdb",
            "ftp://couchdb",
            "http://a:b@couchdb",
            "http://couchdb/?x",
        ] {
            assert_eq!(with(bad).validate().unwrap_err().name, "url", "{bad}");
        }
    }
}
