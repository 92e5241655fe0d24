use super::*;

fn json(text: &str) -> Vec<u8> {
    let mut term = Encoder::new();
    term.json(text);
    term.finish()
}

/// The output of Erlang's `term_to_binary(jiffy:decode(Text, [dedupe_keys]), [{minor_version, 1}])`, written by hand
/// from the description of the format.
#[test]
fn scalars() {
    assert_eq!(json("null"), b"\x83d\0\x04null");
    assert_eq!(json(" true "), b"\x83d\0\x04true");
    assert_eq!(json("false"), b"\x83d\0\x05false");
    assert_eq!(json(r#""abc""#), b"\x83m\0\0\0\x03abc");
    assert_eq!(json(r#""\u00e9\n\"\\""#), b"\x83m\0\0\0\x05\xc3\xa9\n\"\\");
    assert_eq!(json(r#""""#), b"\x83m\0\0\0\0");
}

#[test]
fn integers_take_the_shortest_form() {
    assert_eq!(json("0"), b"\x83a\0");
    assert_eq!(json("-0"), b"\x83a\0");
    assert_eq!(json("255"), b"\x83a\xff");
    assert_eq!(json("256"), b"\x83b\0\0\x01\0");
    assert_eq!(json("-1"), b"\x83b\xff\xff\xff\xff");
    assert_eq!(json("2147483647"), b"\x83b\x7f\xff\xff\xff");
    assert_eq!(json("-2147483648"), b"\x83b\x80\0\0\0");
    assert_eq!(json("2147483648"), b"\x83n\x04\0\0\0\0\x80");
    assert_eq!(json("-2147483649"), b"\x83n\x04\x01\x01\0\0\x80");
    assert_eq!(json("4294967296"), b"\x83n\x05\0\0\0\0\0\x01");
    let two_to_the_128 = "340282366920938463463374607431768211456";
    assert_eq!(
        json(two_to_the_128),
        [&b"\x83n\x11\0"[..], &[0; 16], &[1]].concat()
    );
    assert_eq!(
        json(&format!("-{two_to_the_128}")),
        [&b"\x83n\x11\x01"[..], &[0; 16], &[1]].concat()
    );
}

#[test]
fn integers_of_more_than_255_bytes_have_a_longer_length() {
    // 10^616 > 2^2040 = 256^255 > 10^614
    assert_eq!(json(&format!("1{}", "0".repeat(614)))[..3], *b"\x83n\xff");
    assert_eq!(
        json(&format!("1{}", "0".repeat(616)))[..6],
        *b"\x83o\0\0\x01\0"
    );
    assert_eq!(
        json(&"9".repeat(20_000))[1],
        BINARY,
        "never quadratic for megabytes"
    );
}

#[test]
fn floats_are_whatever_has_a_fraction_or_an_exponent() {
    assert_eq!(json("1.0"), b"\x83F\x3f\xf0\0\0\0\0\0\0");
    assert_eq!(json("1e0"), json("1.0"));
    assert_eq!(json("1E+0"), json("1.0"));
    assert_eq!(json("-0.0"), b"\x83F\x80\0\0\0\0\0\0\0");
    assert_eq!(json("0.1"), b"\x83F\x3f\xb9\x99\x99\x99\x99\x99\x9a");
}

#[test]
fn lists_of_bytes_are_strings() {
    assert_eq!(json("[]"), b"\x83j");
    assert_eq!(json("[1, 2,255]"), b"\x83k\0\x03\x01\x02\xff");
    assert_eq!(json("[1,256]"), b"\x83l\0\0\0\x02a\x01b\0\0\x01\0j");
    assert_eq!(json("[-0,1]"), b"\x83k\0\x02\0\x01");
    assert_eq!(json("[1,-1]"), b"\x83l\0\0\0\x02a\x01b\xff\xff\xff\xffj");
    assert_eq!(json("[97,[]]"), b"\x83l\0\0\0\x02a\x61jj");
    assert_eq!(json("[[]]"), b"\x83l\0\0\0\x01jj");
    assert_eq!(json("[[1],2]"), b"\x83l\0\0\0\x02k\0\x01\x01a\x02j");
    assert_eq!(json("[null]"), b"\x83l\0\0\0\x01d\0\x04nullj");
    let ones = |count: usize| json(&format!("[{}]", vec!["1"; count].join(",")));
    assert_eq!(ones(65_535)[..4], *b"\x83k\xff\xff");
    assert_eq!(ones(65_536)[..7], *b"\x83l\0\x01\0\0a");
}

#[test]
fn objects_are_lists_of_pairs_in_order() {
    assert_eq!(json("{}"), b"\x83h\x01j");
    assert_eq!(
        json(r#"{"b": 1, "a": {"c": []}}"#),
        b"\x83h\x01l\0\0\0\x02h\x02m\0\0\0\x01ba\x01h\x02m\0\0\0\x01ah\x01l\0\0\0\x01h\x02m\0\0\0\x01cjjj"
    );
    assert_eq!(
        json(r#"{"a":"b"}"#),
        b"\x83h\x01l\0\0\0\x01h\x02m\0\0\0\x01am\0\0\0\x01bj"
    );
    assert_eq!(
        json(r#"[{"a":1},2]"#),
        b"\x83l\0\0\0\x02h\x01l\0\0\0\x01h\x02m\0\0\0\x01aa\x01ja\x02j"
    );
}

#[test]
fn of_repeated_names_the_last_member_stays_where_it_is() {
    assert_eq!(
        json(r#"{"a":1,"b":2,"\u0061":3}"#),
        json(r#"{"b":2,"a":3}"#)
    );
    assert_eq!(
        json(r#"{"a":{"x":1,"x":2},"a":[{"y":1,"y":1}]}"#),
        json(r#"{"a":[{"y":1}]}"#)
    );
    let many: Vec<String> = (0..40)
        .map(|number| format!(r#""k{}":{number}"#, number % 20))
        .collect();
    assert_eq!(
        json(&format!("{{{}}}", many.join(","))),
        json(&format!("{{{}}}", many[20..].join(",")))
    );
}

#[test]
fn what_is_no_json_does_not_panic() {
    for text in [
        "{", "}", "[", "\"", "{\"", "{1:2}", "[é", "12x", "{]", "\"\\é", "tru", "-", "[1}", "",
    ] {
        json(text);
    }
    json(&format!("{}x", "1".repeat(60)));
    let deep = 100_000;
    json(&format!("{}{}", "[".repeat(deep), "]".repeat(deep)));
}
