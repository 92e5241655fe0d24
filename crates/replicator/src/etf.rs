//! Erlang's external term format, as much of it as replication ids are hashed from.
//!
//! Minor version 1, as CouchDB asks for: atoms are written in Latin-1 with a two-byte length.

use document::json::Json;
use document::mango::Normal;

/// A term.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Term {
    Atom(&'static str),
    /// An integer of any size, in decimal.
    Integer(String),
    Float(f64),
    Binary(Vec<u8>),
    /// What Erlang calls a string: a list of bytes.
    Chars(Vec<u8>),
    List(Vec<Term>),
    Tuple(Vec<Term>),
    /// A map of up to 32 keys, which Erlang keeps sorted.
    Map(Vec<(Term, Term)>),
}

impl Term {
    pub(crate) fn binary(text: &str) -> Self {
        Self::Binary(text.as_bytes().to_vec())
    }

    pub(crate) fn chars(text: &str) -> Self {
        Self::Chars(text.as_bytes().to_vec())
    }

    pub(crate) fn integer(number: impl Into<i64>) -> Self {
        Self::Integer(number.into().to_string())
    }

    /// A JSON value as CouchDB's decoder makes it: an object is a list of pairs in a tuple of one.
    pub(crate) fn json(value: &Json) -> Self {
        match value {
            Json::Null => Self::Atom("null"),
            Json::Bool(true) => Self::Atom("true"),
            Json::Bool(false) => Self::Atom("false"),
            Json::Number(digits) if value.is_integer() => Self::Integer(digits.to_string()),
            Json::Number(digits) => Self::Float(digits.parse().unwrap_or(f64::NAN)),
            Json::String(text) => Self::binary(text),
            Json::Array(elements) => Self::List(elements.iter().map(Self::json).collect()),
            Json::Object(members) => Self::object(
                members
                    .iter()
                    .map(|(name, value)| (Self::binary(name), Self::json(value))),
            ),
        }
    }

    /// A JSON value with its objects as Erlang maps, which 4.x hashed. `None` when one of them is too large to stay in
    /// order.
    pub(crate) fn json_map(value: &Json) -> Option<Self> {
        match value {
            Json::Object(members) if members.len() > 32 => None,
            Json::Object(members) => {
                let mut members = members.clone();
                members.sort_by(|a, b| a.0.cmp(&b.0));
                let pairs = members.iter();
                let pairs =
                    pairs.map(|(name, value)| Some((Self::binary(name), Self::json_map(value)?)));
                pairs.collect::<Option<_>>().map(Self::Map)
            }
            Json::Array(elements) => elements
                .iter()
                .map(Self::json_map)
                .collect::<Option<_>>()
                .map(Self::List),
            scalar => Some(Self::json(scalar)),
        }
    }

    /// A normalised selector, every object in it sorted by name; `names` says how paths are written.
    pub(crate) fn selector(
        normal: &Normal,
        names: &impl Fn(&document::mango::Path) -> Self,
    ) -> Self {
        let pair = |name: Self, value: Self| Self::object([(name, value)]);
        match normal {
            Normal::Everything => Self::object([]),
            Normal::Combine(name, arguments) => {
                let arguments = arguments
                    .iter()
                    .map(|argument| Self::selector(argument, names));
                pair(Self::binary(name), Self::List(arguments.collect()))
            }
            Normal::Wrap(name, argument) => {
                pair(Self::binary(name), Self::selector(argument, names))
            }
            Normal::Field(path, condition) => pair(names(path), Self::selector(condition, names)),
            Normal::Test(name, argument) => {
                pair(Self::binary(name), Self::json(&argument.sorted()))
            }
        }
    }

    fn object(members: impl IntoIterator<Item = (Self, Self)>) -> Self {
        let pair = |(name, value)| Self::Tuple(vec![name, value]);
        Self::Tuple(vec![Self::List(members.into_iter().map(pair).collect())])
    }

    /// `term_to_binary(Term, [{minor_version, 1}])`.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![131];
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Atom(name) => {
                out.push(100);
                out.extend(
                    u16::try_from(name.len())
                        .expect("atoms are short")
                        .to_be_bytes(),
                );
                out.extend(name.as_bytes());
            }
            Self::Integer(digits) => write_integer(digits, out),
            Self::Float(float) => {
                out.push(70);
                out.extend(float.to_be_bytes());
            }
            Self::Binary(bytes) => {
                out.push(109);
                out.extend(length(bytes.len()));
                out.extend(bytes);
            }
            Self::Chars(bytes) => write_bytes_list(bytes, out),
            Self::List(elements) => {
                if let Some(bytes) = byte_elements(elements) {
                    return write_bytes_list(&bytes, out);
                }
                out.push(108);
                out.extend(length(elements.len()));
                for element in elements {
                    element.write(out);
                }
                out.push(106);
            }
            Self::Tuple(elements) => {
                out.push(104);
                out.push(u8::try_from(elements.len()).expect("tuples here are small"));
                for element in elements {
                    element.write(out);
                }
            }
            Self::Map(members) => {
                out.push(116);
                out.extend(length(members.len()));
                for (key, value) in members {
                    key.write(out);
                    value.write(out);
                }
            }
        }
    }
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length)
        .expect("documents are smaller than 4 GiB")
        .to_be_bytes()
}

/// The elements as bytes, when all of them are: Erlang does not tell such a list from a string.
fn byte_elements(elements: &[Term]) -> Option<Vec<u8>> {
    let byte = |element: &Term| match element {
        Term::Integer(digits) => digits
            .parse::<i128>()
            .ok()
            .and_then(|number| u8::try_from(number).ok()),
        _ => None,
    };
    elements.iter().map(byte).collect()
}

fn write_bytes_list(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.is_empty() {
        out.push(106);
    } else if let Ok(short) = u16::try_from(bytes.len()) {
        out.push(107);
        out.extend(short.to_be_bytes());
        out.extend(bytes);
    } else {
        out.push(108);
        out.extend(length(bytes.len()));
        for byte in bytes {
            out.extend([97, *byte]);
        }
        out.push(106);
    }
}

fn write_integer(digits: &str, out: &mut Vec<u8>) {
    let small = digits.parse::<i128>().ok();
    if let Some(byte) = small.and_then(|number| u8::try_from(number).ok()) {
        out.extend([97, byte]);
    } else if let Some(word) = small.and_then(|number| i32::try_from(number).ok()) {
        out.push(98);
        out.extend(word.to_be_bytes());
    } else {
        let (sign, magnitude) = match digits.strip_prefix('-') {
            Some(magnitude) => (1, magnitude),
            None => (0, digits),
        };
        let bytes = little_endian(magnitude);
        if let Ok(short) = u8::try_from(bytes.len()) {
            out.extend([110, short, sign]);
        } else {
            out.push(111);
            out.extend(length(bytes.len()));
            out.push(sign);
        }
        out.extend(bytes);
    }
}

/// A decimal number in base 256, least byte first.
fn little_endian(digits: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for digit in digits.bytes() {
        let mut carry = u16::from(digit - b'0');
        for byte in &mut bytes {
            carry += u16::from(*byte) * 10;
            *byte = u8::try_from(carry & 0xff).expect("masked");
            carry >>= 8;
        }
        if carry > 0 {
            bytes.push(u8::try_from(carry).expect("less than ten"));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Vec<u8> {
        Term::json(&Json::parse(text).unwrap()).encode()
    }

    /// What `term_to_binary` of Erlang gives for the same terms.
    #[test]
    fn bytes_as_erlang_writes_them() {
        assert_eq!(json("null"), b"\x83d\0\x04null");
        assert_eq!(json("7"), [131, 97, 7]);
        assert_eq!(json("-1"), [131, 98, 255, 255, 255, 255]);
        assert_eq!(json("256"), [131, 98, 0, 0, 1, 0]);
        assert_eq!(json("2147483648"), [131, 110, 4, 0, 0, 0, 0, 128]);
        assert_eq!(json("-2147483649"), [131, 110, 4, 1, 1, 0, 0, 128]);
        assert_eq!(
            json("18446744073709551616"),
            [131, 110, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(json("1.5"), [131, 70, 63, 248, 0, 0, 0, 0, 0, 0]);
        assert_eq!(json("[]"), [131, 106]);
        assert_eq!(json("[1,2]"), [131, 107, 0, 2, 1, 2]);
        assert_eq!(
            json("[1,256]"),
            [131, 108, 0, 0, 0, 2, 97, 1, 98, 0, 0, 1, 0, 106]
        );
        assert_eq!(
            json(r#"{"a":true}"#),
            b"\x83\x68\x01\x6c\0\0\0\x01\x68\x02\x6d\0\0\0\x01a\x64\0\x04true\x6a"
        );
        assert_eq!(json("{}"), [131, 104, 1, 106]);
        assert_eq!(Term::chars("").encode(), [131, 106]);
        assert_eq!(Term::chars("ab").encode(), [131, 107, 0, 2, 97, 98]);
        assert_eq!(
            Term::Chars(vec![1; 65536]).encode().len(),
            1 + 5 + 2 * 65536 + 1
        );
    }

    #[test]
    fn huge_integers() {
        let digits = format!("1{}", "0".repeat(700));
        let bytes = json(&digits);
        assert_eq!(bytes[1], 111);
        assert_eq!(
            u32::from_be_bytes(bytes[2..6].try_into().unwrap()) as usize,
            bytes.len() - 7
        );
    }

    #[test]
    fn maps_are_sorted() {
        let map = Term::json_map(&Json::parse(r#"{"b":1,"a":{}}"#).unwrap()).unwrap();
        assert_eq!(
            map.encode(),
            b"\x83\x74\0\0\0\x02\x6d\0\0\0\x01a\x74\0\0\0\0\x6d\0\0\0\x01b\x61\x01"
        );
    }
}
