//! Multipart bodies, parsed as they stream in.
//!
//! The parser never holds more than a delimiter's length of data: what it cannot decide about it
//! keeps, everything else it hands on as slices of the chunks. (General parsers of forms read ahead
//! for as long as the connection delivers, which would hold whole attachments.)

use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// The headers of one part may have this many bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// What is wrong with a multipart body.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the headers of a part have more than {HEAD_BYTES_MAX} bytes")]
    HeadTooLarge,
    #[error("a part has headers that are none")]
    BadHead,
    #[error("a boundary is followed by something else than a line end")]
    BadBoundary,
}

/// Headers of a part that matter here.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub(crate) struct Part {
    pub(crate) content_type: String,
    /// What follows `filename=`, as it stands there.
    pub(crate) file_name: Option<String>,
    pub(crate) content_length: Option<u64>,
}

impl Part {
    /// Whether the part says that it is another attachment than this one. CouchDB puts names
    /// between quotes without escaping any within, others escape them.
    pub(crate) fn is_named_otherwise(&self, name: &str) -> bool {
        let Some(given) = &self.file_name else {
            return false;
        };
        let bare = given
            .strip_prefix('"')
            .and_then(|given| given.strip_suffix('"'));
        let unquoted = given.strip_prefix('"').and_then(unquote);
        bare.unwrap_or(given) != name && unquoted.is_none_or(|(unquoted, _)| unquoted != name)
    }
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Part(Part),
    Data(Bytes),
    PartEnd,
    /// The closing boundary was seen; what follows means nothing.
    End,
    /// The chunk is used up.
    NeedMore,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Preamble,
    /// Right after a boundary.
    Boundary,
    Head,
    Data,
    /// The delimiter after a part was seen and the end of the part is still to be told.
    PartEnd,
    End,
}

/// Parses one multipart body.
pub(crate) struct Parser {
    /// `\r\n--boundary`.
    delimiter: memmem::Finder<'static>,
    place: Place,
    buffer: Bytes,
}

impl Parser {
    pub(crate) fn new(boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}");
        Self {
            delimiter: memmem::Finder::new(delimiter.as_bytes()).into_owned(),
            place: Place::Preamble,
            // The first boundary needs no line end before it.
            buffer: Bytes::from_static(b"\r\n"),
        }
    }

    /// Takes the next chunk.
    pub(crate) fn feed(&mut self, chunk: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = chunk;
        } else if !chunk.is_empty() {
            let mut joined = BytesMut::with_capacity(self.buffer.len() + chunk.len());
            joined.extend_from_slice(&self.buffer);
            joined.extend_from_slice(&chunk);
            self.buffer = joined.freeze();
        }
    }

    /// What the bytes so far say.
    pub(crate) fn next_event(&mut self) -> Result<Event, Broken> {
        loop {
            match self.place {
                Place::End => return Ok(Event::End),
                Place::Preamble => {
                    let (_, found) = self.take_data();
                    if !found {
                        return Ok(Event::NeedMore);
                    }
                    self.place = Place::Boundary;
                }
                Place::Data => {
                    let (data, found) = self.take_data();
                    if found {
                        self.place = Place::PartEnd;
                    }
                    match (data.is_empty(), found) {
                        (false, _) => return Ok(Event::Data(data)),
                        (true, false) => return Ok(Event::NeedMore),
                        (true, true) => {}
                    }
                }
                Place::PartEnd => {
                    self.place = Place::Boundary;
                    return Ok(Event::PartEnd);
                }
                Place::Boundary => match self.after_boundary()? {
                    Some(place) => self.place = place,
                    None => return Ok(Event::NeedMore),
                },
                Place::Head => {
                    let Some(head) = self.take_head()? else {
                        return Ok(Event::NeedMore);
                    };
                    self.place = Place::Data;
                    let head = String::from_utf8_lossy(&head);
                    return Part::parse(&head).map(Event::Part).ok_or(Broken::BadHead);
                }
            }
        }
    }

    /// Data up to the delimiter, which is skipped, or as much of it as surely is data.
    fn take_data(&mut self) -> (Bytes, bool) {
        if let Some(at) = self.delimiter.find(&self.buffer) {
            let data = self.buffer.split_to(at);
            self.buffer = self.buffer.slice(self.delimiter.needle().len()..);
            return (data, true);
        }
        let keep = undecided(&self.buffer, self.delimiter.needle());
        (self.buffer.split_to(self.buffer.len() - keep), false)
    }

    /// `--` closes the body, a line end opens a part; blanks may stand before either.
    fn after_boundary(&mut self) -> Result<Option<Place>, Broken> {
        let blanks = self
            .buffer
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t'))
            .count();
        match &self.buffer[blanks..] {
            [b'-', b'-', ..] => Ok(Some(Place::End)),
            [b'\r', b'\n', ..] => {
                // The line end stays, so that a head without headers ends like any other.
                self.buffer = self.buffer.slice(blanks..);
                Ok(Some(Place::Head))
            }
            [] | [b'-' | b'\r'] if blanks <= HEAD_BYTES_MAX => Ok(None),
            _ => Err(Broken::BadBoundary),
        }
    }

    fn take_head(&mut self) -> Result<Option<Bytes>, Broken> {
        match memmem::find(&self.buffer, b"\r\n\r\n") {
            Some(at) if at > HEAD_BYTES_MAX => Err(Broken::HeadTooLarge),
            Some(at) => {
                let head = self.buffer.split_to(at);
                self.buffer = self.buffer.slice(4..);
                Ok(Some(head))
            }
            None if self.buffer.len() > HEAD_BYTES_MAX => Err(Broken::HeadTooLarge),
            None => Ok(None),
        }
    }
}

/// How many bytes at the end of `data` may be the beginning of the delimiter.
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

/// The media type of a `Content-Type`, in lower case and without parameters.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// A parameter of a header value, quoted or not.
pub(crate) fn parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_matches(|c: char| c == ';' || c.is_whitespace());
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
fn unquote(quoted: &str) -> Option<(String, &str)> {
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
mod tests;
