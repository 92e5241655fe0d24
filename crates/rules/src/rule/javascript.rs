//! JSON values as JavaScript sees them.

use std::borrow::Cow;

use document::json::Json;

/// A member of an object; a name that starts with `/` and is no member is a JSON pointer.
pub(super) fn property<'a>(value: &'a Json, name: &str) -> Option<&'a Json> {
    if let Some(member) = value.get(name) {
        return Some(member);
    }
    let mut steps = name.strip_prefix('/')?.split('/');
    steps.try_fold(value, |value, step| {
        let step = step.replace("~1", "/").replace("~0", "~");
        match value {
            Json::Array(elements) => elements.get(step.parse::<usize>().ok()?),
            value => value.get(&step),
        }
    })
}

/// `String(value)`.
pub(super) fn string_of(value: Option<&Json>) -> Cow<'_, str> {
    match value {
        None => "undefined".into(),
        Some(Json::Null) => "null".into(),
        Some(Json::Bool(truth)) => truth.to_string().into(),
        Some(Json::Number(digits)) => number(digits).into(),
        Some(Json::String(text)) => text.into(),
        Some(Json::Array(elements)) => {
            let element = |element: &Json| match element {
                Json::Null => String::new(),
                element => string_of(Some(element)).into_owned(),
            };
            elements
                .iter()
                .map(element)
                .collect::<Vec<_>>()
                .join(",")
                .into()
        }
        Some(Json::Object(_)) => "[object Object]".into(),
    }
}

/// The number with these digits, as `Number::toString` of ECMAScript prints it.
fn number(digits: &str) -> String {
    let value: f64 = digits.parse().unwrap_or(f64::NAN);
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // The shortest digits that are read back as the same number.
    let shortest = format!("{:e}", value.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if value < 0.0 { "-" } else { "" };
    // The position of the decimal point in the digits.
    let point = exponent + 1;
    let length = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let split = usize::try_from(point).unwrap_or_default();
    match point {
        22.. | ..=-6 => {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            format!("{sign}{first}{dot}{rest}e{exponent:+}")
        }
        1.. if point >= length => {
            let zeros = "0".repeat(split - digits.len());
            format!("{sign}{digits}{zeros}")
        }
        1.. => format!("{sign}{}.{}", &digits[..split], &digits[split..]),
        _ => {
            let zeros = "0".repeat(point.unsigned_abs() as usize);
            format!("{sign}0.{zeros}{digits}")
        }
    }
}

/// Appends `value` to a query as the module `qs` does for Spiegel: `name=text`, `name[member]=…`, `name[0]=…`.
pub(super) fn push_query(pairs: &mut Vec<(String, String)>, name: &str, value: &Json) {
    match value {
        Json::Null => pairs.push((name.to_owned(), String::new())),
        Json::Array(elements) => {
            for (nth, element) in elements.iter().enumerate() {
                push_query(pairs, &format!("{name}[{nth}]"), element);
            }
        }
        Json::Object(members) => {
            for (member, value) in members {
                push_query(pairs, &format!("{name}[{member}]"), value);
            }
        }
        scalar => pairs.push((name.to_owned(), string_of(Some(scalar)).into_owned())),
    }
}
