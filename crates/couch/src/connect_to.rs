//! `connect_to`: other addresses for chosen hosts, as curl's option of that name.
//!
//! Only where the connection goes changes; the `Host` header, the TLS server name and the
//! certificate check keep the host of the URL.

/// One `HOST:PORT:TARGET:TARGET_PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Lower case; with a leading `*` it is a suffix.
    pattern: String,
    port: u16,
    target: String,
    target_port: u16,
}

/// The option, parsed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectTo {
    entries: Vec<Entry>,
}

impl ConnectTo {
    /// Parses entries separated by commas; invalid ones are logged and skipped.
    pub(crate) fn parse(option: &str) -> Self {
        let texts = option
            .split(',')
            .map(str::trim)
            .filter(|text| !text.is_empty());
        let entries = texts.filter_map(|text| {
            let entry = Entry::parse(text);
            if entry.is_none() {
                tracing::warn!(
                    entry = text,
                    "connect_to entry is not HOST:PORT:TARGET:PORT"
                );
            }
            entry
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// Where to connect instead of `host:port`. The first match wins.
    pub(crate) fn resolve(&self, host: &str, port: u16) -> Option<(&str, u16)> {
        let matching = |entry: &&Entry| entry.port == port && entry.matches(host);
        let entry = self.entries.iter().find(matching)?;
        Some((&entry.target, entry.target_port))
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        let (pattern, rest) = text.split_once(':')?;
        let (port, rest) = rest.split_once(':')?;
        let (target, target_port) = rest.rsplit_once(':')?;
        let bracketed = target.starts_with('[') && target.ends_with(']');
        if pattern.is_empty() || pattern.starts_with('[') || (target.contains(':') && !bracketed) {
            return None;
        }
        Some(Self {
            pattern: pattern.to_ascii_lowercase(),
            port: port.parse().ok()?,
            target: url::Host::parse(target).ok()?.to_string(),
            target_port: target_port.parse().ok()?,
        })
    }

    fn matches(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        match self.pattern.strip_prefix('*') {
            Some(suffix) => host.ends_with(suffix),
            None => host == self.pattern,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(option: &str, host: &str, port: u16) -> Option<String> {
        let parsed = ConnectTo::parse(option);
        parsed
            .resolve(host, port)
            .map(|(host, port)| format!("{host} {port}"))
    }

    #[test]
    fn patterns() {
        let option = "*.example.com:443:proxy.internal:8443";
        assert_eq!(
            one(option, "sub.example.com", 443).as_deref(),
            Some("proxy.internal 8443")
        );
        assert_eq!(
            one(option, "a.b.EXAMPLE.com", 443).as_deref(),
            Some("proxy.internal 8443")
        );
        assert_eq!(one(option, "example.com", 443), None, "the bare domain");
        assert_eq!(one(option, "badexample.com", 443), None);
        assert_eq!(one(option, "sub.example.com", 80), None, "another port");
        assert_eq!(
            one("Foo.com:1:bar:2", "fOO.com", 1).as_deref(),
            Some("bar 2")
        );
        assert_eq!(
            one("a:1:x:1, a:1:y:1", "a", 1).as_deref(),
            Some("x 1"),
            "the first"
        );
    }

    #[test]
    fn targets() {
        assert_eq!(
            one("h:1:192.168.1.1:8443", "h", 1).as_deref(),
            Some("192.168.1.1 8443")
        );
        assert_eq!(
            one("h:1:[2001:db8::1]:8443", "h", 1).as_deref(),
            Some("[2001:db8::1] 8443")
        );
    }

    #[test]
    fn bad_entries_are_left_out() {
        for bad in [
            "h:1:t",
            "h:x:t:1",
            ":1:t:1",
            "[::1]:1:t:1",
            "h:1::1",
            "h:1:2001:db8::1:1",
            "h",
        ] {
            assert!(ConnectTo::parse(bad).entries.is_empty(), "{bad}");
            assert_eq!(
                one(&format!("{bad},h:1:t:2"), "h", 1).as_deref(),
                Some("t 2"),
                "{bad}"
            );
        }
    }
}
