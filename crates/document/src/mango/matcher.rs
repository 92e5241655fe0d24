//! A normalised selector, compiled for matching.

use std::cmp::Ordering;

use serde_json::Value;

use super::pattern::{Pattern, Unusable};
use super::{Budget, Error, Normal, TooExpensive};
use crate::collate;
use crate::json::Json;

/// A compiled condition.
#[derive(Debug)]
pub(super) enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Field {
        path: Vec<String>,
        is_id: bool,
        condition: Box<Condition>,
    },
    Elements(Quantifier, Box<Condition>),
    /// A test, and the cost of comparing a value with its argument.
    Test(Test, u64),
    /// `$nor` that normalisation does not reach: it fails in `CouchDB`, which the enclosing operator treats as no
    /// match.
    Unusable,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Quantifier {
    Any,
    All,
    AnyKey,
}

#[derive(Debug)]
pub(super) enum Test {
    Compare(fn(Ordering) -> bool, Value),
    In(Vec<Value>),
    NotIn(Vec<Value>),
    Exists(bool),
    Type(String),
    Mod(i64, i64),
    Regex(Pattern),
    BeginsWith(String),
    All(Vec<Value>),
    Size(usize),
}

/// Why a condition has no result.
enum Stop {
    /// It is undecidable.
    Undecidable,
    TooExpensive(TooExpensive),
}

impl From<TooExpensive> for Stop {
    fn from(error: TooExpensive) -> Self {
        Self::TooExpensive(error)
    }
}

/// Maximum total size of a selector's regular expressions.
const PATTERNS_WEIGHT_MAX: u64 = 64;

/// Properties of the conditions compiled so far.
#[derive(Default)]
pub(super) struct Compiler {
    patterns_weight: u64,
    /// The total cost of the conditions on one value.
    pub(super) weight: u64,
    /// A regular expression backtracks.
    pub(super) backtracks: bool,
}

type Compare = fn(&Value, &Value) -> Ordering;

impl Condition {
    pub(super) fn compile(normal: &Normal, compiler: &mut Compiler) -> Result<Self, Error> {
        compiler.weight += 1;
        let mut all = |arguments: &[Normal]| {
            arguments
                .iter()
                .map(|argument| Self::compile(argument, compiler))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(match normal {
            Normal::Everything => Self::All(Vec::new()),
            Normal::Combine("$and", arguments) => Self::All(all(arguments)?),
            Normal::Combine("$or", arguments) => Self::Any(all(arguments)?),
            Normal::Combine(..) => Self::Unusable,
            Normal::Wrap(name, argument) => {
                let condition = Box::new(Self::compile(argument, compiler)?);
                match *name {
                    "$elemMatch" => Self::Elements(Quantifier::Any, condition),
                    "$allMatch" => Self::Elements(Quantifier::All, condition),
                    "$keyMapMatch" => Self::Elements(Quantifier::AnyKey, condition),
                    _ => Self::Not(condition),
                }
            }
            Normal::Field(path, condition) => Self::Field {
                path: path.segments(),
                is_id: path.dotted() == "_id",
                condition: Box::new(Self::compile(condition, compiler)?),
            },
            Normal::Test(name, argument) => {
                let steps = steps(argument);
                compiler.weight += steps;
                Self::Test(Test::compile(name, argument, compiler)?, steps)
            }
        })
    }

    pub(super) fn matches(&self, value: &Value, budget: &mut Budget) -> Result<bool, TooExpensive> {
        match self.evaluate(value, collate::compare, budget) {
            Ok(matched) => Ok(matched),
            Err(Stop::Undecidable) => Ok(false),
            Err(Stop::TooExpensive(error)) => Err(error),
        }
    }

    fn evaluate(&self, value: &Value, compare: Compare, budget: &mut Budget) -> Result<bool, Stop> {
        budget.spend(1)?;
        match self {
            Self::All(conditions) => {
                for condition in conditions {
                    if !condition.evaluate(value, compare, budget)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(conditions) => {
                for condition in conditions {
                    if condition.evaluate(value, compare, budget)? {
                        return Ok(true);
                    }
                }
                Ok(conditions.is_empty())
            }
            Self::Not(condition) => Ok(!condition.evaluate(value, compare, budget)?),
            Self::Field {
                path,
                is_id,
                condition,
            } => match find(value, path) {
                Found::Value(found) => {
                    let compare = if *is_id { compare_id } else { compare };
                    condition.evaluate(found, compare, budget)
                }
                Found::Missing => Ok(matches!(**condition, Self::Test(Test::Exists(false), _))),
                Found::BadPath => Ok(false),
            },
            Self::Elements(quantifier, condition) => {
                elements(*quantifier, condition, value, compare, budget)
            }
            Self::Test(test, steps) => Ok(test.passes(value, compare, *steps, budget)?),
            Self::Unusable => Err(Stop::Undecidable),
        }
    }
}

/// The cost of comparing something with a value.
fn steps(json: &Json) -> u64 {
    let text = |text: &str| 1 + text.len() as u64 / 16;
    match json {
        Json::Null | Json::Bool(_) => 1,
        Json::Number(digits) => text(digits),
        Json::String(string) => text(string),
        Json::Array(elements) => 1 + elements.iter().map(steps).sum::<u64>(),
        Json::Object(members) => {
            let members = members.iter();
            1 + members
                .map(|(name, value)| text(name) + steps(value))
                .sum::<u64>()
        }
    }
}

fn elements(
    quantifier: Quantifier,
    condition: &Condition,
    value: &Value,
    compare: Compare,
    budget: &mut Budget,
) -> Result<bool, Stop> {
    let mut decide = |element: &Value| condition.evaluate(element, compare, budget);
    let outcome = match (quantifier, value) {
        (Quantifier::Any, Value::Array(elements)) => any(elements.iter().map(decide)),
        (Quantifier::AnyKey, Value::Object(members)) => any(members
            .keys()
            .map(|key| decide(&Value::String(key.clone())))),
        (Quantifier::All, Value::Array(elements)) if !elements.is_empty() => any(elements
            .iter()
            .map(|element| decide(element).map(|matched| !matched)))
        .map(|failed| !failed),
        _ => Ok(false),
    };
    match outcome {
        Err(Stop::Undecidable) => Ok(false),
        outcome => outcome,
    }
}

fn any(decisions: impl Iterator<Item = Result<bool, Stop>>) -> Result<bool, Stop> {
    for decision in decisions {
        if decision? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Test {
    fn compile(name: &str, argument: &Json, compiler: &mut Compiler) -> Result<Self, Error> {
        let bad = || Error::bad_argument(name, argument);
        let values = || {
            argument
                .as_array()
                .unwrap_or_default()
                .iter()
                .map(Json::to_value)
                .collect()
        };
        let text = || argument.as_str().unwrap_or_default();
        let integer = |json: &Json| {
            json.as_integer()
                .and_then(|number| i64::try_from(number).ok())
                .ok_or_else(bad)
        };
        Ok(match name {
            "$lt" => Self::Compare(Ordering::is_lt, argument.to_value()),
            "$lte" => Self::Compare(Ordering::is_le, argument.to_value()),
            "$eq" => Self::Compare(Ordering::is_eq, argument.to_value()),
            "$ne" => Self::Compare(Ordering::is_ne, argument.to_value()),
            "$gte" => Self::Compare(Ordering::is_ge, argument.to_value()),
            "$gt" => Self::Compare(Ordering::is_gt, argument.to_value()),
            "$in" => Self::In(values()),
            "$nin" => Self::NotIn(values()),
            "$all" => Self::All(values()),
            "$exists" => Self::Exists(argument.as_bool().unwrap_or_default()),
            "$type" => Self::Type(text().to_owned()),
            "$regex" => {
                let pattern = Pattern::perl(text()).map_err(|error| match error {
                    Unusable::Invalid => bad(),
                    Unusable::TooLarge => Error::TooLarge,
                })?;
                compiler.patterns_weight += pattern.weight;
                compiler.backtracks |= pattern.backtracks();
                if compiler.patterns_weight > PATTERNS_WEIGHT_MAX {
                    return Err(Error::TooLarge);
                }
                Self::Regex(pattern)
            }
            "$beginsWith" => Self::BeginsWith(text().to_owned()),
            "$size" => Self::Size(usize::try_from(integer(argument)?).map_err(|_| bad())?),
            "$mod" => match argument.as_array() {
                Some([divisor, rest]) => Self::Mod(integer(divisor)?, integer(rest)?),
                _ => return Err(bad()),
            },
            _ => return Err(Error::InvalidOperator(name.to_owned())),
        })
    }

    fn passes(
        &self,
        value: &Value,
        compare: Compare,
        steps: u64,
        budget: &mut Budget,
    ) -> Result<bool, TooExpensive> {
        let equal = |a: &Value, b: &Value| compare(a, b).is_eq();
        budget.spend(match (self, value) {
            (Self::In(_) | Self::NotIn(_) | Self::All(_), Value::Array(elements)) => {
                steps.saturating_mul(elements.len() as u64)
            }
            _ => steps,
        })?;
        Ok(match (self, value) {
            (Self::Compare(accepts, argument), _) => accepts(compare(value, argument)),
            (Self::In(arguments), Value::Array(elements)) => arguments
                .iter()
                .any(|argument| elements.iter().any(|element| equal(element, argument))),
            (Self::In(arguments), _) => arguments.iter().any(|argument| equal(value, argument)),
            (Self::NotIn(arguments), Value::Array(elements)) => !arguments
                .iter()
                .any(|argument| elements.iter().any(|element| equal(element, argument))),
            (Self::NotIn(arguments), _) => !arguments.iter().any(|argument| equal(value, argument)),
            (Self::Exists(should), _) => *should,
            (Self::Type(name), _) => name == type_name(value),
            (Self::Mod(divisor, rest), Value::Number(number)) => number
                .as_i128()
                .is_some_and(|number| number % i128::from(*divisor) == i128::from(*rest)),
            (Self::Regex(pattern), Value::String(text)) => return pattern.is_match(text, budget),
            (Self::BeginsWith(prefix), Value::String(text)) => text.starts_with(prefix.as_str()),
            (Self::All(arguments), Value::Array(elements)) => match &arguments[..] {
                [] => false,
                [Value::Array(only)] if same_elements(only, elements, false) => true,
                _ => arguments
                    .iter()
                    .all(|argument| elements.iter().any(|element| same(argument, element, true))),
            },
            (Self::Size(size), Value::Array(elements)) => elements.len() == *size,
            _ => false,
        })
    }
}

enum Found<'a> {
    Value(&'a Value),
    Missing,
    /// The path leads through a scalar or past the end of an array.
    BadPath,
}

fn find<'a>(value: &'a Value, path: &[String]) -> Found<'a> {
    let mut value = value;
    for name in path {
        value = match value {
            Value::Object(members) => match members.get(name) {
                Some(member) => member,
                None => return Found::Missing,
            },
            Value::Array(elements) => match name
                .parse()
                .ok()
                .and_then(|index: usize| elements.get(index))
            {
                Some(element) => element,
                None => return Found::BadPath,
            },
            _ => return Found::BadPath,
        };
    }
    Found::Value(value)
}

/// Compares a document id with an argument in Erlang's term order: ids by bytes, and after everything else.
fn compare_id(value: &Value, argument: &Value) -> Ordering {
    match (value, argument) {
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::String(_), _) => Ordering::Greater,
        _ => collate::compare(value, argument),
    }
}

/// Equality without collation: the order of members counts, and `1` equals `1.0` unless `exact`.
fn same(a: &Value, b: &Value, exact: bool) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a.is_f64() == b.is_f64() && a == b || !exact && collate::compare_numbers(a, b).is_eq()
        }
        (Value::Array(a), Value::Array(b)) => same_elements(a, b, exact),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|((a_name, a), (b_name, b))| a_name == b_name && same(a, b, exact))
        }
        _ => a == b,
    }
}

fn same_elements(a: &[Value], b: &[Value], exact: bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, exact))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
