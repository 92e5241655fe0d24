//! Multipart bodies, parsed as they stream in or whole.
//!
//! The parser buffers at most a delimiter's length of data and passes everything else on as slices of the chunks.
//! (General form parsers read ahead as long as the connection delivers, which would buffer whole attachments.)

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::header::{parameter, unquote};

/// Maximum size of one part's headers.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most parts of a whole body: each takes more memory than its bytes in the body.
const PARTS_MAX: usize = 10_000;
/// RFC 2046 allows 70; the parser retains as many bytes at the end of a chunk.
const BOUNDARY_BYTES_MAX: usize = 200;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the headers of a part have more than {HEAD_BYTES_MAX} bytes")]
    HeadTooLarge,
    #[error("a part has malformed headers")]
    BadHead,
    #[error("no line break after a boundary")]
    BadBoundary,
    #[error("missing closing boundary")]
    Truncated,
    #[error("the body has more than {PARTS_MAX} parts")]
    TooManyParts,
}

/// The headers of a part that replication needs.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Part {
    pub content_type: String,
    pub content_encoding: String,
    pub content_length: Option<u64>,
    /// What follows `filename=`, verbatim.
    pub file_name: Option<String>,
}

impl Part {
    /// The file name without quotes: CouchDB does not escape quotes within.
    pub fn bare_name(&self) -> Option<&str> {
        let given = self.file_name.as_deref()?;
        let bare = given
            .strip_prefix('"')
            .and_then(|given| given.strip_suffix('"'));
        Some(bare.unwrap_or(given))
    }

    /// Whether the part has another file name than this one, whether or not the sender escapes quotes.
    pub fn is_named_otherwise(&self, name: &str) -> bool {
        let unquoted = (self.file_name.as_deref())
            .and_then(|given| given.strip_prefix('"'))
            .and_then(unquote);
        self.bare_name().is_some_and(|bare| bare != name)
            && unquoted.is_none_or(|(unquoted, _)| unquoted != name)
    }
}

/// The next event.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Part(Part),
    Data(Bytes),
    PartEnd,
    /// The closing boundary was read; ignore the rest of the body.
    End,
    /// The chunk is used up: feed the next one.
    NeedMore,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Preamble,
    /// Right after a boundary.
    Boundary,
    Head,
    Data,
    /// The delimiter after a part was read, but [`Event::PartEnd`] is still to be returned.
    PartEnd,
    End,
}

pub struct Parser {
    /// `\r\n--boundary`.
    delimiter: memmem::Finder<'static>,
    state: State,
    buffer: Bytes,
}

impl Parser {
    pub fn new(boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}");
        Self {
            delimiter: memmem::Finder::new(delimiter.as_bytes()).into_owned(),
            state: State::Preamble,
            // The first boundary may be at the very start, without a line end before it.
            buffer: Bytes::from_static(b"\r\n"),
        }
    }

    /// A parser of a complete body, which is not copied.
    fn of_whole(body: &Bytes, boundary: &str) -> Self {
        let mut parser = Self::new(boundary);
        parser.buffer = body.clone();
        // The delimiter without its line end.
        let first = &parser.delimiter.needle()[2..];
        if body.starts_with(first) {
            parser.buffer = body.slice(first.len()..);
            parser.state = State::Boundary;
        }
        parser
    }

    pub fn feed(&mut self, chunk: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = chunk;
        } else if !chunk.is_empty() {
            let mut joined = BytesMut::with_capacity(self.buffer.len() + chunk.len());
            joined.extend_from_slice(&self.buffer);
            joined.extend_from_slice(&chunk);
            self.buffer = joined.freeze();
        }
    }

    /// The next event in the bytes fed so far.
    pub fn next_event(&mut self) -> Result<Event, Malformed> {
        loop {
            match self.state {
                State::End => return Ok(Event::End),
                State::Preamble => {
                    let (_, found) = self.take_data();
                    if !found {
                        return Ok(Event::NeedMore);
                    }
                    self.state = State::Boundary;
                }
                State::Data => {
                    let (data, found) = self.take_data();
                    if found {
                        self.state = State::PartEnd;
                    }
                    match (data.is_empty(), found) {
                        (false, _) => return Ok(Event::Data(data)),
                        (true, false) => return Ok(Event::NeedMore),
                        (true, true) => {}
                    }
                }
                State::PartEnd => {
                    self.state = State::Boundary;
                    return Ok(Event::PartEnd);
                }
                State::Boundary => match self.after_boundary()? {
                    Some(state) => self.state = state,
                    None => return Ok(Event::NeedMore),
                },
                State::Head => {
                    let Some(head) = self.take_head()? else {
                        return Ok(Event::NeedMore);
                    };
                    self.state = State::Data;
                    let head = String::from_utf8_lossy(&head);
                    return Part::parse(&head)
                        .map(Event::Part)
                        .ok_or(Malformed::BadHead);
                }
            }
        }
    }

    /// Data up to the delimiter, which is skipped, or all bytes that cannot belong to one.
    fn take_data(&mut self) -> (Bytes, bool) {
        if let Some(at) = self.delimiter.find(&self.buffer) {
            let data = self.buffer.split_to(at);
            self.buffer = self.buffer.slice(self.delimiter.needle().len()..);
            return (data, true);
        }
        let keep = undecided(&self.buffer, self.delimiter.needle());
        (self.buffer.split_to(self.buffer.len() - keep), false)
    }

    /// `--` ends the body, a line end starts a part; spaces and tabs may precede either.
    fn after_boundary(&mut self) -> Result<Option<State>, Malformed> {
        let blanks = self
            .buffer
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t'))
            .count();
        match &self.buffer[blanks..] {
            [b'-', b'-', ..] => Ok(Some(State::End)),
            [b'\r', b'\n', ..] => {
                // The line end stays, so that a head without headers ends like any other.
                self.buffer = self.buffer.slice(blanks..);
                Ok(Some(State::Head))
            }
            [] | [b'-' | b'\r'] if blanks <= HEAD_BYTES_MAX => Ok(None),
            _ => Err(Malformed::BadBoundary),
        }
    }

    fn take_head(&mut self) -> Result<Option<Bytes>, Malformed> {
        match memmem::find(&self.buffer, b"\r\n\r\n") {
            Some(at) if at > HEAD_BYTES_MAX => Err(Malformed::HeadTooLarge),
            Some(at) => {
                let head = self.buffer.split_to(at);
                self.buffer = self.buffer.slice(4..);
                Ok(Some(head))
            }
            None if self.buffer.len() > HEAD_BYTES_MAX => Err(Malformed::HeadTooLarge),
            None => Ok(None),
        }
    }
}

/// The length of the longest suffix of `data` that may be the start of the delimiter.
fn undecided(data: &[u8], delimiter: &[u8]) -> usize {
    let longest = data.len().min(delimiter.len() - 1);
    (1..=longest)
        .rev()
        .find(|length| delimiter.starts_with(&data[data.len() - length..]))
        .unwrap_or(0)
}

impl Part {
    fn parse(head: &str) -> Option<Self> {
        let mut part = Self::default();
        for line in head.split("\r\n").filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-type") {
                value.clone_into(&mut part.content_type);
            } else if name.eq_ignore_ascii_case("content-encoding") {
                value.clone_into(&mut part.content_encoding);
            } else if name.eq_ignore_ascii_case("content-length") {
                part.content_length = Some(value.parse().ok()?);
            } else if name.eq_ignore_ascii_case("content-disposition") {
                part.file_name = value
                    .split_once("filename=")
                    .map(|(_, name)| name.to_owned());
            }
        }
        Some(part)
    }
}

/// The boundary in a `Content-Type`.
pub fn boundary(content_type: &str) -> Option<String> {
    parameter(content_type, "boundary")
        .filter(|boundary| (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()))
}

/// The headers and the content of each part of a whole body. The contents are slices of it.
pub fn split(body: &Bytes, boundary: &str) -> Result<Vec<(Part, Bytes)>, Malformed> {
    let mut parser = Parser::of_whole(body, boundary);
    let mut parts: Vec<(Part, Bytes)> = Vec::new();
    loop {
        match parser.next_event()? {
            Event::Part(_) if parts.len() == PARTS_MAX => return Err(Malformed::TooManyParts),
            Event::Part(part) => parts.push((part, Bytes::new())),
            // The content is one piece, since the parser has the whole body.
            Event::Data(data) => parts.last_mut().expect("data follows a part").1 = data,
            Event::PartEnd => {}
            Event::End => return Ok(parts),
            Event::NeedMore => return Err(Malformed::Truncated),
        }
    }
}

#[cfg(test)]
mod tests;
