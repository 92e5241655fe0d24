//! Endpoint URLs as text: replication ids hash the user's own spelling, so nothing may fold case,
//! drop default ports or decode escapes before it is hashed.

use crate::secret::Basic;

/// The pieces of `scheme://[userinfo@]host[:port][path]`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Split<'a> {
    pub(super) scheme: &'a str,
    pub(super) userinfo: Option<&'a str>,
    /// Without the brackets of an IPv6 address.
    pub(super) host: &'a str,
    pub(super) port: Option<u16>,
    /// From the first `/`, `?` or `#` on; may be empty.
    pub(super) rest: &'a str,
    /// Host and port as written.
    pub(super) host_port: &'a str,
}

impl<'a> Split<'a> {
    /// `None` for everything that a URL parser might read differently.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return None;
        }
        let (scheme, after) = text.split_once("://")?;
        let end = after.find(['/', '?', '#']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        if authority.contains('\\') {
            return None;
        }
        // The last @ ends the userinfo, so that a password may hold one.
        let (userinfo, host_port) = match authority.rsplit_once('@') {
            Some((userinfo, host_port)) => (Some(userinfo), host_port),
            None => (None, authority),
        };
        let (host, port) = match host_port.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']')?;
                match after {
                    "" => (host, None),
                    _ => (host, Some(after.strip_prefix(':')?)),
                }
            }
            None => match host_port.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (host_port, None),
            },
        };
        if host.is_empty() {
            return None;
        }
        let port = match port {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) => return None,
            None => None,
        };
        Some(Self {
            scheme,
            userinfo,
            host,
            port,
            rest,
            host_port,
        })
    }

    /// The URL without userinfo.
    pub(super) fn without_userinfo(&self) -> String {
        format!("{}://{}{}", self.scheme, self.host_port, self.rest)
    }

    /// The URL without anything that may hold credentials.
    pub(super) fn shown(&self) -> String {
        let end = self.rest.find(['?', '#']).unwrap_or(self.rest.len());
        format!("{}://{}{}", self.scheme, self.host_port, &self.rest[..end])
    }

    /// Credentials of the userinfo, not percent-decoded; userinfo without a colon gives none.
    pub(super) fn credentials(&self) -> Option<Basic> {
        self.userinfo.and_then(Basic::split)
    }

    /// Path and query, from the first `/` on.
    pub(super) fn path(&self) -> String {
        if self.rest.starts_with('/') {
            self.rest.to_owned()
        } else {
            format!("/{}", self.rest)
        }
    }
}

/// Appends a slash unless there is a query or a slash already.
pub(super) fn with_trailing_slash(text: &str) -> String {
    if text.contains('?') || text.ends_with('/') {
        text.to_owned()
    } else {
        format!("{text}/")
    }
}
