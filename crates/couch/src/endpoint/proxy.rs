//! Proxies of an endpoint.

use std::fmt;

use super::invalid::InvalidEndpoint;
use super::text::Split;
use crate::secret::{Basic, Secret};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProxyScheme {
    /// Plain HTTP: absolute-form requests for `http`, `CONNECT` for `https`.
    Http,
    /// The same inside TLS.
    Https,
    /// SOCKS 5, names being resolved by the proxy.
    Socks5,
}

impl ProxyScheme {
    /// Reads a name of `valid_proxy_protocols`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            "socks5" => Some(Self::Socks5),
            _ => None,
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
            Self::Socks5 => 1080,
        }
    }
}

/// A proxy. `Display` shows its URL without credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    spelled: Secret,
    shown: String,
    scheme: ProxyScheme,
    host: String,
    port: u16,
    credentials: Option<Basic>,
}

impl Proxy {
    /// Reads a proxy URL.
    pub fn parse(text: &str, allowed: &[ProxyScheme]) -> Result<Self, InvalidEndpoint> {
        let split = Split::of(text).ok_or(InvalidEndpoint::ProxyUrl)?;
        let scheme = ProxyScheme::from_name(split.scheme)
            .filter(|scheme| allowed.contains(scheme))
            .ok_or(InvalidEndpoint::ProxyScheme)?;
        // The same parser as for endpoints, so that both agree on what the host is.
        let host = url::Host::parse(&bracketed(split.host))
            .map_err(|_| InvalidEndpoint::ProxyUrl)?
            .to_string();
        Ok(Self {
            spelled: Secret::from(text),
            shown: split.shown(),
            scheme,
            host,
            port: split.port.unwrap_or_else(|| scheme.default_port()),
            credentials: split.credentials(),
        })
    }

    pub fn scheme(&self) -> ProxyScheme {
        self.scheme
    }

    /// Host in URL form (an IPv6 address in brackets).
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn credentials(&self) -> Option<&Basic> {
        self.credentials.as_ref()
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proxy").field(&self.shown).finish()
    }
}
