//! Finds the rows of a streamed JSON response without waiting for its end.
//!
//! CouchDB writes one row per line, other servers write as they like, and proxies cut anywhere, so
//! rows are found by the structure of the JSON alone. Each byte is examined once, whatever the sizes
//! of the chunks; a row within one chunk is a slice of it. What surrounds the rows, as
//! `{"results":[` and `],"last_seq":7}`, is collected as the *envelope*, so that members before and
//! after the rows can be parsed alike. Rows are not validated here but when they are parsed.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;
use wire::FeedKind;

/// More than any server sends besides its rows.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// The elements of an array that is this member of an object.
    Member(&'static str),
    Array,
    Values,
    /// Values on lines that begin with `data:`, among other lines (`text/event-stream`).
    Events,
}

impl From<FeedKind> for Layout {
    fn from(kind: FeedKind) -> Self {
        match kind {
            FeedKind::Normal | FeedKind::Longpoll => Self::Member("results"),
            FeedKind::Continuous => Self::Values,
            FeedKind::EventSource => Self::Events,
        }
    }
}

impl Layout {
    /// Whether there is nothing but rows, which may end at any time.
    fn is_bare(self) -> bool {
        matches!(self, Self::Values | Self::Events)
    }
}

/// The prefix of a row's line in an event stream.
const DATA: &[u8] = b"data:";

/// Why a response does not match its layout.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("a row has more than {0} bytes")]
    RowTooLarge(usize),
    #[error("the response has more than {ENVELOPE_BYTES_MAX} bytes outside its rows")]
    EnvelopeTooLarge,
    #[error("it is not JSON")]
    NotJson,
    #[error("it has no rows")]
    NoRows,
    #[error("truncated")]
    Truncated,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Head,
    /// Between rows; `comma` if a comma may come next.
    Between {
        comma: bool,
    },
    /// At the start of a line of an event stream, after `matched` bytes of `data:`.
    Line {
        matched: usize,
    },
    /// In a line of an event stream without a row, or after it.
    Rest,
    Row,
    Tail,
}

/// Finds rows in chunks.
pub(crate) struct Splitter {
    layout: Layout,
    row_bytes_max: usize,
    state: State,
    /// Received, but not examined yet.
    chunk: Bytes,
    /// The beginning of a row that started in an earlier chunk.
    carry: BytesMut,
    scan: Scan,
    envelope: Vec<u8>,
    /// Start and end of the last complete string in the envelope.
    last_string: (usize, usize),
    string_start: usize,
}

/// Where in a JSON value the scan is.
#[derive(Default, Clone, Copy)]
struct Scan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// A number or literal: it ends at the next delimiter.
    in_scalar: bool,
}

impl Splitter {
    pub(crate) fn new(layout: Layout, row_bytes_max: usize) -> Self {
        let state = match layout {
            Layout::Values => State::Between { comma: false },
            Layout::Events => State::Line { matched: 0 },
            Layout::Member(_) | Layout::Array => State::Head,
        };
        Self {
            layout,
            row_bytes_max,
            state,
            chunk: Bytes::new(),
            carry: BytesMut::new(),
            scan: Scan::default(),
            envelope: Vec::new(),
            last_string: (0, 0),
            string_start: 0,
        }
    }

    /// Takes the next chunk; the one before must have been used up by [`Splitter::next_row`].
    pub(crate) fn feed(&mut self, chunk: Bytes) {
        debug_assert!(
            self.chunk.is_empty(),
            "rows of the last chunk are still there"
        );
        self.chunk = chunk;
    }

    /// The next row that is complete, `None` when the chunk is used up.
    pub(crate) fn next_row(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            if self.chunk.is_empty() {
                return Ok(None);
            }
            match self.state {
                State::Head => self.head()?,
                State::Between { comma } => self.between(comma)?,
                State::Line { matched } => self.line(matched),
                State::Rest => self.rest(),
                State::Tail => {
                    let rest = std::mem::take(&mut self.chunk);
                    self.keep(&rest)?;
                }
                State::Row => {
                    if let Some(row) = self.row()? {
                        return Ok(Some(row));
                    }
                }
            }
        }
    }

    /// Ends the input and returns the envelope.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, Broken> {
        match self.state {
            State::Between { .. } if self.layout.is_bare() => Ok(self.envelope),
            State::Line { .. } | State::Rest => Ok(self.envelope),
            State::Row | State::Between { .. } => Err(Broken::Truncated),
            State::Head if self.envelope.iter().all(u8::is_ascii_whitespace) => {
                Err(Broken::Truncated)
            }
            State::Head | State::Tail => {
                match serde_json::from_slice::<serde::de::IgnoredAny>(&self.envelope) {
                    Ok(_) if self.state == State::Tail => Ok(std::mem::take(&mut self.envelope)),
                    Ok(_) => Err(Broken::NoRows),
                    Err(error) if error.is_eof() => Err(Broken::Truncated),
                    Err(_) => Err(Broken::NotJson),
                }
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if self.envelope.len() + bytes.len() > ENVELOPE_BYTES_MAX {
            return Err(Broken::EnvelopeTooLarge);
        }
        self.envelope.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads through the bracket that opens the rows.
    fn head(&mut self) -> Result<(), Broken> {
        let chunk = std::mem::take(&mut self.chunk);
        for (index, &byte) in chunk.iter().enumerate() {
            if self.envelope.len() == ENVELOPE_BYTES_MAX {
                return Err(Broken::EnvelopeTooLarge);
            }
            let opens = byte == b'[' && !self.scan.in_string && self.opens_rows();
            self.head_byte(byte)?;
            self.envelope.push(byte);
            if opens {
                self.state = State::Between { comma: false };
                self.scan = Scan::default();
                self.chunk = chunk.slice(index + 1..);
                return Ok(());
            }
        }
        Ok(())
    }

    fn opens_rows(&self) -> bool {
        match self.layout {
            Layout::Array => self.scan.depth == 0,
            Layout::Member(name) => {
                let (start, end) = self.last_string;
                let colon = self.envelope[end..]
                    .iter()
                    .find(|b| !b.is_ascii_whitespace() && **b != b'"');
                self.scan.depth == 1
                    && colon == Some(&b':')
                    && self.envelope.get(start..end) == Some(name.as_bytes())
            }
            Layout::Values | Layout::Events => false,
        }
    }

    /// Reads the beginning of a line of an event stream.
    fn line(&mut self, matched: usize) {
        let byte = self.chunk[0];
        self.state = match byte {
            b'\n' | b'\r' => State::Line { matched: 0 },
            _ if DATA.get(matched) != Some(&byte) => State::Rest,
            _ if matched + 1 == DATA.len() => State::Between { comma: false },
            _ => State::Line {
                matched: matched + 1,
            },
        };
        if self.state != State::Rest {
            self.chunk = self.chunk.slice(1..);
        }
    }

    /// Skips to the end of a line of an event stream.
    fn rest(&mut self) {
        match memchr2(b'\n', b'\r', &self.chunk) {
            None => self.chunk = Bytes::new(),
            Some(end) => {
                self.chunk = self.chunk.slice(end + 1..);
                self.state = State::Line { matched: 0 };
            }
        }
    }

    fn head_byte(&mut self, byte: u8) -> Result<(), Broken> {
        if self.scan.in_string {
            if self.scan.escaped {
                self.scan.escaped = false;
            } else if byte == b'\\' {
                self.scan.escaped = true;
            } else if byte == b'"' {
                self.scan.in_string = false;
                self.last_string = (self.string_start, self.envelope.len());
            }
            return Ok(());
        }
        match byte {
            b'"' => {
                self.scan.in_string = true;
                self.string_start = self.envelope.len() + 1;
            }
            b'{' | b'[' => self.scan.depth += 1,
            b'}' | b']' => {
                self.scan.depth = self.scan.depth.checked_sub(1).ok_or(Broken::NotJson)?;
            }
            // The first byte distinguishes JSON from HTML and other text.
            _ if self.scan.depth == 0 && !byte.is_ascii_whitespace() => {
                return Err(Broken::NotJson);
            }
            _ => {}
        }
        Ok(())
    }

    /// Skips to the first byte of a row, or to the bracket that closes the rows.
    fn between(&mut self, mut comma: bool) -> Result<(), Broken> {
        for (index, &byte) in self.chunk.iter().enumerate() {
            match byte {
                b'\n' | b'\r' if self.layout == Layout::Events => {
                    self.chunk = self.chunk.slice(index + 1..);
                    self.state = State::Line { matched: 0 };
                    return Ok(());
                }
                b' ' | b'\n' | b'\r' | b'\t' => {}
                b',' if comma => comma = false,
                b']' if !self.layout.is_bare() => {
                    self.chunk = self.chunk.slice(index + 1..);
                    self.state = State::Tail;
                    return self.keep(b"]");
                }
                b',' | b']' | b'}' | b':' => return Err(Broken::NotJson),
                _ => {
                    self.chunk = self.chunk.slice(index..);
                    self.state = State::Row;
                    self.scan = Scan::default();
                    return Ok(());
                }
            }
        }
        self.chunk = Bytes::new();
        self.state = State::Between { comma };
        Ok(())
    }

    fn row(&mut self) -> Result<Option<Bytes>, Broken> {
        let end = self.scan.end_of_value(&self.chunk)?;
        let length = self.carry.len() + end.unwrap_or(self.chunk.len());
        if length > self.row_bytes_max {
            return Err(Broken::RowTooLarge(self.row_bytes_max));
        }
        let Some(end) = end else {
            self.carry.extend_from_slice(&self.chunk);
            self.chunk = Bytes::new();
            return Ok(None);
        };
        self.state = match self.layout {
            Layout::Events => State::Rest,
            layout => State::Between {
                comma: !layout.is_bare(),
            },
        };
        let part = self.chunk.split_to(end);
        if self.carry.is_empty() {
            return Ok(Some(part));
        }
        let mut row = std::mem::take(&mut self.carry);
        row.extend_from_slice(&part);
        Ok(Some(row.freeze()))
    }
}

impl Scan {
    /// Scans on in a value; returns where it ends, if that is within `bytes`.
    fn end_of_value(&mut self, bytes: &[u8]) -> Result<Option<usize>, Broken> {
        let mut at = 0;
        while at < bytes.len() {
            if self.in_string {
                at = match self.skip_string(bytes, at) {
                    Some(after) => after,
                    None => return Ok(None),
                };
                if self.depth == 0 {
                    return Ok(Some(at));
                }
                continue;
            }
            match bytes[at] {
                b'"' if !self.in_scalar => self.in_string = true,
                b'{' | b'[' if !self.in_scalar => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Some(at + 1));
                    }
                }
                b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t' if self.in_scalar => {
                    return Ok(Some(at));
                }
                b'"' | b'{' | b'[' => return Err(Broken::NotJson),
                _ if self.depth == 0 => self.in_scalar = true,
                _ => {}
            }
            at += 1;
        }
        Ok(None)
    }

    /// The position after the closing quote.
    fn skip_string(&mut self, bytes: &[u8], mut at: usize) -> Option<usize> {
        if self.escaped {
            self.escaped = false;
            at += 1;
        }
        loop {
            at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
            if bytes[at] == b'"' {
                self.in_string = false;
                return Some(at + 1);
            }
            if at + 1 == bytes.len() {
                self.escaped = true;
                return None;
            }
            at += 2;
        }
    }
}

#[cfg(test)]
mod tests;
