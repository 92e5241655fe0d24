//! Bodies that are read into structs: what is wrong is said in plain words, with the path of the member.
//!
//! From a list, serde would read the members of a struct by their order. Here, a struct is read from an object only.

mod error;

use serde::de::value::StringDeserializer;
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, Error as _, Expected,
    IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::value::RawValue;

pub(crate) use error::Fault;
use error::Step;

/// The name under which `serde_json` reads JSON as it is.
const RAW: &str = "$serde_json::private::RawValue";

/// Reads JSON.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|_| Fault::Syntax)?;
    T::deserialize(Node(raw))
}

/// A value, not yet parsed.
#[derive(Clone, Copy)]
struct Node<'de>(&'de RawValue);

impl<'de> Node<'de> {
    /// Parses the value, but not what is in it.
    fn parsed<T: Deserialize<'de>>(self) -> Result<T, Fault> {
        serde_json::from_str(self.0.get()).map_err(|_| Fault::Syntax)
    }

    fn is_null(self) -> bool {
        self.0.get() == "null"
    }

    fn is_object(self) -> bool {
        self.0.get().starts_with('{')
    }

    /// What it is, for messages.
    fn unexpected(self) -> Unexpected<'de> {
        match self.0.get().as_bytes().first() {
            Some(b'{') => Unexpected::Map,
            Some(b'[') => Unexpected::Seq,
            Some(b'"') => Unexpected::Str(""),
            Some(b't') => Unexpected::Bool(true),
            Some(b'f') => Unexpected::Bool(false),
            Some(b'n') => Unexpected::Unit,
            _ => Unexpected::Other("a number"),
        }
    }

    fn refuse<T>(self, expected: &dyn Expected) -> Result<T, Fault> {
        Err(Fault::invalid_type(self.unexpected(), expected))
    }
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0.get().as_bytes().first() {
            Some(b'{') => {
                let Members(members) = self.parsed()?;
                visitor.visit_map(Object {
                    members: members.into_iter(),
                    value: None,
                })
            }
            Some(b'[') => {
                let entries: Vec<&RawValue> = self.parsed()?;
                visitor.visit_seq(List(entries.into_iter().enumerate()))
            }
            Some(b'"') => visitor.visit_string(self.parsed()?),
            Some(b't' | b'f') => visitor.visit_bool(self.parsed()?),
            Some(b'n') => visitor.visit_unit(),
            _ => {
                let number: serde_json::Number = self.parsed()?;
                match (number.as_u64(), number.as_i64(), number.as_f64()) {
                    (Some(number), ..) => visitor.visit_u64(number),
                    (_, Some(number), _) => visitor.visit_i64(number),
                    (_, _, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
                }
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if self.is_object() {
            return self.deserialize_any(visitor);
        }
        self.refuse(&"a JSON object")
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.is_null() {
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == RAW {
            let mut json = serde_json::Deserializer::from_str(self.0.get());
            let read = json.deserialize_newtype_struct(name, visitor);
            return read.map_err(|_| Fault::Syntax);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        // None of ours has a variant with a value.
        if let Unexpected::Str(_) = self.unexpected() {
            let name: String = self.parsed()?;
            return visitor.visit_enum(name.into_deserializer());
        }
        self.refuse(&"a string")
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// The members of an object in their order, also several of the same name.
struct Members<'de>(Vec<(String, &'de RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(All)
    }
}

struct Object<'de> {
    members: std::vec::IntoIter<(String, &'de RawValue)>,
    /// The value of the last key.
    value: Option<(String, &'de RawValue)>,
}

impl<'de> MapAccess<'de> for Object<'de> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some((name, value)) = self.members.next() else {
            return Ok(None);
        };
        let key: StringDeserializer<Fault> = name.clone().into_deserializer();
        self.value = Some((name, value));
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let (name, value) = self.value.take().ok_or(Fault::Syntax)?;
        let read = seed.deserialize(Node(value));
        read.map_err(|fault| fault.within(Step::Member(name)))
    }
}

struct List<'de>(std::iter::Enumerate<std::vec::IntoIter<&'de RawValue>>);

impl<'de> SeqAccess<'de> for List<'de> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some((nth, entry)) = self.0.next() else {
            return Ok(None);
        };
        let read = seed.deserialize(Node(entry)).map(Some);
        read.map_err(|fault| fault.within(Step::Entry(nth)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

#[cfg(test)]
mod tests;
