//! Anything at all as JSON, selectors and terms. See `testkit::fuzz` for how to go on for longer.

use document::doc::Doc;
use document::etf::Encoder;
use document::json::{self, Json};
use document::mango::{Budget, Selector};
use serde_json::Value;
use testkit::fuzz;

const JSON: [&[u8]; 5] = [
    br#"{"a":[1,2.5,-0,1e3],"b":{"c":null,"a":true},"a":"x\u00e9\n"}"#,
    br#"{"_id":"x","_rev":"1-967a00dff5e02add41819138abb3284d","_revisions":{"start":1,"ids":["a"]}}"#,
    br#"{"_attachments":{"a":{"stub":true,"length":3,"data":"YWJj"}},"_deleted":false}"#,
    br#" [ "\ud83d\ude00" , [[[]]] , {"":{}} ] "#,
    b"-12345678901234567890123456789012345678901",
];
const WORDS: [&str; 20] = [
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\ud800", "null", "true", "1e999", "-0",
    "\"a\":", "{\"a\":", "[[[[[[[[", " ", "\u{e9}", "0.1",
];

/// Numbers that are too large for `serde_json` are numbers here.
fn is_about_range(error: &serde_json::Error) -> bool {
    error.to_string().contains("number out of range")
}

#[test]
fn json_is_read_as_serde_json_reads_it() {
    fuzz("json", &JSON, &WORDS, |input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return false;
        };
        let expected: Result<Value, _> = serde_json::from_str(text);
        match (Json::parse(text), expected) {
            (Ok(json), Ok(expected)) => {
                assert_eq!(json.to_value(), expected);
                let printed = json.to_string();
                assert_eq!(Json::parse(&printed).expect("it is JSON"), json);
                assert!(printed.len() <= text.len() * 6);
                assert_eq!(
                    Json::parse(&json.sorted().to_string()).expect("it is JSON"),
                    json.sorted()
                );
                true
            }
            (Ok(_), Err(error)) => {
                assert!(is_about_range(&error), "{error}");
                true
            }
            (Err(error), Ok(_)) => panic!("{error}"),
            (Err(json::Error::TooManyValues), _) => panic!("it is short"),
            (Err(_), Err(_)) => false,
        }
    });
}

#[test]
fn documents_keep_what_they_are_made_of() {
    fuzz("documents", &JSON, &WORDS, |input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return false;
        };
        let Ok(doc) = Doc::parse(text) else {
            return false;
        };
        let again = Doc::parse(&doc.body).expect("a body is a document");
        assert_eq!((&again.body, again.id), (&doc.body, None));
        true
    });
}

#[test]
fn terms_of_any_text() {
    fuzz("etf", &JSON, &WORDS, |input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return false;
        };
        let mut term = Encoder::new();
        term.json(text);
        let term = term.finish();
        assert!(term.len() <= 16 + text.len() * 8, "{}", term.len());
        // Blanks between tokens and repeated names do not count.
        if let Ok(json) = Json::parse(text) {
            let mut same = Encoder::new();
            same.json(&json.to_string());
            assert_eq!(same.finish().len(), term.len());
            return true;
        }
        false
    });
}

#[test]
fn selectors_end() {
    let seeds: [&[u8]; 4] = [
        br#"{"$or":[{"a.b":{"$gt":1,"$lte":"x"}},{"a":{"$elemMatch":{"$in":[1,"b"]}}}]}"#,
        br#"{"x":{"$regex":"^(a+)+$|(b)\\2"},"$nor":[{"_id":{"$beginsWith":"a"}}]}"#,
        br#"{"a":{"$not":{"$allMatch":{"b":{"$exists":false}}}},"b":{"$mod":[2,1]}}"#,
        br#"{"a":{"$keyMapMatch":{"$eq":"b"}},"b":{"$all":[[1]]},"c":{"$size":1,"$type":"array"}}"#,
    ];
    let words: Vec<&str> = [
        "$and",
        "$or",
        "$nor",
        "$not",
        "$elemMatch",
        "$allMatch",
        "$keyMapMatch",
        "$regex",
        "$in",
        "$nin",
        "$all",
        "(?=",
        "(a|b)*",
        "\\\\1",
        "{9,99}",
        "\\\\w+",
        "$",
        "(?i)",
        "[^]",
    ]
    .into_iter()
    .chain(WORDS)
    .collect();
    let documents = [
        serde_json::json!({"_id": "abc", "a": {"b": [1, {"c": 2}], "x": "aaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}),
        serde_json::json!({"_id": "b", "a": [1, "b", [1], {"b": null}], "b": 3, "x": "a".repeat(300)}),
    ];
    fuzz("mango", &seeds, &words, |input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return false;
        };
        let Ok(selector) = Selector::parse(text) else {
            return false;
        };
        for document in &documents {
            let decide = || selector.matches(document, &mut Budget::of_document());
            assert_eq!(decide(), decide());
        }
        true
    });
}
