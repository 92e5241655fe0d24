//! What is read, and what is said about mistakes.

use std::collections::BTreeMap;

use queue::Raw;
use serde::Deserialize;

use super::{Fault, read};

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outer {
    name: String,
    count: Option<u32>,
    #[serde(default)]
    inner: Inner,
    #[serde(default)]
    list: Vec<Inner>,
    #[serde(default)]
    map: BTreeMap<String, Inner>,
    raw: Option<Raw>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Inner {
    flag: bool,
    ratio: f64,
    words: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Small,
    Large,
}

#[test]
fn values_are_read_as_serde_json_reads_them() {
    for text in [
        r#"{"name":"a"}"#,
        r#" { "name" : "é\u00e9\"\n" , "count" : null } "#,
        r#"{"name":"a","count":4294967295,"inner":{"flag":true,"ratio":1,"words":["x"],"kind":"large"}}"#,
        r#"{"name":"a","list":[{},{"ratio":-1.5e3}],"map":{"k":{"flag":false}}}"#,
        r#"{"name":"a","raw":{ "b" : [1.10, {}] }}"#,
        r#"{"name":"a","raw":null}"#,
    ] {
        let expected: Outer = serde_json::from_str(text).unwrap();
        assert_eq!(read::<Outer>(text).unwrap(), expected, "{text}");
    }
}

/// Members, and what is wrong with them.
const MISTAKES: [(&str, &str); 19] = [
    (
        r#""count":"5""#,
        "`count` must be a whole number, not a string",
    ),
    (
        r#""count":true"#,
        "`count` must be a whole number, not true",
    ),
    (
        r#""count":1.0"#,
        "`count` must be a whole number, not one with a decimal point or an exponent",
    ),
    (
        r#""count":-1"#,
        "`count` must be a whole number from 0 to 4294967295",
    ),
    (
        r#""count":4294967296"#,
        "`count` must be a whole number from 0 to 4294967295",
    ),
    (r#""inner":[]"#, "`inner` must be a JSON object, not a list"),
    (r#""inner":null"#, "`inner` must be a JSON object, not null"),
    (
        r#""inner":{"flag":"no"}"#,
        "`inner.flag` must be true or false, not a string",
    ),
    (
        r#""inner":{"ratio":"x"}"#,
        "`inner.ratio` must be a number, not a string",
    ),
    (
        r#""inner":{"words":7}"#,
        "`inner.words` must be a list, not a number",
    ),
    (
        r#""inner":{"words":["a",7.5]}"#,
        "entry 2 of `inner.words` must be a string, not a number",
    ),
    (
        r#""inner":{"kind":"huge"}"#,
        "`inner.kind` must be one of small, large, not \"huge\"",
    ),
    (
        r#""inner":{"kind":{}}"#,
        "`inner.kind` must be a string, not an object",
    ),
    (
        r#""inner":{"x":1}"#,
        "`inner.x` is unknown; use `flag`, `ratio`, `words`, `kind`",
    ),
    (
        r#""inner":{"flag":true,"flag":true}"#,
        "`inner.flag` is there twice; leave out one of them",
    ),
    (
        r#""list":[{},[true]]"#,
        "entry 2 of `list` must be a JSON object, not a list",
    ),
    (
        r#""list":[{"ratio":[]}]"#,
        "entry 1 of `list`: `ratio` must be a number, not a list",
    ),
    (r#""map":[]"#, "`map` must be a JSON object, not a list"),
    (
        r#""map":{"k":["a"]}"#,
        "`map.k` must be a JSON object, not a list",
    ),
];

#[test]
fn mistakes_are_named_with_their_place() {
    for (members, told) in MISTAKES {
        let text = format!(r#"{{"name":"a",{members}}}"#);
        assert_eq!(read::<Outer>(&text).unwrap_err().to_string(), told);
    }
    let told = |text: &str| read::<Outer>(text).unwrap_err().to_string();
    assert_eq!(told("{}"), "`name` is missing; add it");
    assert_eq!(told("[]"), "must be a JSON object, not a list");
    for text in [
        "",
        "{",
        r#"{"name":"a",}"#,
        "{} {}",
        r#"{"name":"a","count":1e999}"#,
    ] {
        assert_eq!(read::<Outer>(text), Err(Fault::Syntax), "{text}");
    }
}

/// Such as those of durations.
#[test]
fn reasons_of_types_are_kept() {
    let text = r#"{"retry":{"delay_sec":-1}}"#;
    let told = read::<queue::Settings>(text).unwrap_err().to_string();
    assert_eq!(told, "`retry.delay_sec`: a duration must not be negative");
    for timeout in ["-1", "0", "86401"] {
        let text = format!(r#"{{"timeout_sec":{timeout}}}"#);
        let told = read::<queue::Settings>(&text).unwrap_err().to_string();
        assert_eq!(
            told,
            "`timeout_sec`: must be from 1 to 86,400 seconds (a day)"
        );
    }
    for (limit, told) in [
        (
            "[10,1]",
            " must be a whole number up to 10,000, or {\"max\": whole number, \"per_sec\": seconds}, not a list",
        ),
        (
            "-1",
            " must be a whole number up to 10,000, or {\"max\": whole number, \"per_sec\": seconds}",
        ),
        (r#"{"max":1}"#, ".per_sec` is missing; add it"),
        (
            r#"{"max":1,"per_sec":1e12}"#,
            ".per_sec`: must be from 0.001 to 1,000,000,000 seconds",
        ),
        (
            r#"{"max":"1","per_sec":1}"#,
            ".max` must be a whole number, not a string",
        ),
        (
            r#"{"max":1,"per_sec":"1"}"#,
            ".per_sec` must be a number, not a string",
        ),
        (
            r#"{"max":1,"per_sec":1,"x":1}"#,
            ".x` is unknown; use `max`, `per_sec`",
        ),
    ] {
        let text = format!(r#"{{"limits":{{"a":{limit}}}}}"#);
        let refused = read::<queue::Settings>(&text).unwrap_err().to_string();
        let place = if told.starts_with(' ') {
            "`limits.a`"
        } else {
            "`limits.a"
        };
        assert_eq!(refused, format!("{place}{told}"));
    }
    let text = r#"{"limits":{"a":3,"b":{"max":2,"per_sec":0.5}},"retry":{"limit":null}}"#;
    let expected: queue::Settings = serde_json::from_str(text).unwrap();
    assert_eq!(read::<queue::Settings>(text).unwrap(), expected);
}
