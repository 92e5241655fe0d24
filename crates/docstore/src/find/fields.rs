//! Taking fields out of a document.

use document::json::Json;

use crate::{Error, Result};

/// The most fields that can be named: each is looked for in all documents found.
const FIELDS_MAX: usize = 200;

/// Which fields of a document to tell: all of them when none is named.
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
                reason: format!("At most {FIELDS_MAX} fields can be named."),
            });
        }
        fields.iter().map(path).collect::<Result<_>>().map(Self)
    }

    /// The fields of a document, as JSON.
    pub(super) fn of(&self, document: String) -> Result<String> {
        if self.0.is_empty() {
            return Ok(document);
        }
        let document = Json::parse(&document).map_err(|error| Error::BadQuery {
            error: "bad_request",
            reason: format!("No fields can be taken out of a document: {error}."),
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

/// Splits at dots that no backslash precedes, then drops all backslashes.
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

/// Puts a value into objects that are made as needed.
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

    fn of(fields: &str, document: &str) -> Result<String> {
        Fields::parse(&Json::parse(fields).unwrap())?.of(document.to_owned())
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
            assert_eq!(of(fields, document).unwrap(), expected, "{fields}");
        }
    }

    #[test]
    fn what_names_no_fields_is_refused() {
        for (fields, expected) in [
            ("7", "invalid_fields"),
            ("[7]", "invalid_field"),
            (r#"["a..b"]"#, "invalid_field_name"),
            (r#"[""]"#, "invalid_field_name"),
        ] {
            match of(fields, "{}") {
                Err(Error::BadQuery { error, .. }) => assert_eq!(error, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
