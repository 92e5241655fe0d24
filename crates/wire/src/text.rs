//! Errors, bytes and path segments as text.

use std::error::Error;
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that CouchDB leaves unescaped in `Location`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'_')
    .remove(b'.')
    .remove(b'-')
    .remove(b':');

/// An error and its causes on one line, for logs.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let _ = write!(text, ": {cause}");
        next = cause.source();
    }
    text
}

/// Two lower-case digits per byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses the result of [`hex`]; upper case is accepted as well.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

/// Percent-encodes a path segment as CouchDB does in `Location`.
pub fn quote(segment: &str) -> String {
    utf8_percent_encode(segment, PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_quoted() {
        assert_eq!(quote("a/b c:é_.-~"), "a%2Fb%20c:%C3%A9_.-%7E");
    }

    #[test]
    fn causes_follow_their_error() {
        let cause = std::io::Error::other("disk full");
        let error = std::io::Error::other(cause);
        assert_eq!(chain(&error), "disk full");
    }

    #[test]
    fn digits_are_read_and_written() {
        assert_eq!(hex(&[0, 171, 255]), "00abff");
        assert_eq!(unhex("00aBff").unwrap(), [0, 171, 255]);
        for bad in ["0", "0g", "+f", "é"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
