//! JSON as CouchDB sees it: members keep their order and numbers keep their digits.
//!
//! Replication ids hash decoded JSON, so `1`, `1.0` and a 30-digit integer must keep their form, and `{"b":1,"a":2}`
//! must not become `{"a":2,"b":1}`. Of duplicate members the last value counts, as in CouchDB.

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::doc::end_of_string;

/// Maximum nesting of arrays and objects; `serde_json` has the same limit.
const DEPTH_MAX: usize = 127;

/// Maximum number of values in one text. Each takes about 60 bytes in memory, and as little as two bytes of text.
pub const VALUES_MAX: usize = 1_000_000;

/// Why a text cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    /// Arrays and objects are nested too deeply.
    #[error("the JSON is nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    #[error("the JSON has more than {VALUES_MAX} values; split the request")]
    TooManyValues,
}

/// An upper bound of the number of values in a JSON text, from one pass over its bytes.
pub fn values(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut values) = (0, 1);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            byte => {
                values += usize::from(matches!(byte, b',' | b'[' | b'{'));
                at += 1;
            }
        }
    }
    values
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Json {
    Null,
    Bool(bool),
    /// A number in its original form.
    Number(Box<str>),
    /// A string, unescaped.
    String(String),
    Array(Vec<Json>),
    /// An object, its members in order.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses exactly one value.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let valid: &RawValue = serde_json::from_str(text)?;
        let mut reader = Reader {
            text: valid.get(),
            at: 0,
            values: 0,
        };
        reader.value(0)
    }

    /// The value of a member, if this is an object that has it.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.as_object()?
            .iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value, if this is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// The members, if this is an object.
    pub fn as_object(&self) -> Option<&[(String, Json)]> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    pub fn as_array(&self) -> Option<&[Json]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The value, if this is a number in integer form (not `1.0`) that fits.
    pub fn as_integer(&self) -> Option<i128> {
        match self {
            Self::Number(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// Whether this is a number without fraction and exponent, of any size.
    pub fn is_integer(&self) -> bool {
        matches!(self, Self::Number(digits) if !digits.contains(['.', 'e', 'E']))
    }

    /// Converts for matching; integers beyond 64 bits become floats.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(truth) => Value::Bool(*truth),
            Self::Number(digits) => serde_json::from_str(digits).unwrap_or(Value::Null),
            Self::String(text) => Value::String(text.clone()),
            Self::Array(elements) => Value::Array(elements.iter().map(Self::to_value).collect()),
            Self::Object(members) => Value::Object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), value.to_value()))
                    .collect(),
            ),
        }
    }

    /// Sorts the members of every object in the value by name.
    #[must_use]
    pub fn sorted(&self) -> Self {
        match self {
            Self::Array(elements) => Self::Array(elements.iter().map(Self::sorted).collect()),
            Self::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| (name.clone(), value.sorted()))
                    .collect();
                members.sort_by(|a, b| a.0.cmp(&b.0));
                Self::Object(members)
            }
            other => other.clone(),
        }
    }

    /// Formats the value like Erlang's `~w`, in which CouchDB's error texts quote their argument.
    pub(crate) fn as_erlang(&self) -> impl fmt::Display + '_ {
        Erlang(self)
    }
}

impl From<&Value> for Json {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(truth) => Self::Bool(*truth),
            Value::Number(number) => Self::Number(number.to_string().into()),
            Value::String(text) => Self::String(text.clone()),
            Value::Array(elements) => Self::Array(elements.iter().map(Self::from).collect()),
            Value::Object(members) => Self::Object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), Self::from(value)))
                    .collect(),
            ),
        }
    }
}

/// Compact JSON text; numbers keep their form.
impl fmt::Display for Json {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => out.write_str("null"),
            Self::Bool(truth) => write!(out, "{truth}"),
            Self::Number(digits) => out.write_str(digits),
            Self::String(text) => write_string(text, out),
            Self::Array(elements) => {
                out.write_str("[")?;
                for (index, element) in elements.iter().enumerate() {
                    write!(out, "{}{element}", if index == 0 { "" } else { "," })?;
                }
                out.write_str("]")
            }
            Self::Object(members) => {
                out.write_str("{")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    out.write_str(if index == 0 { "" } else { "," })?;
                    write_string(name, out)?;
                    write!(out, ":{value}")?;
                }
                out.write_str("}")
            }
        }
    }
}

fn write_string(text: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    out.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

/// Parses text that is known to be one valid JSON value, except for its depth and the escapes in its strings.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    values: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Json, Error> {
        if depth > DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Error::TooManyValues);
        }
        Ok(match self.peek() {
            b'{' => {
                let mut members = Vec::new();
                while self.goes_on(b'}') {
                    let name = self.string()?;
                    self.peek();
                    self.at += 1;
                    members.push((name, self.value(depth + 1)?));
                }
                keep_last(&mut members);
                Json::Object(members)
            }
            b'[' => {
                let mut elements = Vec::new();
                while self.goes_on(b']') {
                    elements.push(self.value(depth + 1)?);
                }
                Json::Array(elements)
            }
            b'"' => Json::String(self.string()?),
            _ => match self.word() {
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                "null" => Json::Null,
                digits => Json::Number(digits.into()),
            },
        })
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while bytes[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        bytes[self.at]
    }

    /// Skips the opening bracket, a comma, or the closing bracket of a list; false after the last.
    fn goes_on(&mut self, end: u8) -> bool {
        if self.peek() != end {
            self.at += 1;
        }
        let goes_on = self.peek() != end;
        self.at += usize::from(!goes_on);
        goes_on
    }

    fn string(&mut self) -> Result<String, Error> {
        self.peek();
        let end = end_of_string(self.text.as_bytes(), self.at);
        let token = &self.text[self.at..end];
        self.at = end;
        if token.contains('\\') {
            return Ok(serde_json::from_str(token)?);
        }
        Ok(token[1..token.len() - 1].to_owned())
    }

    /// A number, or the name of a value.
    fn word(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let ends = |byte: u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
        let length = rest.bytes().position(ends).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }
}

/// Of duplicate members, keeps the value of the last at the position of the first.
fn keep_last(members: &mut Vec<(String, Json)>) {
    let mut order: Vec<usize> = (0..members.len()).collect();
    // Stable, so that duplicates stay in order.
    order.sort_by(|&one, &other| members[one].0.cmp(&members[other].0));
    let same = |&one: &usize, &other: &usize| members[one].0 == members[other].0;
    let repeated: Vec<Vec<usize>> = (order.chunk_by(same))
        .filter(|indexes| indexes.len() > 1)
        .map(<[usize]>::to_vec)
        .collect();
    if repeated.is_empty() {
        return;
    }
    let mut kept = vec![true; members.len()];
    for indexes in repeated {
        let (first, last) = (indexes[0], indexes[indexes.len() - 1]);
        members.swap(first, last);
        for index in &indexes[1..] {
            kept[*index] = false;
        }
    }
    let mut kept = kept.into_iter();
    members.retain(|_| kept.next().unwrap_or(true));
}

struct Erlang<'a>(&'a Json);

impl fmt::Display for Erlang<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = |text: &str, out: &mut fmt::Formatter<'_>| {
            out.write_str("<<")?;
            for (index, byte) in text.bytes().enumerate() {
                write!(out, "{}{byte}", if index == 0 { "" } else { "," })?;
            }
            out.write_str(">>")
        };
        match self.0 {
            Json::String(text) => binary(text, out),
            Json::Array(elements) => {
                out.write_str("[")?;
                for (index, element) in elements.iter().enumerate() {
                    write!(
                        out,
                        "{}{}",
                        if index == 0 { "" } else { "," },
                        element.as_erlang()
                    )?;
                }
                out.write_str("]")
            }
            Json::Object(members) => {
                out.write_str("{[")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    out.write_str(if index == 0 { "{" } else { ",{" })?;
                    binary(name, out)?;
                    write!(out, ",{}}}", value.as_erlang())?;
                }
                out.write_str("]}")
            }
            scalar => write!(out, "{scalar}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_numbers_and_the_last_duplicate_survive() {
        let text = r#" {"b":1.0, "a":123456789012345678901234567890, "b2":[-0,1e3,{}], "a":"\u00e9\n", "z":null} "#;
        let json = Json::parse(text).unwrap();
        assert_eq!(
            json.to_string(),
            r#"{"b":1.0,"a":"é\n","b2":[-0,1e3,{}],"z":null}"#
        );
        assert_eq!(json.get("b").unwrap().as_integer(), None);
        assert_eq!(Json::parse("-0").unwrap().as_integer(), Some(0));
        assert!(
            Json::parse("123456789012345678901234567890123456789012345")
                .unwrap()
                .is_integer()
        );
    }

    #[test]
    fn bad_or_endless_text_is_refused() {
        for text in ["", "{", "[1,]", "{\"a\":1}x", "nul", "01", "\"\\ud800\""] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
        assert!(Json::parse(&"[".repeat(100_000)).is_err());
        assert!(Json::parse(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))).is_err());
        assert!(Json::parse(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_ok());
    }

    #[test]
    fn texts_of_too_many_values_are_refused() {
        let zeros = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(Json::parse(&zeros(VALUES_MAX - 1)).is_ok());
        let refused = Json::parse(&zeros(VALUES_MAX)).unwrap_err();
        assert!(matches!(refused, Error::TooManyValues), "{refused}");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(matches!(Json::parse(&deep), Err(Error::TooDeep)));
        assert_eq!(values(r#"{"a,[{":[1,2],"b":{}}"#), 6);
    }

    #[test]
    fn erlang_terms() {
        let json = Json::parse(r#"{"a":[1,true,null,"b",""],"c":{}}"#).unwrap();
        assert_eq!(
            json.as_erlang().to_string(),
            "{[{<<97>>,[1,true,null,<<98>>,<<>>]},{<<99>>,{[]}}]}"
        );
    }
}
