//! Erlang's external term format, as `term_to_binary(Term, [{minor_version, 1}])` writes it.
//!
//! CouchDB hashes terms in this form to make revision ids and replication ids, so every byte counts: the shortest
//! integer tag is used, a list of integers from 0 to 255 becomes a string, an empty list is one byte, floats are 8
//! bytes, atoms are Latin-1. JSON maps to terms as in CouchDB: `{"a":1}` is `{[{<<"a">>,1}]}`, `null` is an atom, and
//! of duplicate members the last stays.

mod json;

#[cfg(test)]
mod tests;

const VERSION: u8 = 131;
const SMALL_INTEGER: u8 = 97;
const INTEGER: u8 = 98;
const SMALL_BIG: u8 = 110;
const LARGE_BIG: u8 = 111;
const FLOAT: u8 = 70;
const ATOM: u8 = 100;
const TUPLE: u8 = 104;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const MAP: u8 = 116;

/// Numbers with more digits are hashed as text: conversion takes time quadratic in the digits.
const DIGITS_MAX: usize = 10_000;

/// Writes one term, part by part.
#[derive(Debug)]
pub struct Encoder {
    out: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { out: vec![VERSION] }
    }
}

impl Encoder {
    /// An empty term; exactly one must be written.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Starts a tuple; its elements follow.
    pub fn tuple(&mut self, arity: u8) {
        self.out.extend([TUPLE, arity]);
    }

    /// Starts a non-empty list; its elements follow, then [`nil`](Self::nil). Not for lists of small integers only.
    pub fn list(&mut self, length: u32) {
        self.out.push(LIST);
        self.out.extend(length.to_be_bytes());
    }

    /// An empty list, or the end of one.
    pub fn nil(&mut self) {
        self.out.push(NIL);
    }

    pub fn atom(&mut self, name: &str) {
        self.out.push(ATOM);
        let length = u16::try_from(name.len()).expect("atoms have at most 255 characters");
        self.out.extend(length.to_be_bytes());
        self.out.extend(name.as_bytes());
    }

    pub fn bool(&mut self, truth: bool) {
        self.atom(if truth { "true" } else { "false" });
    }

    pub fn binary(&mut self, bytes: &[u8]) {
        self.out.push(BINARY);
        let length = u32::try_from(bytes.len()).expect("binaries are shorter than 4 GiB");
        self.out.extend(length.to_be_bytes());
        self.out.extend(bytes);
    }

    /// A string in Erlang: a list of bytes.
    pub fn chars(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.nil();
        } else if let Ok(length) = u16::try_from(bytes.len()) {
            self.out.push(STRING);
            self.out.extend(length.to_be_bytes());
            self.out.extend(bytes);
        } else {
            self.list(u32::try_from(bytes.len()).expect("strings are shorter than 4 GiB"));
            for byte in bytes {
                self.out.extend([SMALL_INTEGER, *byte]);
            }
            self.nil();
        }
    }

    /// Starts a map; keys and values follow. Erlang sorts up to 32 of them by key.
    pub fn map(&mut self, size: u32) {
        self.out.push(MAP);
        self.out.extend(size.to_be_bytes());
    }

    pub fn integer(&mut self, integer: i128) {
        if let Ok(byte) = u8::try_from(integer) {
            self.out.extend([SMALL_INTEGER, byte]);
        } else if let Ok(integer) = i32::try_from(integer) {
            self.out.push(INTEGER);
            self.out.extend(integer.to_be_bytes());
        } else {
            self.big(integer < 0, &integer.unsigned_abs().to_le_bytes());
        }
    }

    pub fn float(&mut self, float: f64) {
        self.out.push(FLOAT);
        self.out.extend(float.to_be_bytes());
    }

    /// A JSON number: a float if it has a fraction or an exponent, otherwise an integer of any size.
    pub fn number(&mut self, digits: &str) {
        if digits.contains(['.', 'e', 'E']) {
            self.float(digits.parse().unwrap_or(f64::NAN));
        } else if let Ok(integer) = digits.parse() {
            self.integer(integer);
        } else {
            let magnitude = digits.strip_prefix('-').unwrap_or(digits);
            if magnitude.len() > DIGITS_MAX
                || !magnitude.bytes().all(|digit| digit.is_ascii_digit())
            {
                self.binary(digits.as_bytes());
            } else {
                self.big(digits.starts_with('-'), &to_bytes(magnitude));
            }
        }
    }

    /// A big integer: sign and magnitude, the least significant byte first.
    fn big(&mut self, negative: bool, magnitude: &[u8]) {
        let length = magnitude
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        if let Ok(length) = u8::try_from(length) {
            self.out.extend([SMALL_BIG, length]);
        } else {
            self.out.push(LARGE_BIG);
            let length = u32::try_from(length).expect("the number of digits is bounded");
            self.out.extend(length.to_be_bytes());
        }
        self.out.push(u8::from(negative));
        self.out.extend(&magnitude[..length]);
    }
}

/// Decimal digits as bytes, the least significant first.
fn to_bytes(digits: &str) -> Vec<u8> {
    let mut limbs: Vec<u32> = Vec::new();
    for chunk in digits.as_bytes().chunks(9) {
        let value = chunk
            .iter()
            .fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
        let scale = chunk.iter().fold(1, |scale, _| scale * 10);
        let mut carry = value;
        for limb in &mut limbs {
            let product = u64::from(*limb) * scale + carry;
            *limb = u32::try_from(product & u64::from(u32::MAX)).expect("masked to 32 bits");
            carry = product >> 32;
        }
        if carry > 0 {
            limbs.push(u32::try_from(carry).expect("a carry is below 10^9"));
        }
    }
    limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect()
}
