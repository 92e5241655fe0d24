//! CouchDB's order of JSON values: null, false, true, numbers, strings by Unicode collation, arrays, objects.

use std::cmp::Ordering;
use std::sync::LazyLock;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};
use serde_json::{Number, Value};

static COLLATOR: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| {
    Collator::try_new(CollatorPreferences::default(), CollatorOptions::default())
        .expect("the root collation is compiled in")
});

/// Compares in the order of views and Mango selectors.
pub fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => compare_strings(a, b),
        (Value::Array(a), Value::Array(b)) => {
            for (a, b) in a.iter().zip(b) {
                let order = compare(a, b);
                if order != Ordering::Equal {
                    return order;
                }
            }
            a.len().cmp(&b.len())
        }
        (Value::Object(a), Value::Object(b)) => {
            for ((a_name, a), (b_name, b)) in a.iter().zip(b) {
                let order = compare_strings(a_name, b_name).then_with(|| compare(a, b));
                if order != Ordering::Equal {
                    return order;
                }
            }
            a.len().cmp(&b.len())
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Compares strings by the root collation, in which `a < A < b`.
pub fn compare_strings(a: &str, b: &str) -> Ordering {
    if a == b {
        Ordering::Equal
    } else {
        COLLATOR.compare(a, b)
    }
}

/// Compares numbers by value; an integer and a float are compared exactly.
pub(crate) fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => a.cmp(&b),
        (None, None) => float(a).partial_cmp(&float(b)).unwrap_or(Ordering::Equal),
        (Some(a), None) => compare_mixed(a, float(b)),
        (None, Some(b)) => compare_mixed(b, float(a)).reverse(),
    }
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

fn compare_mixed(integer: i128, float: f64) -> Ordering {
    // JSON integers fit 65 bits here, so a float of this size is outside their range.
    const LIMIT: f64 = 1e30;
    if float >= LIMIT {
        return Ordering::Less;
    }
    if float <= -LIMIT {
        return Ordering::Greater;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the whole part is smaller than 1e30"
    )]
    let whole = float.trunc() as i128;
    integer.cmp(&whole).then_with(|| {
        0.0_f64
            .partial_cmp(&float.fract())
            .unwrap_or(Ordering::Equal)
    })
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The table in CouchDB's documentation on collation, with number and object order added.
    #[test]
    fn couchdb_collation_table() {
        let sorted = json!([
            null, false, true,
            -1.5, 0, 1, 1.5, 2, 3.0, 4, 9_007_199_254_740_992_i64, 9_007_199_254_740_993_i64, 1e300,
            "", "`", "~", "a", "A", "aa", "ab", "b", "B", "ba", "bb", "é", "z",
            ["a"], ["b"], ["b", "c"], ["b", "c", "a"], ["b", "d"], ["b", "d", "e"],
            {"a": 1}, {"a": 2}, {"b": 1}, {"b": 2}, {"b": 2, "a": 1}, {"b": 2, "c": 2}
        ]);
        let sorted = sorted.as_array().unwrap();
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a} {b}");
            }
        }
    }

    #[test]
    fn integers_meet_floats_exactly() {
        assert_eq!(compare(&json!(1), &json!(1.0)), Ordering::Equal);
        assert_eq!(
            compare(
                &json!(9_007_199_254_740_993_u64),
                &json!(9_007_199_254_740_992.0)
            ),
            Ordering::Greater
        );
        assert_eq!(compare(&json!(-1), &json!(-1.5)), Ordering::Greater);
        assert_eq!(compare(&json!(u64::MAX), &json!(1e19)), Ordering::Greater);
        assert_eq!(compare(&json!(u64::MAX), &json!(1e31)), Ordering::Less);
    }
}
