//! Recognises requests that web pages send, for services that answer this host without authentication. A browser on this
//! host sends requests for any open page: with `Origin` if they can change something, and with a foreign `Host` if the page
//! uses DNS rebinding.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, ORIGIN};

/// Why a request may be one of a web page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FromPage {
    #[error("answers no requests with Origin, which web pages send")]
    Origin,
    #[error("answers on loopback addresses and its own name only, not as {0}")]
    Host(String),
}

/// Fails for a request with which a web page could change something, or whose response it could read.
pub fn not_from_a_page(headers: &HeaderMap) -> Result<(), FromPage> {
    if headers.contains_key(ORIGIN) {
        return Err(FromPage::Origin);
    }
    let host = headers.get(HOST).map(|host| host.to_str().unwrap_or("?"));
    match host {
        Some(host) if !is_own(host) => Err(FromPage::Host(host.to_owned())),
        _ => Ok(()),
    }
}

/// Whether a `Host` is of this host, with or without a port.
fn is_own(host: &str) -> bool {
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let is_port = port.bytes().all(|c| c.is_ascii_digit());
    let name = if is_port { name } else { host };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(is_loopback)
        || name.eq_ignore_ascii_case(&host::name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_own_by_its_name_or_address() {
        let own = &host::name();
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:5987",
            "127.9.9.9",
            "[::1]:80",
            own,
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]:80",
            "",
        ] {
            assert!(!is_own(host), "{host}");
        }
    }

    #[test]
    fn programs_send_no_origin() {
        let mut headers = HeaderMap::new();
        assert_eq!(not_from_a_page(&headers), Ok(()));
        headers.insert(HOST, "localhost:80".parse().unwrap());
        assert_eq!(not_from_a_page(&headers), Ok(()));
        headers.insert(ORIGIN, "null".parse().unwrap());
        assert_eq!(not_from_a_page(&headers), Err(FromPage::Origin));
        headers.remove(ORIGIN);
        headers.insert(HOST, "a".parse().unwrap());
        assert_eq!(
            not_from_a_page(&headers),
            Err(FromPage::Host("a".to_owned()))
        );
    }
}
