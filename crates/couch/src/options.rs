//! Options for connections, under CouchDB's names.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::egress::{Egress, EgressOptions};
use crate::error::Error;
use crate::health::ProbeTimes;
use crate::net::{ClientIdentity, Resolver, Roots, TlsIdentity, Transport};
use crate::retry::RetryPolicy;

/// The section `[network]`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkOptions {
    /// Verify the certificates of servers. Unlike in CouchDB, the default is `true`.
    pub verify_ssl_certificates: bool,
    /// PEM file with the certificate authorities to trust, instead of the operating system's.
    pub ssl_trusted_certificates_file: Option<PathBuf>,
    /// Hours between reloads of the certificate files.
    pub cacert_reload_interval_hours: u64,
    /// PEM file with the client certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the client certificate's private key, which must not be encrypted.
    pub key_file: Option<PathBuf>,
    /// Milliseconds after which idle connections are closed.
    pub connection_close_interval: u64,
    /// Connect to other addresses for the given hosts: `HOST:PORT:TARGET:PORT,…`.
    pub connect_to: String,
    /// Addresses that replications may connect to.
    pub egress: EgressOptions,
    /// What a 429 response slows down: `endpoint`, as in CouchDB, or the whole `host`, which is how
    /// Cloudant counts.
    pub rate_limit_scope: RateLimitScope,
    /// Log in with a session cookie at endpoints that have Basic credentials.
    pub auth_session: bool,
    /// Seconds after which a session is renewed if the server does not specify its lifetime.
    pub session_refresh_interval_sec: u64,
    /// Minimum number of seconds between renewals of a session that the server rejects.
    pub session_min_update_interval: u64,
    /// Directory of the token files that `auth.jwt` refers to.
    pub jwt_directory: Option<PathBuf>,
    /// Use HTTP/2 with servers that support it.
    pub http2: bool,
    /// Resolves host names.
    #[serde(skip)]
    pub resolver: Resolver,
    /// Connects to addresses.
    #[serde(skip)]
    pub transport: Transport,
    /// When servers that give no response are asked again.
    #[serde(skip)]
    pub probes: ProbeTimes,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            verify_ssl_certificates: true,
            ssl_trusted_certificates_file: None,
            cacert_reload_interval_hours: 24,
            cert_file: None,
            key_file: None,
            connection_close_interval: 90_000,
            connect_to: String::new(),
            egress: EgressOptions::default(),
            rate_limit_scope: RateLimitScope::default(),
            auth_session: true,
            session_refresh_interval_sec: 550,
            session_min_update_interval: 5,
            jwt_directory: None,
            http2: true,
            resolver: Resolver::default(),
            transport: Transport::default(),
            probes: ProbeTimes::default(),
        }
    }
}

impl NetworkOptions {
    /// Checks the values, but not the files.
    pub fn validate(&self) -> Result<(), Error> {
        if self.cert_file.is_some() != self.key_file.is_some() {
            let what = "set both `cert_file` and `key_file`, or neither";
            return Err(Error::Config(what.to_owned()));
        }
        Egress::new(&self.egress).map(drop)
    }

    pub(crate) fn tls_identity(&self) -> TlsIdentity {
        let client = self.cert_file.clone().zip(self.key_file.clone());
        TlsIdentity {
            verify: self.verify_ssl_certificates,
            roots: self
                .ssl_trusted_certificates_file
                .clone()
                .map_or(Roots::System, Roots::File),
            client: client.map(|(cert, key)| ClientIdentity::Files { cert, key }),
        }
    }
}

/// What shares a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RateLimitScope {
    /// Requests of one method to one database.
    #[default]
    Endpoint,
    /// Requests of one method to one host.
    Host,
}

/// Options of one opened endpoint.
#[derive(Debug, Clone)]
pub struct RequestOptions {
    /// Maximum number of concurrent connections; further requests wait.
    pub http_connections: usize,
    /// Milliseconds without a byte in either direction after which a request fails
    /// (`connection_timeout`).
    pub inactivity_ms: u64,
    /// Timeout for a whole request in milliseconds, except for feeds and streamed documents
    /// (`request_timeout`).
    pub request_timeout_ms: Option<u64>,
    /// Number of retries (`retries_per_request`).
    pub retries: u32,
    /// No retry starts later than this after the first failure: half of `health_threshold`.
    pub retry_window_ms: u64,
    /// Maximum size of a document, and of a feed's row.
    pub document_bytes_max: usize,
    /// Maximum size of a response that is not streamed.
    pub answer_bytes_max: usize,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self {
            http_connections: 20,
            inactivity_ms: 30_000,
            request_timeout_ms: None,
            retries: 5,
            retry_window_ms: 60_000,
            document_bytes_max: 64 << 20,
            answer_bytes_max: 32 << 20,
        }
    }
}

impl RequestOptions {
    pub(crate) fn inactivity(&self) -> Duration {
        Duration::from_millis(self.inactivity_ms)
    }

    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        let window = Duration::from_millis(self.retry_window_ms);
        RetryPolicy {
            retries: self.retries,
            window,
        }
    }
}
