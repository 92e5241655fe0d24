//! The `fields` of a query.

use document::json::Json;

use crate::{Error, Result};

/// The most fields in a query: each is looked up in every document found.
const FIELDS_MAX: usize = 200;

/// The fields to return, or all if the list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<Vec<String>>);

impl Fields {
    /// Reads the `fields` of a query.
    pub fn parse(json: &Json) -> Result<Self> {
        let fields = json.as_array().ok_or_else(|| Error::BadQuery {
            error: "invalid_fields",
            reason: format!("Fields must be an array of strings, not: {json}"),
        })?;
        let path = |field: &Json| {
            let name = field.as_str().ok_or_else(|| Error::BadQuery {
                error: "invalid_field",
                reason: format!("Invalid JSON for field spec: {field}"),
            })?;
            let path = split(name);
            if path.iter().any(String::is_empty) {
                return Err(Error::BadQuery {
                    error: "invalid_field_name",
                    reason: format!("Invalid field name: {name}"),
                });
            }
            Ok(path)
        };
        if fields.len() > FIELDS_MAX {
            return Err(Error::BadQuery {
                error: "invalid_fields",
                reason: format!("At most {FIELDS_MAX} fields can be requested."),
            });
        }
        fields.iter().map(path).collect::<Result<_>>().map(Self)
    }

    /// The fields of a document, as JSON.
    pub(super) fn take(&self, document: String) -> Result<String> {
        if self.0.is_empty() {
            return Ok(document);
        }
        let document = Json::parse(&document).map_err(|error| Error::BadQuery {
            error: "bad_request",
            reason: format!("Cannot read the fields of a document: {error}."),
        })?;
        let mut taken = Json::Object(Vec::new());
        for path in &self.0 {
            if let Some(value) = get(&document, path) {
                set(&mut taken, path, value.clone());
            }
        }
        Ok(taken.to_string())
    }
}

/// Splits at unescaped dots and removes backslashes.
fn split(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for letter in name.chars() {
        match (letter, parts.last_mut()) {
            ('.', _) if !escaped => parts.push(String::new()),
            ('\\', _) | (_, None) => {}
            (other, Some(part)) => part.push(other),
        }
        escaped = letter == '\\';
    }
    parts
}

fn get<'a>(json: &'a Json, path: &[String]) -> Option<&'a Json> {
    path.iter().try_fold(json, |json, name| match json {
        Json::Array(elements) => elements.get(name.parse::<usize>().ok()?),
        json => json.get(name),
    })
}

/// Sets a value in objects that are created as needed.
fn set(json: &mut Json, path: &[String], value: Json) {
    let Some((name, rest)) = path.split_first() else {
        *json = value;
        return;
    };
    if json.as_object().is_none() {
        *json = Json::Object(Vec::new());
    }
    let Json::Object(members) = json else { return };
    let known = members.iter().position(|(known, _)| known == name);
    let index = known.unwrap_or_else(|| {
        members.push((name.clone(), Json::Null));
        members.len() - 1
    });
    set(&mut members[index].1, rest, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(fields: &str, document: &str) -> Result<String> {
        Fields::parse(&Json::parse(fields).unwrap())?.take(document.to_owned())
    }

    #[test]
    fn fields_keep_their_places_and_digits() {
        let document = r#"{"_id":"a","x":{"y":1.0,"z":[1,{"w":12345678901234567890123}]},"a.b":3}"#;
        for (fields, expected) in [
            ("[]", document),
            (r#"["_id"]"#, r#"{"_id":"a"}"#),
            (
                r#"["x.y","x.no","no","x.z"]"#,
                r#"{"x":{"y":1.0,"z":[1,{"w":12345678901234567890123}]}}"#,
            ),
            (
                r#"["x.z.1.w"]"#,
                r#"{"x":{"z":{"1":{"w":12345678901234567890123}}}}"#,
            ),
            (r#"["a\\.b"]"#, r#"{"a.b":3}"#),
            (r#"["x.y.deep"]"#, "{}"),
        ] {
            assert_eq!(take(fields, document).unwrap(), expected, "{fields}");
        }
    }

    #[test]
    fn invalid_fields_are_rejected() {
        for (fields, expected) in [
            ("7", "invalid_fields"),
            ("[7]", "invalid_field"),
            (r#"["a..b"]"#, "invalid_field_name"),
            (r#"[""]"#, "invalid_field_name"),
        ] {
            match take(fields, "{}") {
                Err(Error::BadQuery { error, .. }) => assert_eq!(error, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
