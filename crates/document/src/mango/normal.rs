//! The three steps of normalisation.

use super::Error;
use crate::json::Json;

/// A normalised selector: field names are at the tests, and so are negations if an operator has an opposite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Normal {
    /// `{}`, which matches every document.
    Everything,
    /// `$and`, `$or` or, inside `$elemMatch` and the like, `$nor`.
    Combine(&'static str, Vec<Normal>),
    /// `$not`, and `$elemMatch`, `$allMatch`, `$keyMapMatch`, whose arguments are about elements.
    Wrap(&'static str, Box<Normal>),
    /// A condition on a field; an empty path is the value itself.
    Field(Path, Box<Normal>),
    Test(&'static str, Json),
}

/// The path of a field: names as written, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    names: Vec<String>,
}

impl Path {
    /// The names as written, joined by dots: a dot that belongs to a name keeps its backslash.
    pub fn dotted(&self) -> String {
        self.names.join(".")
    }

    /// One name per level, backslashes removed.
    pub fn segments(&self) -> Vec<String> {
        self.names.iter().flat_map(|name| split(name)).collect()
    }

    fn child(&self, name: &str) -> Self {
        Self {
            names: self
                .names
                .iter()
                .cloned()
                .chain([name.to_owned()])
                .collect(),
        }
    }
}

/// Splits at dots that no backslash precedes, then drops all backslashes.
fn split(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for letter in name.chars() {
        match letter {
            '.' if !escaped => parts.push(String::new()),
            '\\' => {}
            other => parts.last_mut().expect("starts with one part").push(other),
        }
        escaped = letter == '\\';
    }
    parts
}

/// Whether each level of a dotted name is non-empty.
fn is_field_name(name: &str) -> bool {
    // A backslash alone counts as a name, although it names the empty string.
    let mut length = 0;
    let mut before = ' ';
    for letter in name.chars() {
        if letter == '.' && before != '\\' {
            if length == 0 {
                return false;
            }
            length = 0;
        } else {
            length += 1;
        }
        before = letter;
    }
    length > 0
}

const WRAPPERS: [&str; 3] = ["$elemMatch", "$allMatch", "$keyMapMatch"];
const UNSUPPORTED: [&str; 6] = [
    "$text",
    "$where",
    "$geoWithin",
    "$geoIntersects",
    "$near",
    "$nearSphere",
];

/// Maximum memory of a normal form, without arguments.
const NORMAL_BYTES_MAX: usize = 4 << 20;
/// The memory per condition, without its path.
const CONDITION_BYTES: usize = 256;

/// The memory per condition once each test has the full path of its field.
fn written_bytes(normal: &Normal, path_bytes: usize) -> usize {
    let own = path_bytes + CONDITION_BYTES;
    own + match normal {
        Normal::Everything | Normal::Test(..) => 0,
        Normal::Combine(_, arguments) => {
            let arguments = arguments.iter();
            arguments
                .map(|argument| written_bytes(argument, path_bytes))
                .sum()
        }
        Normal::Wrap("$not", argument) => written_bytes(argument, path_bytes),
        Normal::Wrap(_, argument) => written_bytes(argument, 0),
        Normal::Field(path, condition) => {
            let names = path.names.iter().map(String::len).sum::<usize>();
            written_bytes(condition, path_bytes + names)
        }
    }
}

pub(super) fn normalize(selector: &Json) -> Result<Normal, Error> {
    let members = selector
        .as_object()
        .ok_or_else(|| Error::NotObject(super::shown(selector)))?;
    if members.is_empty() {
        return Ok(Normal::Everything);
    }
    let explicit = make_explicit(selector)?;
    if written_bytes(&explicit, 0) > NORMAL_BYTES_MAX {
        return Err(Error::TooLarge);
    }
    let normal = push_negations(push_fields(explicit, &Path::default()));
    match normal {
        Normal::Field(path, _) if path.names.is_empty() => Err(Error::MissingFieldName),
        other => Ok(other),
    }
}

/// First step: every condition becomes one operator with a valid argument; what is not an operator is a field or a
/// value.
fn make_explicit(condition: &Json) -> Result<Normal, Error> {
    match condition.as_object() {
        Some([(name, argument)]) => explicit_member(name, argument),
        Some(members @ [_, _, ..]) => {
            let each = |(name, argument): &(String, Json)| explicit_member(name, argument);
            Ok(Normal::Combine(
                "$and",
                members.iter().map(each).collect::<Result<_, _>>()?,
            ))
        }
        _ => Ok(Normal::Test("$eq", condition.clone())),
    }
}

fn explicit_member(name: &str, argument: &Json) -> Result<Normal, Error> {
    if name.starts_with('$') {
        return operator(name, argument);
    }
    if !is_field_name(name) {
        return Err(Error::InvalidFieldName(name.to_owned()));
    }
    let path = Path {
        names: vec![name.to_owned()],
    };
    Ok(Normal::Field(path, Box::new(make_explicit(argument)?)))
}

fn operator(name: &str, argument: &Json) -> Result<Normal, Error> {
    let bad = || Error::bad_argument(name, argument);
    if let Some(name) = ["$and", "$or", "$nor"]
        .into_iter()
        .find(|known| *known == name)
    {
        let arguments = argument.as_array().ok_or_else(bad)?;
        return Ok(Normal::Combine(
            name,
            arguments
                .iter()
                .map(make_explicit)
                .collect::<Result<_, _>>()?,
        ));
    }
    if let Some(name) = WRAPPERS
        .into_iter()
        .chain(["$not"])
        .find(|known| *known == name)
    {
        argument.as_object().ok_or_else(bad)?;
        return Ok(Normal::Wrap(name, Box::new(make_explicit(argument)?)));
    }
    let is_integer = Json::is_integer;
    let is_size = |json: &Json| matches!(json, Json::Number(digits) if is_integer(json) && (!digits.starts_with('-') || &**digits == "-0"));
    let (name, valid) = match name {
        "$lt" => ("$lt", true),
        "$lte" => ("$lte", true),
        "$eq" => ("$eq", true),
        "$ne" => ("$ne", true),
        "$gte" => ("$gte", true),
        "$gt" => ("$gt", true),
        "$in" => ("$in", argument.as_array().is_some()),
        "$nin" => ("$nin", argument.as_array().is_some()),
        "$all" => ("$all", argument.as_array().is_some()),
        "$exists" => ("$exists", argument.as_bool().is_some()),
        "$type" => ("$type", argument.as_str().is_some()),
        "$size" => ("$size", is_size(argument)),
        "$regex" => ("$regex", argument.as_str().is_some()),
        // CouchDB accepts a divisor of zero and then crashes on the first number.
        "$mod" => (
            "$mod",
            matches!(argument.as_array(), Some([divisor, rest])
            if is_integer(divisor) && is_integer(rest) && divisor.as_integer() != Some(0)),
        ),
        // CouchDB has no error of its own for this one.
        "$beginsWith" if argument.as_str().is_some() => ("$beginsWith", true),
        _ if UNSUPPORTED.contains(&name) => return Err(Error::NotSupported(name.to_owned())),
        _ => return Err(Error::InvalidOperator(name.to_owned())),
    };
    if valid {
        Ok(Normal::Test(name, argument.clone()))
    } else {
        Err(bad())
    }
}

/// Second step: `{x: {$and: [A, B]}}` becomes `{$and: [{x: A}, {x: B}]}`, and `{a: {b: C}}` becomes `{a.b: C}`.
/// Arguments about elements start with a path of their own.
fn push_fields(normal: Normal, path: &Path) -> Normal {
    match normal {
        Normal::Combine(name, arguments) => Normal::Combine(
            name,
            arguments
                .into_iter()
                .map(|argument| push_fields(argument, path))
                .collect(),
        ),
        Normal::Wrap("$not", argument) => {
            Normal::Wrap("$not", Box::new(push_fields(*argument, path)))
        }
        Normal::Wrap(name, argument) => {
            let argument = push_fields(*argument, &Path::default());
            Normal::Field(
                path.clone(),
                Box::new(Normal::Wrap(name, Box::new(argument))),
            )
        }
        Normal::Field(own, condition) => {
            let path = own
                .names
                .iter()
                .fold(path.clone(), |path, name| path.child(name));
            push_fields(*condition, &path)
        }
        test => Normal::Field(path.clone(), Box::new(test)),
    }
}

/// Third step: De Morgan, outside of arguments about elements.
fn push_negations(normal: Normal) -> Normal {
    match normal {
        Normal::Wrap("$not", argument) => negate(*argument),
        Normal::Combine("$nor", arguments) => {
            Normal::Combine("$and", arguments.into_iter().map(negate).collect())
        }
        Normal::Combine(name, arguments) => {
            Normal::Combine(name, arguments.into_iter().map(push_negations).collect())
        }
        other => other,
    }
}

fn negate(normal: Normal) -> Normal {
    match normal {
        Normal::Wrap("$not", argument) => push_negations(*argument),
        Normal::Combine("$nor", arguments) => {
            Normal::Combine("$or", arguments.into_iter().map(push_negations).collect())
        }
        Normal::Combine("$and", arguments) => {
            Normal::Combine("$or", arguments.into_iter().map(negate).collect())
        }
        Normal::Combine(_, arguments) => {
            Normal::Combine("$and", arguments.into_iter().map(negate).collect())
        }
        Normal::Field(path, condition) => Normal::Field(path, Box::new(negate(*condition))),
        Normal::Test(name, argument) => match (name, &argument) {
            ("$lt", _) => Normal::Test("$gte", argument),
            ("$lte", _) => Normal::Test("$gt", argument),
            ("$eq", _) => Normal::Test("$ne", argument),
            ("$ne", _) => Normal::Test("$eq", argument),
            ("$gte", _) => Normal::Test("$lt", argument),
            ("$gt", _) => Normal::Test("$lte", argument),
            ("$in", _) => Normal::Test("$nin", argument),
            ("$nin", _) => Normal::Test("$in", argument),
            ("$exists", Json::Bool(truth)) => Normal::Test("$exists", Json::Bool(!truth)),
            _ => Normal::Wrap("$not", Box::new(Normal::Test(name, argument))),
        },
        other => Normal::Wrap("$not", Box::new(other)),
    }
}
