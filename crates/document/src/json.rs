//! JSON as CouchDB sees it: members keep their order and numbers keep their digits.
//!
//! Replication ids hash decoded JSON, so `1`, `1.0` and a 30-digit integer must stay what they are, and `{"b":1,"a":2}`
//! must not become `{"a":2,"b":1}`. Of two members with one name the later value wins, as in CouchDB.

use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// How deep arrays and objects may nest, which is what `serde_json` allows too.
const DEPTH_MAX: usize = 127;

/// One JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as it was written.
    Number(Box<str>),
    /// A string, unescaped.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, its members in the order given.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one value and nothing after it.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(text)?;
        parse_at(raw.get(), 0)
    }

    /// The member called `name`, when this is an object that has one.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.as_object()?
            .iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The text, when this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The truth value, when this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// The members, when this is an object.
    pub fn as_object(&self) -> Option<&[(String, Json)]> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// The elements, when this is an array.
    pub fn as_array(&self) -> Option<&[Json]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The integer, when this is a number written as one (`1.0` is not) that fits.
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

    /// The same value for matching; integers beyond 64 bits become floats.
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

    /// The value with the members of every object in it sorted by name.
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

    /// Writes the value as Erlang's `~w` shows it, which is how CouchDB's error texts quote their argument.
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

/// Compact JSON text; numbers as they were read.
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

/// Parses `text`, which a scan of its surroundings has found to be one valid JSON value without blanks around it.
fn parse_at(text: &str, depth: usize) -> Result<Json, serde_json::Error> {
    if depth > DEPTH_MAX {
        return Err(serde_json::Error::custom("recursion limit exceeded"));
    }
    Ok(match text.as_bytes().first() {
        Some(b'{') => {
            let members: Members<'_> = serde_json::from_str(text)?;
            let mut object: Vec<(String, Json)> = Vec::with_capacity(members.0.len());
            for (name, raw) in members.0 {
                let value = parse_at(raw.get(), depth + 1)?;
                match object.iter_mut().find(|(known, _)| *known == name) {
                    Some(member) => member.1 = value,
                    None => object.push((name, value)),
                }
            }
            Json::Object(object)
        }
        Some(b'[') => {
            let elements: Vec<&RawValue> = serde_json::from_str(text)?;
            Json::Array(
                elements
                    .iter()
                    .map(|raw| parse_at(raw.get(), depth + 1))
                    .collect::<Result<_, _>>()?,
            )
        }
        Some(b'"') => Json::String(serde_json::from_str(text)?),
        Some(b't') => Json::Bool(true),
        Some(b'f') => Json::Bool(false),
        Some(b'n') => Json::Null,
        _ => Json::Number(text.into()),
    })
}

/// The members of one object, their values unparsed.
struct Members<'de>(Vec<(String, &'de RawValue)>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
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
    fn erlang_terms() {
        let json = Json::parse(r#"{"a":[1,true,null,"b",""],"c":{}}"#).unwrap();
        assert_eq!(
            json.as_erlang().to_string(),
            "{[{<<97>>,[1,true,null,<<98>>,<<>>]},{<<99>>,{[]}}]}"
        );
    }
}
