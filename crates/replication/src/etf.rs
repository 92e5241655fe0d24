//! The Erlang terms that replication ids are hashed from.

use document::etf::Encoder;
use document::json::Json;
use document::mango::{Normal, Path};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Term {
    Atom(&'static str),
    Integer(i64),
    Binary(Vec<u8>),
    /// A string in Erlang: a list of bytes.
    Chars(Vec<u8>),
    /// JSON text as CouchDB's decoder reads it: an object is a 1-tuple with a list of pairs.
    Json(String),
    /// A list. Its elements must not all be integers, which would be a string.
    List(Vec<Term>),
    Tuple(Vec<Term>),
    /// A map of up to 32 keys, sorted.
    Map(Vec<(Term, Term)>),
}

impl Term {
    pub(crate) fn binary(text: &str) -> Self {
        Self::Binary(text.as_bytes().to_vec())
    }

    pub(crate) fn chars(text: &str) -> Self {
        Self::Chars(text.as_bytes().to_vec())
    }

    pub(crate) fn json(value: &Json) -> Self {
        Self::Json(value.to_string())
    }

    /// A JSON value with its objects as Erlang maps, which 4.x hashed. `None` if one of them has too many members to
    /// stay in order.
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
            Json::Array(elements)
                if elements.iter().any(|element| element.as_object().is_some()) =>
            {
                elements
                    .iter()
                    .map(Self::json_map)
                    .collect::<Option<_>>()
                    .map(Self::List)
            }
            other => Some(Self::json(other)),
        }
    }

    /// A normalised selector, every object in it sorted by name; `names` selects the form of paths.
    pub(crate) fn selector(normal: &Normal, names: &dyn Fn(&Path) -> Self) -> Self {
        let pair = |name, value| Self::object([(name, value)]);
        match normal {
            Normal::Everything => Self::object([]),
            Normal::Combine(name, arguments) if arguments.is_empty() => {
                pair(Self::binary(name), Self::Json("[]".to_owned()))
            }
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

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut Encoder) {
        match self {
            Self::Atom(name) => out.atom(name),
            Self::Integer(integer) => out.integer((*integer).into()),
            Self::Binary(bytes) => out.binary(bytes),
            Self::Chars(bytes) => out.chars(bytes),
            Self::Json(text) => out.json(text),
            Self::List(elements) => {
                if !elements.is_empty() {
                    out.list(size(elements.len()));
                }
                for element in elements {
                    element.write(out);
                }
                out.nil();
            }
            Self::Tuple(elements) => {
                out.tuple(u8::try_from(elements.len()).expect("tuples here are small"));
                for element in elements {
                    element.write(out);
                }
            }
            Self::Map(members) => {
                out.map(size(members.len()));
                for (key, value) in members {
                    key.write(out);
                    value.write(out);
                }
            }
        }
    }
}

fn size(length: usize) -> u32 {
    u32::try_from(length).expect("documents are smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn maps_are_sorted() {
        let map = Term::json_map(&json(r#"{"b":1,"a":{},"c":[{}]}"#)).unwrap();
        let expected = b"\x83\x74\0\0\0\x03\x6d\0\0\0\x01a\x74\0\0\0\0\x6d\0\0\0\x01b\x61\x01\
            \x6d\0\0\0\x01c\x6c\0\0\0\x01\x74\0\0\0\0\x6a";
        assert_eq!(map.encode(), expected);
    }

    #[test]
    fn strings_and_lists_that_are_empty_are_nil() {
        assert_eq!(Term::chars("").encode(), [131, 106]);
        assert_eq!(Term::List(Vec::new()).encode(), [131, 106]);
        assert_eq!(Term::chars("ab").encode(), [131, 107, 0, 2, 97, 98]);
        assert_eq!(
            Term::Chars(vec![1; 65536]).encode().len(),
            1 + 5 + 2 * 65536 + 1
        );
    }
}
