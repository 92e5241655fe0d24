//! Errors in endpoints.

/// The longest URL. Servers' texts are searched for its parts, and servers accept no longer ones.
pub(super) const URL_BYTES_MAX: usize = 8 * 1024;

/// The most headers that common servers accept.
pub(super) const HEADERS_MAX: usize = 100;

/// Why a `source`, `target` or proxy is not usable. The texts are CouchDB's and are shown to the
/// user; none repeats what the user wrote, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    #[error("Missing replication endpoint")]
    Missing,
    /// A name without `http://` or `https://`.
    #[error("local_endpoints_not_supported")]
    Local,
    /// Not a URL, or one that cannot or may not be used.
    #[error("endpoint has an invalid url")]
    Url,
    #[error("endpoint has a url of more than {URL_BYTES_MAX} bytes")]
    LongUrl,
    #[error("if defined, `auth` must be an object")]
    Auth,
    /// A known member of `auth` has the wrong form.
    #[error("`auth.{0}` is not valid")]
    AuthMember(&'static str),
    #[error("if defined `headers` must be an object")]
    Headers,
    /// A header that cannot be sent.
    #[error("`headers` must have valid names and string values")]
    Header,
    #[error("`headers` must have at most {} members", HEADERS_MAX)]
    TooManyHeaders,
    /// A header that the service sets itself, or that only a proxy may send: its name, and what to do.
    #[error("the header `{0}` cannot be set in `headers`: {1}")]
    RefusedHeader(&'static str, &'static str),
    /// A session's cookie and other credentials: the server would choose which of them counts.
    #[error(
        "`headers` has the cookie `AuthSession` in addition to other credentials: keep one of them"
    )]
    TwoCredentials,
    #[error(
        "`auth.secret_ref` names a secret that may not be sent to this server: add its origin to `origins` of the secret \
         in the configuration"
    )]
    SecretOrigin,
    /// `tls` or one of its members has the wrong form.
    #[error("`tls` must be an object of `verify`, `ca`, `cert` and `key`")]
    Tls,
    /// The proxy is not a URL.
    #[error("proxy has an invalid url")]
    ProxyUrl,
    /// The proxy is neither http, https nor socks5, or the configuration excludes it.
    #[error("Unsupported proxy protocol")]
    ProxyScheme,
}
