//! JSON text as a term, in one pass.

use std::collections::HashSet;
use std::ops::Range;

use super::{Encoder, LIST, NIL, SMALL_INTEGER, STRING};

/// An array or object whose end was not reached yet.
struct Open {
    object: bool,
    /// The start of its list in the output.
    start: usize,
    /// Elements or members so far.
    count: usize,
    /// Every element so far is an integer from 0 to 255.
    bytes_only: bool,
    /// A name was read, but not its value yet.
    after_name: bool,
    /// The index of its first member in `members`.
    first_member: usize,
}

/// The start of an open object's member in the output, and its name.
struct Member {
    start: usize,
    name: Range<usize>,
}

impl Encoder {
    /// Appends one JSON value. The text must be valid JSON; otherwise the result is unspecified, but there is no panic.
    pub fn json(&mut self, text: &str) {
        let mut open: Vec<Open> = Vec::new();
        let mut members: Vec<Member> = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.bytes().next() {
            let length = token_length(rest);
            let (token, after) = rest.split_at(length);
            rest = after;
            match first {
                b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => {}
                b'}' | b']' => {
                    if let Some(closed) = open.pop() {
                        self.close(&closed, &mut members);
                    }
                }
                _ => {
                    let name = begin_value(open.last_mut(), first);
                    match first {
                        b'{' | b'[' => open.push(self.open(first == b'{', members.len())),
                        b'"' if name => members.push(self.name(token)),
                        b'"' => self.string(token),
                        b't' | b'f' => self.bool(first == b't'),
                        b'n' => self.atom("null"),
                        _ => {
                            let before = self.out.len();
                            self.number(token);
                            if let Some(around) = open.last_mut() {
                                around.bytes_only &= self.out[before] == SMALL_INTEGER;
                            }
                        }
                    }
                }
            }
        }
    }

    fn open(&mut self, object: bool, first_member: usize) -> Open {
        if object {
            self.tuple(1);
        }
        let start = self.out.len();
        self.list(0);
        Open {
            object,
            start,
            count: 0,
            bytes_only: true,
            after_name: false,
            first_member,
        }
    }

    fn name(&mut self, token: &str) -> Member {
        let start = self.out.len();
        self.tuple(2);
        self.string(token);
        // Two bytes of tuple and five of binary precede the name's text.
        Member {
            start,
            name: start + 7..self.out.len(),
        }
    }

    fn string(&mut self, token: &str) {
        let inner = token.get(1..token.len() - 1).unwrap_or_default();
        if inner.contains('\\') {
            let unescaped: Option<String> = serde_json::from_str(token).ok();
            self.binary(unescaped.as_deref().unwrap_or(inner).as_bytes());
        } else {
            self.binary(inner.as_bytes());
        }
    }

    fn close(&mut self, closed: &Open, members: &mut Vec<Member>) {
        let mut count = closed.count;
        if closed.object {
            count -= self.drop_repeated(&members[closed.first_member..]);
            members.truncate(closed.first_member);
        }
        if count == 0 {
            self.out.truncate(closed.start);
        } else if !closed.object && closed.bytes_only && u16::try_from(count).is_ok() {
            self.close_string(closed.start);
            return;
        } else {
            let length =
                u32::try_from(count).expect("a text shorter than 4 GiB has fewer elements");
            debug_assert_eq!(self.out[closed.start], LIST, "a list begins here");
            self.out[closed.start + 1..closed.start + 5].copy_from_slice(&length.to_be_bytes());
        }
        self.out.push(NIL);
    }

    /// Rewrites the list of bytes at `start` as a string.
    fn close_string(&mut self, start: usize) {
        let bytes: Vec<u8> = self.out[start + 5..]
            .chunks_exact(2)
            .map(|element| element[1])
            .collect();
        self.out.truncate(start);
        self.out.push(STRING);
        let length = u16::try_from(bytes.len()).expect("the caller checked the length");
        self.out.extend(length.to_be_bytes());
        self.out.extend(bytes);
    }

    /// Removes members whose name occurs again later in the object, and returns their number. `members` are all members
    /// of the object, which is at the end of the output.
    fn drop_repeated(&mut self, members: &[Member]) -> usize {
        if !self.any_repeated(members) {
            return 0;
        }
        let tail = self.out.split_off(members[0].start);
        let base = members[0].start;
        let mut kept: Vec<&[u8]> = Vec::new();
        let mut seen: HashSet<&[u8]> = HashSet::new();
        let mut end = tail.len();
        for member in members.iter().rev() {
            let begin = member.start - base;
            if seen.insert(&tail[member.name.start - base..member.name.end - base]) {
                kept.push(&tail[begin..end]);
            }
            end = begin;
        }
        for member in kept.iter().rev() {
            self.out.extend_from_slice(member);
        }
        members.len() - kept.len()
    }

    fn any_repeated(&self, members: &[Member]) -> bool {
        let name = |member: &Member| &self.out[member.name.clone()];
        if members.len() <= 16 {
            let mut rest = members;
            while let Some((first, others)) = rest.split_first() {
                if others.iter().any(|other| name(other) == name(first)) {
                    return true;
                }
                rest = others;
            }
            return false;
        }
        let distinct: HashSet<&[u8]> = members.iter().map(name).collect();
        distinct.len() < members.len()
    }
}

/// Counts a value or name that starts with `first`, and returns whether it is a name.
fn begin_value(around: Option<&mut Open>, first: u8) -> bool {
    let Some(around) = around else {
        return false;
    };
    if around.object && !around.after_name && first == b'"' {
        around.count += 1;
        around.after_name = true;
        return true;
    }
    around.after_name = false;
    around.count += usize::from(!around.object);
    around.bytes_only &= matches!(first, b'-' | b'0'..=b'9');
    false
}

/// The length of the first token: a string with its quotes, a word or number, or one other character.
fn token_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    match bytes[0] {
        b'"' => {
            let mut at = 1;
            while at < bytes.len() {
                match bytes[at] {
                    b'"' => return at + 1,
                    b'\\' => at += 2,
                    _ => at += 1,
                }
            }
            bytes.len()
        }
        b'{' | b'}' | b'[' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => 1,
        _ => {
            let end = |byte: &u8| b"{}[],:\" \t\n\r".contains(byte);
            bytes.iter().position(end).unwrap_or(bytes.len())
        }
    }
}
