//! `if`: which documents a rule is about.

use document::json::Json;
use document::mango::{Budget, TooExpensive};

use super::fields::{Fields, Invalid};
use super::javascript::{property, string_of};
use super::pattern::Pattern;

/// All of its tests must succeed.
#[derive(Debug, Default)]
pub(super) struct Condition(Vec<(String, Test)>);

#[derive(Debug)]
enum Test {
    /// The member is missing or null.
    Null,
    /// The member as a JavaScript string matches.
    Matches(Pattern),
}

impl Condition {
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, Invalid> {
        let Some(tests) = fields.get("if") else {
            return Ok(Self::default());
        };
        let Some(tests) = tests.as_object() else {
            let reason =
                "must be an object: names of members, each with a regular expression or null";
            return Err(fields.invalid("if", reason));
        };
        let test = |(name, value): &(String, Json)| {
            let path = format!("if.{name}");
            let test = match value {
                Json::Null => Test::Null,
                Json::String(text) => Test::Matches(fields.compiled(&path, text)?),
                _ => {
                    return Err(Invalid::new(
                        path,
                        "must be a regular expression, as a string, or null",
                    ));
                }
            };
            Ok((name.clone(), test))
        };
        tests.iter().map(test).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn matches(
        &self,
        document: &Json,
        budget: &mut Budget,
    ) -> Result<bool, TooExpensive> {
        for (name, test) in &self.0 {
            let value = property(document, name);
            let matched = match test {
                Test::Null => matches!(value, None | Some(Json::Null)),
                Test::Matches(pattern) => pattern.is_match(&string_of(value), budget)?,
            };
            if !matched {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
