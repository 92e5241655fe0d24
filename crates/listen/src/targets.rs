//! Escapes characters in request targets that are invalid, but that people type. `curl
//! 'http://HOST/DB/_all_docs?startkey="a"'` sends the quotes as they are, and CouchDB accepts them. The HTTP library
//! would respond 400 before this service sees the request. So `"`, `<` and `>` become `%22`, `%3C` and `%3E` in request
//! lines; nothing else is changed. Request lines are found by following the connection: a line, headers, a body of
//! `Content-Length` bytes, the next line.
//!
//! Escaping makes the stream longer. If this took a part of a body for a request line, the end of the body would become
//! a request of its own. So it must find the same bodies as the HTTP library, and does not guess: after any header about
//! the length of a body other than a single, plain `Content-Length`, everything is passed through.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// How much of a line is examined. A longer line is one that is not about the length of a body, or is not understood.
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
        /// The length of the body, once a header declares it.
        body: Option<u64>,
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
    is_cut: bool,
}

/// What a header line says about the length of the body.
#[derive(Debug, PartialEq, Eq)]
enum Header {
    /// The empty line at the end of the headers.
    End,
    Other,
    Length(u64),
    Unclear,
}

impl Line {
    fn push(&mut self, byte: u8) {
        match self.bytes.get_mut(self.length) {
            Some(place) => {
                *place = byte;
                self.length += 1;
            }
            None => self.is_cut = true,
        }
    }

    /// The line without its end.
    fn text(&self) -> &[u8] {
        let text = &self.bytes[..self.length];
        text.strip_suffix(b"\r").unwrap_or(text)
    }

    fn begins_with(&self, name: &str) -> bool {
        let begin = self.text().get(..name.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(name.as_bytes()))
    }

    fn header(&self) -> Header {
        const LENGTH: &str = "content-length";
        match self.text() {
            [] => Header::End,
            // It continues the line before.
            [b' ' | b'\t', ..] => Header::Unclear,
            _ if self.begins_with("transfer-encoding") => Header::Unclear,
            text if self.begins_with(LENGTH) => match length(&text[LENGTH.len()..]) {
                Some(length) if !self.is_cut => Header::Length(length),
                _ => Header::Unclear,
            },
            _ => Header::Other,
        }
    }
}

/// The length in the rest of a line after the name.
fn length(rest: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(rest.strip_prefix(b":")?).ok()?;
    let digits = digits.trim_matches([' ', '\t']);
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain)
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
                *self = Self::Headers { line, body: None };
            }
            (Self::Headers { line, body }, b'\n') => match line.header() {
                Header::End => {
                    *self = match *body {
                        None | Some(0) => Self::start(),
                        Some(body) => Self::Body(body),
                    };
                }
                Header::Length(length) if body.is_none() => {
                    (*line, *body) = (Line::default(), Some(length));
                }
                Header::Length(_) | Header::Unclear => *self = Self::Unknown,
                Header::Other => *line = Line::default(),
            },
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
mod tests;
