//! The results of selectors in `CouchDB`, and their normal forms.

use serde_json::{Value, json};

use super::{Budget, Error, Normal, Selector, TooExpensive};
use crate::json::Json;

impl Selector {
    fn takes(&self, document: &Value) -> bool {
        self.matches(document, &mut Budget::of_document()).unwrap()
    }
}

fn selector(selector: &Value) -> Selector {
    Selector::parse(&selector.to_string()).unwrap_or_else(|error| panic!("{selector}: {error}"))
}

/// The normal form as JSON with dotted names.
fn shown(normal: &Normal) -> Value {
    match normal {
        Normal::Everything => json!({}),
        Normal::Combine(name, arguments) => {
            json!({*name: arguments.iter().map(shown).collect::<Vec<_>>()})
        }
        Normal::Wrap(name, argument) => json!({*name: shown(argument)}),
        Normal::Field(path, condition) => json!({path.dotted(): shown(condition)}),
        Normal::Test(name, argument) => json!({*name: argument.to_value()}),
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "tables read better without references"
)]
/// Checks a condition on field `x`, and that `$not` around it gives the opposite.
fn check(condition: Value, yes: Value, no: Value) {
    let positive = selector(&json!({"x": condition}));
    let negative = selector(&json!({"x": {"$not": condition}}));
    for (values, expected) in [(yes, true), (no, false)] {
        for value in values.as_array().unwrap() {
            let document = json!({"_id": "a", "x": value});
            assert_eq!(positive.takes(&document), expected, "{condition} {value}");
            assert_eq!(
                negative.takes(&document),
                !expected,
                "not {condition} {value}"
            );
        }
    }
}

#[test]
fn comparisons() {
    check(
        json!({"$lt": 5}),
        json!([4, 4.9, null, true]),
        json!([5, 6, 5.0, "4", [], {}]),
    );
    check(
        json!({"$lte": "hello"}),
        json!(["held", "hello", 1]),
        json!(["help", "Hello", ["a"]]),
    );
    check(
        json!({"$gt": [1, 2, 3]}),
        json!([[1, 2, 4], [1, 3], {}]),
        json!([[1, 2, 3], [1, 2], [], "z"]),
    );
    check(json!({"$gte": 1.5}), json!([1.5, 2, ""]), json!([1, null]));
    check(
        json!({"$eq": {"a": {"b": 1}}}),
        json!([{"a": {"b": 1}}, {"a": {"b": 1.0}}]),
        json!([{"a": {"b": 2}}, {"a": {}}]),
    );
    check(json!({"$ne": null}), json!([0, false]), json!([null]));
    assert!(selector(&json!({"x": 7})).takes(&json!({"x": 7.0})));
}

#[test]
fn membership() {
    check(json!({"$in": []}), json!([]), json!([0, [], null]));
    let members = json!({"$in": [42, false, "bar", [["nested"], "list"], {"b": 2}]});
    check(
        members,
        json!([42, false, "bar", {"b": 2}, [0, 42], [0, {"b": 2}], [0, [["nested"], "list"]]]),
        json!([43, true, "bars", {"b": 2, "c": 3}, [["nested"], "list"], []]),
    );
    check(
        json!({"$nin": [1, "a"]}),
        json!([2, [], ["b"]]),
        json!([1, "a", [3, 1]]),
    );
    check(json!({"$nin": []}), json!([1, []]), json!([]));
    check(json!({"$all": []}), json!([]), json!([[], [42], {}, "foo"]));
    check(
        json!({"$all": [1, 2]}),
        json!([[2, 1], [0, 2, 1]]),
        json!([[1], [], 1, [1.0, 2]]),
    );
    check(
        json!({"$all": [[1, 2]]}),
        json!([[1, 2], [1.0, 2], [5, [1, 2]]]),
        json!([[2, 1], [5, [2, 1]], [[1.0, 2]]]),
    );
    check(
        json!({"$all": [{"a": 1}]}),
        json!([[{"a": 1}]]),
        json!([[{"a": 1, "b": 2}], {"a": 1}]),
    );
}

#[test]
fn shapes() {
    for (name, yes) in [
        ("null", json!([null])),
        ("boolean", json!([true, false])),
        ("number", json!([0, -1.5])),
        ("string", json!(["", "a"])),
        ("array", json!([[], [1]])),
        ("object", json!([{}, {"a": 1}])),
    ] {
        check(json!({"$type": name}), yes, json!([]));
    }
    check(
        json!({"$type": "nonsense"}),
        json!([]),
        json!([null, 1, "a"]),
    );
    check(
        json!({"$size": 2}),
        json!([[0, 0]]),
        json!([[], [0], 2, "ab", {"a": 1, "b": 2}]),
    );
    check(
        json!({"$mod": [28, 1]}),
        json!([1, 29, 57]),
        json!([58, "57", 29.0, -27]),
    );
    check(json!({"$mod": [4, -1]}), json!([-1, -5]), json!([3, 1]));
    check(
        json!({"$beginsWith": "fo"}),
        json!(["fo", "food"]),
        json!(["f", "ofo", 1, ["fo"]]),
    );
}

#[test]
fn regular_expressions() {
    check(
        json!({"$regex": "^[0-9a-f]+$"}),
        json!(["3a0df5e", "3a\n"]),
        json!(["", "3ag", 42, "3a\n\n", "\n3a"]),
    );
    check(
        json!({"$regex": r"^(a$|b)\$[$]$"}),
        json!(["b$$"]),
        json!(["a", "b$"]),
    );
    check(
        json!({"$regex": "^[[:alpha:]$]+$"}),
        json!(["a$b"]),
        json!(["1", "a\nb"]),
    );
    check(
        json!({"$regex": r"(\w)\1(?!x)"}),
        json!(["aab"]),
        json!(["aax", "ab"]),
    );
    check(json!({"$regex": "(?i)^É"}), json!(["éa"]), json!(["e"]));
}

#[test]
fn elements_and_keys() {
    check(
        json!({"$elemMatch": {"$gte": 80, "$lt": 85}}),
        json!([[1, 82], [80]]),
        json!([[], [85, 1], 82]),
    );
    check(
        json!({"$elemMatch": {"a": 1, "b.c": 2}}),
        json!([[{"a": 1, "b": {"c": 2}}]]),
        json!([[{"a": 1}, {"b": {"c": 2}}]]),
    );
    check(
        json!({"$allMatch": {"$eq": 0}}),
        json!([[0], [0, 0.0]]),
        json!([[], [1], [0, 1], 0]),
    );
    check(
        json!({"$keyMapMatch": {"$regex": "^[a-z]+$"}}),
        json!([{"hello": 0}, {"b4": 1, "a": 2}]),
        json!([{"b4": 2}, {}, []]),
    );
    check(
        json!({"$elemMatch": {"$not": {"$eq": 1}}}),
        json!([[2], [1, 2]]),
        json!([[1], []]),
    );
    // Negations of elements stay where they are, and `$nor` there never matches.
    check(
        json!({"$elemMatch": {"$nor": [{"$eq": 1}]}}),
        json!([]),
        json!([[2], [1]]),
    );
    check(
        json!({"$allMatch": {"$or": [{"$nor": [{"$eq": 1}]}]}}),
        json!([]),
        json!([[2]]),
    );
}

#[test]
fn absence() {
    let bare = json!({"_id": "a"});
    for (condition, expected) in [
        (json!({"x": {"$exists": false}}), true),
        (json!({"x": {"$exists": true}}), false),
        (json!({"x": {"$ne": 5}}), false),
        (json!({"$not": {"x": 5}}), false),
        (json!({"x": {"$not": {"$exists": true, "$eq": 0}}}), true),
        (json!({"x": {"$not": {"$type": "string"}}}), false),
        (json!({"x": {"$and": []}}), true),
        (json!({"x": {"$or": []}}), true),
        (json!({"x": {"$nor": []}}), true),
        (json!({}), true),
        (json!({"_id.x": {"$exists": false}}), false),
    ] {
        assert_eq!(selector(&condition).takes(&bare), expected, "{condition}");
    }
}

#[test]
fn paths() {
    let document = json!({"_id": "a", "a": {"b": [10, {"c.d": 1}]}, "": 3, "e\\": 4});
    for (condition, expected) in [
        (json!({"a": {"b": {"0": 10}}}), true),
        (json!({"a.b.0": 10}), true),
        (json!({"a.b.+1.c\\.d": 1}), true),
        (json!({"a.b.1": {"c\\.d": 1}}), true),
        (json!({"a.b.1.c.d": 1}), false),
        (json!({"a.b.2": {"$exists": false}}), false),
        (json!({"a.b.x": {"$exists": false}}), false),
        (json!({"a.b.-1": 10}), false),
        (json!({"a.x": {"$exists": false}}), true),
        (
            json!({"a": {"x": {"$exists": false}, "b.0": {"$gt": 9}}}),
            true,
        ),
        (json!({"a": {}}), false),
    ] {
        assert_eq!(
            selector(&condition).takes(&document),
            expected,
            "{condition}"
        );
    }
}

#[test]
fn ids_compare_by_bytes() {
    let document = json!({"_id": "B", "name": "B"});
    assert!(selector(&json!({"_id": {"$lt": "a"}})).takes(&document));
    assert!(!selector(&json!({"name": {"$lt": "a"}})).takes(&document));
    assert!(selector(&json!({"_id": {"$gt": {}}})).takes(&document));
    assert!(!selector(&json!({"name": {"$gt": {}}})).takes(&document));
    assert!(selector(&json!({"_id": {"$in": ["A", "B"]}})).takes(&document));
}

#[test]
fn normal_forms() {
    for (given, expected) in [
        (json!({}), json!({})),
        (json!({"a": 1}), json!({"a": {"$eq": 1}})),
        (json!({"a": {}}), json!({"a": {"$eq": {}}})),
        (
            json!({"b": 1, "a": {"c": 2, "d": {"$gt": 3}}}),
            json!({"$and": [
            {"b": {"$eq": 1}}, {"$and": [{"a.c": {"$eq": 2}}, {"a.d": {"$gt": 3}}]}]}),
        ),
        (json!({"a\\.b": 1}), json!({"a\\.b": {"$eq": 1}})),
        (
            json!({"$not": {"$and": [{"a": {"$gt": 1}}, {"b": {"$regex": "x"}}]}}),
            json!({"$or": [
            {"a": {"$lte": 1}}, {"b": {"$not": {"$regex": "x"}}}]}),
        ),
        (
            json!({"$nor": [{"a": {"$in": []}}, {"$not": {"b": {"$exists": true}}}]}),
            json!({"$and": [
            {"a": {"$nin": []}}, {"b": {"$exists": true}}]}),
        ),
        (
            json!({"a": {"$not": {"$nor": [{"$lt": 1}, {"$ne": 2}]}}}),
            json!({"$or": [{"a": {"$lt": 1}}, {"a": {"$ne": 2}}]}),
        ),
        (
            json!({"a": {"$elemMatch": {"$not": {"b": {"$lt": 1}}, "c": 1}}}),
            json!({"a": {"$elemMatch": {"$and": [
            {"$not": {"b": {"$lt": 1}}}, {"c": {"$eq": 1}}]}}}),
        ),
        (
            json!({"a": {"$not": {"$elemMatch": {"$gt": 1, "$lt": 3}}}}),
            json!({"a": {"$not": {"$elemMatch": {"$and": [
            {"": {"$gt": 1}}, {"": {"$lt": 3}}]}}}}),
        ),
        (
            json!({"$and": [{"$gt": 5}, 7]}),
            json!({"$and": [{"": {"$gt": 5}}, {"": {"$eq": 7}}]}),
        ),
    ] {
        assert_eq!(
            shown(selector(&given).normal()).to_string(),
            expected.to_string(),
            "{given}"
        );
    }
}

#[test]
fn refusals_in_couchdbs_words() {
    let table = r#"
        5                       invalid_selector_json  Selector must be a JSON object, not: 5
        {"a":{"$in":"b"}}       bad_arg                Bad argument for operator $in: <<98>>
        {"$and":{"a":1}}        bad_arg                Bad argument for operator $and: {[{<<97>>,1}]}
        {"$not":[null,1.5]}     bad_arg                Bad argument for operator $not: [null,1.5]
        {"a":{"$exists":0}}     bad_arg                Bad argument for operator $exists: 0
        {"a":{"$type":1}}       bad_arg                Bad argument for operator $type: 1
        {"a":{"$mod":[1.0,1]}}  bad_arg                Bad argument for operator $mod: [1.0,1]
        {"a":{"$mod":[0,1]}}    bad_arg                Bad argument for operator $mod: [0,1]
        {"a":{"$size":-1}}      bad_arg                Bad argument for operator $size: -1
        {"a":{"$size":2.0}}     bad_arg                Bad argument for operator $size: 2.0
        {"a":{"$regex":"("}}    bad_arg                Bad argument for operator $regex: <<40>>
        {"a":{"$elemMatch":[]}} bad_arg                Bad argument for operator $elemMatch: []
        {"a":{"$beginsWith":1}} invalid_operator       Invalid operator: $beginsWith
        {"a":{"$foo":1}}        invalid_operator       Invalid operator: $foo
        {"a":{"$where":"x"}}    not_supported          Unsupported operator: $where
        {"$text":"x"}           not_supported          Unsupported operator: $text
        {"$gt":1}               invalid_selector       One or more conditions is missing a field name.
        {"a..b":1}              invalid_field_name     Invalid field name: a..b
    "#;
    for line in table.trim().lines() {
        let (given, rest) = line.trim().split_once(' ').unwrap();
        let (name, reason) = rest.trim().split_once(' ').unwrap();
        let error = Selector::new(&Json::parse(given).unwrap()).unwrap_err();
        assert_eq!(
            (error.name(), error.to_string().as_str()),
            (name, reason.trim()),
            "{given}"
        );
    }
    assert_eq!(
        Selector::parse(r#"{"":1}"#).unwrap_err().to_string(),
        "Invalid field name: "
    );
    assert_eq!(Selector::parse("{").unwrap_err().name(), "bad_request");
}

#[test]
fn expensive_regular_expressions_are_errors() {
    let text = |length: usize| json!({"x": "a".repeat(length)});
    let judge = |pattern: &str, length: usize| {
        let selector = selector(&json!({"x": {"$regex": pattern}}));
        selector.matches(&text(length), &mut Budget::of_document())
    };
    // Each additional letter doubles the backtracking steps.
    assert_eq!(judge("^(?:(a+)\\1?)+b", 5), Ok(false));
    assert_eq!(judge("^(?:(a+)\\1?)+b", 5_000), Err(TooExpensive));
    assert_eq!(judge("(a)\\1", 100_000), Err(TooExpensive));
    // Without backtracking, the time is linear however the pattern is nested.
    assert_eq!(judge("^(a+)+$", 100_000), Ok(true));
    assert_eq!(judge("^(a|aa)+b$|^(a*)*c$", 100_000), Ok(false));
    assert_eq!(judge("\\w+@\\w+", 100_000), Ok(false));
}

#[test]
fn budgets_end() {
    let selector = selector(&json!({"x": {"$elemMatch": {"$in": (0..1_000).collect::<Vec<_>>()}}}));
    let document = json!({"x": vec![-1; 1_000]});
    let mut budget = Budget::of_document();
    let all = budget.left();
    assert_eq!(selector.matches(&document, &mut budget), Ok(false));
    let spent = all - budget.left();
    assert!((1_000_000..3_000_000).contains(&spent), "{spent}");
    let documents = (0..).take_while(|_| selector.matches(&document, &mut budget).is_ok());
    assert_eq!(documents.count() as u64, all / spent - 1);
    assert_eq!(budget.left(), 0);
    // A selector that fails on elements still reports that it costs too much.
    assert_eq!(selector.matches(&document, &mut budget), Err(TooExpensive));
}

#[test]
fn large_selectors_are_refused() {
    let refused = |selector: &Value| {
        let error = Selector::parse(&selector.to_string()).unwrap_err();
        assert!(matches!(error, Error::TooLarge), "{error}");
    };
    refused(&json!({"x": {"$regex": "(?:a{1000}){1000}"}}));
    refused(&json!({"x": {"$regex": "a".repeat(20_000)}}));
    let patterns: Vec<_> = (0..100)
        .map(|n| json!({"x": {"$regex": format!("a{n}")}}))
        .collect();
    refused(&json!({"$or": patterns}));
    // Each of the conditions gets the whole path.
    let fields: Value = (0..1_000).map(|n| (n.to_string(), json!(1))).collect();
    refused(&json!({"a".repeat(100_000): fields}));
    let ids: Vec<_> = (0..100_000).map(|n| n.to_string()).collect();
    assert!(Selector::parse(&json!({"_id": {"$in": ids}}).to_string()).is_ok());
}

#[test]
fn errors_repeat_the_beginning_of_an_argument() {
    for selector in [
        json!("a".repeat(1_000_000)),
        json!({"x": {"$in": "\u{e9}".repeat(1_000_000)}}),
        json!({"$or": {"x": vec![1; 100_000]}}),
        json!({"x": {"$regex": "(".repeat(10_000)}}),
    ] {
        let refused = Selector::parse(&selector.to_string()).unwrap_err();
        let text = refused.to_string();
        assert!(text.len() < 1200 && text.ends_with("..."), "{text}");
    }
}
