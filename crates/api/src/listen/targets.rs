//! Escapes characters in request targets that are invalid, but that people type. `curl
//! 'http://HOST/DB/_all_docs?startkey="a"'` sends the quotes as they are, and CouchDB accepts them. The HTTP library
//! would respond 400 before this service sees the request. So `"`, `<` and `>` become `%22`, `%3C` and `%3E` in request
//! lines; nothing else is changed. Request lines are found by following the connection: a line, headers, a body of
//! `Content-Length` bytes, the next line. After a body without a length, or if it is not HTTP/1, everything is passed
//! through.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// How much of a header line is examined: the two relevant ones are shorter.
const LINE_MAX: usize = 32;

/// A stream of requests whose targets get escaped.
pub(super) struct Escaped<S> {
    stream: S,
    state: State,
    /// Escaped bytes that did not fit the reader's buffer, and how many of them were read.
    left: Vec<u8>,
    read: usize,
}

/// The position within a request.
#[derive(Debug)]
enum State {
    /// Before the first space of the request line.
    Method(Line),
    Target,
    /// After the target: the rest of the line, and headers.
    Headers {
        line: Line,
        body: u64,
    },
    Body(u64),
    /// Pass everything through.
    Unknown,
}

/// The start of a line.
#[derive(Debug, Default)]
struct Line {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Line {
    fn push(&mut self, byte: u8) {
        if let Some(state) = self.bytes.get_mut(self.length) {
            *state = byte;
            self.length += 1;
        }
    }

    fn text(&self) -> &[u8] {
        self.bytes[..self.length].trim_ascii()
    }

    fn value_of(&self, header: &str) -> Option<&[u8]> {
        let (name, value) = self.text().split_at_checked(header.len())?;
        let value = value.strip_prefix(b":")?;
        name.eq_ignore_ascii_case(header.as_bytes())
            .then(|| value.trim_ascii())
    }
}

impl State {
    fn start() -> Self {
        Self::Method(Line::default())
    }

    /// Processes bytes. `None` if they are unchanged.
    fn pass(&mut self, mut bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out: Option<Vec<u8>> = None;
        let all = bytes;
        while let Some((&byte, rest)) = bytes.split_first() {
            match self {
                Self::Unknown => break,
                Self::Body(left) => {
                    let inside = bytes
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    if let Some(out) = &mut out {
                        out.extend_from_slice(&bytes[..inside]);
                    }
                    *left -= inside as u64;
                    bytes = &bytes[inside..];
                    if *left == 0 {
                        *self = Self::start();
                    }
                    continue;
                }
                Self::Target if escape(byte).is_some() => {
                    let passed = all.len() - bytes.len();
                    let out = out.get_or_insert_with(|| all[..passed].to_vec());
                    out.extend_from_slice(escape(byte).unwrap_or_default());
                    bytes = rest;
                    continue;
                }
                _ => self.step(byte),
            }
            if let Some(out) = &mut out {
                out.push(byte);
            }
            bytes = rest;
        }
        if let Some(out) = &mut out {
            out.extend_from_slice(bytes);
        }
        out
    }

    /// Processes a byte of a head that stays unchanged.
    fn step(&mut self, byte: u8) {
        match (&mut *self, byte) {
            // The preface of HTTP/2.
            (Self::Method(line), b' ') if line.text() == b"PRI" => *self = Self::Unknown,
            (Self::Method(line), b' ') if !line.text().is_empty() => *self = Self::Target,
            // Empty lines may precede a request.
            (Self::Method(line), b'\n') if line.text().is_empty() => *self = Self::start(),
            (Self::Method(_) | Self::Target, b'\n') => *self = Self::Unknown,
            (Self::Target, b' ') => {
                let mut line = Line::default();
                // The end of this line does not end the headers.
                line.push(b'x');
                *self = Self::Headers { line, body: 0 };
            }
            (Self::Headers { line, body }, b'\n') => {
                if line.text().is_empty() {
                    *self = match *body {
                        0 => Self::start(),
                        body => Self::Body(body),
                    };
                } else if line.value_of("transfer-encoding").is_some() {
                    *self = Self::Unknown;
                } else if let Some(value) = line.value_of("content-length") {
                    let number = std::str::from_utf8(value).ok().and_then(|n| n.parse().ok());
                    match number {
                        Some(number) => *body = number,
                        None => *self = Self::Unknown,
                    }
                }
                if let Self::Headers { line, .. } = self {
                    *line = Line::default();
                }
            }
            (Self::Method(line) | Self::Headers { line, .. }, byte) => line.push(byte),
            _ => {}
        }
    }
}

fn escape(byte: u8) -> Option<&'static [u8]> {
    match byte {
        b'"' => Some(b"%22"),
        b'<' => Some(b"%3C"),
        b'>' => Some(b"%3E"),
        _ => None,
    }
}

impl<S> Escaped<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            state: State::start(),
            left: Vec::new(),
            read: 0,
        }
    }

    /// Returns bytes left from the last read; false if there were none.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let left = &self.left[self.read..];
        let now = left.len().min(buf.remaining());
        buf.put_slice(&left[..now]);
        self.read += now;
        if self.read == self.left.len() {
            (self.left, self.read) = (Vec::new(), 0);
        }
        now > 0
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Escaped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.give(buf) {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = read
            && let Some(longer) = this.state.pass(&buf.filled()[before..])
        {
            buf.set_filled(before);
            (this.left, this.read) = (longer, 0);
            this.give(buf);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation passed through in pieces of this size.
    fn through(text: &str, size: usize) -> String {
        let mut state = State::start();
        let pieces = text.as_bytes().chunks(size);
        let passed = pieces.flat_map(|piece| state.pass(piece).unwrap_or_else(|| piece.to_vec()));
        String::from_utf8(passed.collect()).unwrap()
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        for size in [1, 2, 3, 7, 64, 10_000] {
            assert_eq!(through(text, size), expected, "in pieces of {size}");
        }
    }

    #[track_caller]
    fn same(text: &str) {
        check(text, text);
    }

    #[test]
    fn targets_are_escaped_and_nothing_else() {
        check(
            "GET /a?b=\"c\"<d> HTTP/1.1\r\nx: \"<>\"\r\nhost: a\r\n\r\n\r\nGET /\"e HTTP/1.1\r\n\r\n",
            "GET /a?b=%22c%22%3Cd%3E HTTP/1.1\r\nx: \"<>\"\r\nhost: a\r\n\r\n\r\nGET /%22e HTTP/1.1\r\n\r\n",
        );
        check("GET /\"a\" HTTP/1.0\n\n", "GET /%22a%22 HTTP/1.0\n\n");
    }

    #[test]
    fn bodies_stay_as_they_are() {
        let body = "GET /\"x\" HTTP/1.1\r\n\r\n";
        let post = |target: &str| {
            let length = body.len();
            format!("POST {target} HTTP/1.1\r\nContent-LENGTH:  {length} \r\n\r\n{body}")
        };
        let quoted = format!("{0}{0}GET /\" HTTP/1.1\r\n\r\n", post("/\""));
        let escaped = format!("{0}{0}GET /%22 HTTP/1.1\r\n\r\n", post("/%22"));
        check(&quoted, &escaped);
    }

    #[test]
    fn what_has_no_length_is_left_alone() {
        same(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\"x\" HTTP/1.1\r\n\r\n",
        );
        same("POST / HTTP/1.1\r\ncontent-length: many\r\n\r\nGET /\"x\" HTTP/1.1\r\n\r\n");
        same("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET /\"x\" HTTP/1.1\r\n\r\n");
        same("nonsense\nGET /\"x\" HTTP/1.1\r\n\r\n");
        same("GET /a\nGET /\"x\" HTTP/1.1\r\n\r\n");
    }
}
