//! Options of the service.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forwarded::Proxies;

/// The section `[api]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Name of this node as shown to clients.
    pub node_name: String,
    /// Reject anonymous requests to all paths except `/`, `/_up` and `/_session`.
    pub require_valid_user: bool,
    /// Maximum size of a request body, in bytes.
    pub request_bytes_max: usize,
    /// Maximum total size of all request bodies held in memory, in bytes.
    pub bodies_bytes_max: usize,
    /// Seconds after which a request is abandoned. Does not apply to requests that wait for changes
    /// or for a replication.
    pub request_timeout_sec: u64,
    /// Seconds that a client may pause while sending a request body or reading a response.
    pub body_timeout_sec: u64,
    /// Minimum rate at which a request body must arrive after its first 20 seconds, in bytes per
    /// second. 0 disables the check.
    pub body_bytes_per_sec_min: u64,
    /// Maximum number of requests handled concurrently. Further requests wait briefly, then get
    /// 503.
    pub requests_max: usize,
    /// Maximum number of concurrent requests from anonymous callers, including logins. They are
    /// counted apart from `requests_max`.
    pub anonymous_requests_max: usize,
    /// Maximum number of requests waiting concurrently for changes, jobs or a replication. A caller
    /// who is not a server administrator, such as an API token, gets at most half of them. In front
    /// of a cluster, as many requests again may be forwarded concurrently.
    pub waits_max: usize,
    /// Maximum number of connections. When it is reached, connections without a request are closed,
    /// longest idle first.
    pub connections_max: usize,
    /// Seconds that a request head may take to arrive, and that a connection may stay open without
    /// a request.
    pub head_timeout_sec: u64,
    /// Seconds that requests in progress may take to finish when the service stops.
    pub stop_timeout_sec: u64,
    /// Default and maximum of the `timeout` parameter of `_changes`, in milliseconds.
    pub changes_timeout: u64,
    /// Maximum `count` of `_uuids`.
    pub uuids_max: usize,
    /// `SameSite` attribute of session cookies.
    pub same_site: SameSite,
    /// Always mark session cookies `Secure`, even if the request arrived without TLS. For use
    /// behind a proxy that terminates TLS.
    pub secure_cookies: bool,
    /// Origins, such as `https://admin.example.com`, that may make changes with a session cookie
    /// or the headers of a proxy that logs users in, in addition to the service's own. Name the public address here if a proxy changes it.
    pub trusted_origins: Vec<String>,
    /// Addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) of proxies whose `X-Forwarded-For` is
    /// trusted. If a proxy is not listed, all its clients share one count of failed logins.
    pub trusted_proxies: Vec<String>,
    /// Cross-origin requests (CORS). Off by default.
    pub cors: Cors,
}

/// The section `[api.cors]`. By default no cross-origin requests are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cors {
    /// Allowed origins, such as `https://app.example.com`. `*` allows any origin.
    pub origins: Vec<String>,
    /// Allow cookies and passwords. Cannot be combined with `*`.
    pub credentials: bool,
    /// Allowed methods.
    pub methods: Vec<String>,
    /// Allowed request headers.
    pub headers: Vec<String>,
    /// Seconds that browsers may cache these permissions.
    pub max_age: u64,
}

/// When browsers send session cookies with cross-site requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SameSite {
    /// Never.
    #[default]
    Strict,
    /// When the user follows a link.
    Lax,
    /// Always; needs TLS.
    None,
}

impl SameSite {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::Lax => "Lax",
            Self::None => "None",
        }
    }
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` {problem}")]
pub struct InvalidOption {
    /// The setting.
    pub name: &'static str,
    /// What is wrong with it, and what to do.
    pub problem: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: "davenport@127.0.0.1".to_owned(),
            require_valid_user: false,
            request_bytes_max: 64 * 1024 * 1024,
            bodies_bytes_max: 512 * 1024 * 1024,
            request_timeout_sec: 60,
            body_timeout_sec: 60,
            body_bytes_per_sec_min: 500,
            requests_max: 500,
            anonymous_requests_max: 100,
            waits_max: 10_000,
            connections_max: 12_000,
            head_timeout_sec: 30,
            stop_timeout_sec: 10,
            changes_timeout: 60_000,
            uuids_max: 1000,
            same_site: SameSite::Strict,
            secure_cookies: false,
            trusted_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            cors: Cors::default(),
        }
    }
}

impl Default for Cors {
    fn default() -> Self {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            origins: Vec::new(),
            credentials: false,
            methods: texts(&["GET", "HEAD", "POST", "PUT", "DELETE"]),
            headers: texts(&[
                "accept",
                "authorization",
                "content-type",
                "idempotency-key",
                "if-match",
                "if-none-match",
                "origin",
                "referer",
                "x-couch-request-id",
            ]),
            max_age: 600,
        }
    }
}

impl Options {
    /// Validates the values.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        let positive = [
            ("request_bytes_max", self.request_bytes_max),
            ("requests_max", self.requests_max),
            ("anonymous_requests_max", self.anonymous_requests_max),
            ("waits_max", self.waits_max),
            ("connections_max", self.connections_max),
            ("uuids_max", self.uuids_max),
        ];
        let seconds = [
            ("request_timeout_sec", self.request_timeout_sec),
            ("body_timeout_sec", self.body_timeout_sec),
            ("head_timeout_sec", self.head_timeout_sec),
            ("changes_timeout", self.changes_timeout),
        ];
        let zero = (positive.into_iter().find(|(_, value)| *value == 0)).map(|(name, _)| name);
        let zero = zero
            .or_else(|| (seconds.into_iter().find(|(_, value)| *value == 0)).map(|(name, _)| name));
        if let Some(name) = zero {
            return Err(InvalidOption {
                name,
                problem: "must be at least 1",
            });
        }
        if self.bodies_bytes_max < self.request_bytes_max {
            return Err(InvalidOption {
                name: "bodies_bytes_max",
                problem: "must be at least `request_bytes_max`",
            });
        }
        let permits = [
            ("requests_max", self.requests_max),
            ("anonymous_requests_max", self.anonymous_requests_max),
            ("waits_max", self.waits_max),
            ("connections_max", self.connections_max),
        ];
        for (name, number) in permits {
            if number > tokio::sync::Semaphore::MAX_PERMITS {
                return Err(InvalidOption {
                    name,
                    problem: "is too large",
                });
            }
        }
        if Proxies::parse(&self.trusted_proxies).is_none() {
            return Err(InvalidOption {
                name: "trusted_proxies",
                problem: "must be a list of addresses such as `10.0.0.7` and networks such as `10.0.0.0/8`",
            });
        }
        self.validate_origins()
    }

    fn validate_origins(&self) -> Result<(), InvalidOption> {
        if self.cors.credentials && self.cors.origins.iter().any(|origin| origin == "*") {
            return Err(InvalidOption {
                name: "cors.origins",
                problem: "must name its origins when `cors.credentials` is true: `*` would give \
                          every site the rights of whoever visits it",
            });
        }
        let bad = |origins: &[String]| origins.iter().any(|origin| !is_origin(origin));
        for (name, origins) in [
            ("cors.origins", &self.cors.origins),
            ("trusted_origins", &self.trusted_origins),
        ] {
            if bad(origins) {
                return Err(InvalidOption {
                    name,
                    problem: "must be a list of origins such as `https://app.example.com`, without a path",
                });
            }
        }
        if self.trusted_origins.iter().any(|origin| origin == "*") {
            return Err(InvalidOption {
                name: "trusted_origins",
                problem: "must name its origins",
            });
        }
        Ok(())
    }

    pub(crate) fn listen(&self) -> listen::Options {
        listen::Options {
            connections_max: self.connections_max,
            head_timeout: Duration::from_secs(self.head_timeout_sec),
            write_timeout: Duration::from_secs(self.body_timeout_sec),
            // Feeds have no end.
            request_timeout: None,
            stop_timeout: Duration::from_secs(self.stop_timeout_sec),
        }
    }
}

fn is_origin(text: &str) -> bool {
    text == "*"
        || url::Url::parse(text).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https") && url.origin().ascii_serialization() == text
        })
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn values_are_checked() {
        assert_eq!(Options::default().validate(), Ok(()));
        let parse = |json| serde_json::from_str::<Options>(json).unwrap();
        for (json, expected) in [
            (r#"{"requests_max":0}"#, "`requests_max` must be at least 1"),
            (r#"{"body_timeout_sec":0}"#, "`body_timeout_sec` must be"),
            (r#"{"bodies_bytes_max":7}"#, "`bodies_bytes_max`"),
            (
                r#"{"cors":{"origins":["*"],"credentials":true}}"#,
                "`cors.origins` must name",
            ),
            (
                r#"{"cors":{"origins":["https://a/"]}}"#,
                "`cors.origins` must be a list",
            ),
            (
                r#"{"trusted_origins":["a"]}"#,
                "`trusted_origins` must be a list",
            ),
            (r#"{"trusted_origins":["*"]}"#, "`trusted_origins` must"),
            (
                r#"{"trusted_proxies":["a"]}"#,
                "`trusted_proxies` must be a list",
            ),
        ] {
            let problem = parse(json).validate().unwrap_err().to_string();
            assert!(problem.starts_with(expected), "{json}: {problem}");
        }
        let open = parse(r#"{"cors":{"origins":["*"]},"same_site":"lax"}"#);
        assert_eq!(open.validate(), Ok(()));
        for unknown in [
            r#"{"requests":1}"#,
            r#"{"cors":{"origin":[]}}"#,
            r#"{"same_site":"any"}"#,
        ] {
            assert!(serde_json::from_str::<Options>(unknown).is_err());
        }
    }
}
