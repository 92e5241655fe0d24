//! Values of `Accept` and `Content-Type`.

/// Whether the value of an `Accept` header admits a media type.
pub fn accepts(header: &str, content_type: &str) -> bool {
    let group = content_type.split('/').next().unwrap_or_default();
    let mut accepted = false;
    for range in header.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        let refused = weight.map_or(Ok(1.0), str::parse::<f64>).unwrap_or(0.0) <= 0.0;
        let specific = kind == content_type || kind.strip_suffix("/*") == Some(group);
        // A specific refusal overrides `*/*`, wherever it is in the list.
        if specific && refused {
            return false;
        }
        accepted |= !refused && (specific || kind == "*/*");
    }
    accepted
}

/// The media type of a `Content-Type`, in lower case and without parameters.
pub fn media_type(content_type: &str) -> String {
    content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// A parameter of a header value, quoted or not.
pub fn parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (key, after) = rest.split_once('=')?;
        // Skips parameters without a value.
        let key = key.rsplit(';').next().unwrap_or_default().trim();
        let after = after.trim_start();
        let (found, left) = if let Some(quoted) = after.strip_prefix('"') {
            unquote(quoted)?
        } else {
            let (text, left) = after.split_once(';').unwrap_or((after, ""));
            (text.trim_end().to_owned(), left)
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(found);
        }
        rest = left;
    }
}

/// The text up to the closing quote, and what follows it.
pub(crate) fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(chars.next()?.1),
            _ => text.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_headers() {
        for (header, content_type, expected) in [
            ("*/*", "multipart/mixed", true),
            ("application/json", "multipart/mixed", false),
            ("multipart/*", "multipart/mixed", true),
            ("a/b, application/json;q=0.5", "application/json", true),
            ("*/*, application/json;q=0", "application/json", false),
            ("text/html;q=0.9, */*;q=0.1", "application/json", true),
            ("", "application/json", false),
        ] {
            let accepted = accepts(header, content_type);
            assert_eq!(accepted, expected, "{header} {content_type}");
        }
    }

    #[test]
    fn parameters() {
        let value = r#"multipart/Mixed; charset=utf-8; boundary="a;b=\"c" ; x=y"#;
        assert_eq!(media_type(value), "multipart/mixed");
        assert_eq!(parameter(value, "Boundary").as_deref(), Some("a;b=\"c"));
        assert_eq!(parameter(value, "charset").as_deref(), Some("utf-8"));
        assert_eq!(parameter(value, "x").as_deref(), Some("y"));
        assert_eq!(parameter(value, "z"), None);
        assert_eq!(
            parameter("application/json;error=\"true\"", "error").as_deref(),
            Some("true")
        );
        assert_eq!(parameter("text/plain; b; a=c", "a").as_deref(), Some("c"));
        assert_eq!(parameter("text/plain", "a"), None);
        assert_eq!(parameter("text/plain; a=\"", "a"), None);
    }

    #[test]
    fn any_parameters() {
        testkit::fuzz(
            "parameters",
            &[b"a/b; boundary=\"x\\\"y\"; c=d"],
            &[";", "=", "\"", "\\", "boundary"],
            |text| {
                let Ok(text) = std::str::from_utf8(text) else {
                    return false;
                };
                let found = parameter(text, "boundary");
                assert!(found.as_ref().is_none_or(|found| found.len() <= text.len()));
                media_type(text);
                found.is_some()
            },
        );
    }
}
