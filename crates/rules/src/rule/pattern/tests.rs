use document::mango::Budget;

use super::Pattern;

fn matches(pattern: &str, text: &str) -> bool {
    let pattern = Pattern::parse(pattern).unwrap();
    pattern.is_match(text, &mut Budget::of_document()).unwrap()
}

/// What Node.js 20 answers to `new RegExp(pattern).test(text)`.
#[test]
fn patterns_match_as_in_javascript() {
    for (pattern, text, expected) in [
        ("foo", "a foo b", true),
        ("^foo$", "foo\n", false),
        ("^foo$", "foo", true),
        (r"\d", "٣", false),
        (r"\w", "é", false),
        (r"^\W$", "é", true),
        (r"\s", "\u{feff}", true),
        (r"\s", "\u{85}", false),
        (r"^\S$", "\u{85}", true),
        (r"^.$", "\r", false),
        (r"^.$", "\u{2028}", false),
        (r"^.$", "\u{85}", true),
        (r"\bé", "é", false),
        (r"e\b", "eé", true),
        (r"a\Bé", "aé", false),
        (r"é\Bé", "éé", true),
        (r"(?=a)\bé|\bab", "ab", true),
        ("[^]", "\n", true),
        ("[]", "a", false),
        ("a[]", "a", false),
        ("[]|a", "a", true),
        ("^[^a]$", "\n", true),
        (r"^[\w-]+$", "a-b", true),
        (r"^[\w-.]+$", "a-.b", true),
        (r"^[a-c-e]+$", "abc-e", true),
        (r"^[[]$", "[", true),
        (r"^[a&&b]+$", "&", true),
        (r"^[\d\-x]+$", "1-x", true),
        (r"^[\b]$", "\u{8}", true),
        (r"^[\B]$", "B", true),
        (r"a\/b", "a/b", true),
        (r"^\cA$", "\u{1}", true),
        (r"^\c$", r"\c", true),
        (r"^\x41\u0042$", "AB", true),
        (r"^\x4$", "x4", true),
        (r"^\u004$", "u004", true),
        (r"^\ud83d\ude00$", "😀", true),
        (r"^\0$", "\0", true),
        (r"^\101$", "A", true),
        (r"^\8$", "8", true),
        (r"^\k$", "k", true),
        (r"^\a\e\z\Z\A\G$", "aezZAG", true),
        (r"^\<\>\h$", "<>h", true),
        (r"^a{,2}$", "a{,2}", true),
        (r"^a{2}$", "aa", true),
        (r"^a{x}]}$", "a{x}]}", true),
        (r"^{$", "{", true),
        (r"^x{2,}?$", "xxx", true),
        (r"(a)|b\1$", "b", true),
        (r"^(a)?b\1c$", "bc", true),
        (r"^(a)\1$", "aa", true),
        (r"^\1(a)$", "a", true),
        (r"^(?<x>.)\k<x>$", "aa", true),
        (r"^(?<x>.)\k<x>$", "ab", false),
        (r"^(?<$é>a)\k<$é>$", "aa", true),
        (r"(?<=a)b", "ab", true),
        (r"(?<!a)b", "ab", false),
        (r"^(?!_)", "_x", false),
        (r"^user_(?!admin)", "user_joe", true),
        (r"", "x", true),
        (r"^$", "", true),
        (r"^(a|ab)(c|bcd)$", "abcd", true),
        (r"^\ue000-[^\ue000]$", "\u{e000}-a", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} on {text:?}");
    }
}

#[test]
fn what_cannot_be_expressed_is_refused_with_its_place() {
    for (pattern, at, says) in [
        ("a(b", Some(1), "not closed"),
        ("a)b", Some(1), "no group is open"),
        ("[ab", Some(0), "not closed"),
        ("[b-a]", Some(1), "out of order"),
        ("a{3,2}", Some(1), "out of order"),
        ("*a", Some(0), "nothing to repeat"),
        ("a++", Some(2), "nothing to repeat"),
        ("^*", Some(1), "nothing to repeat"),
        ("(|?)", Some(2), "nothing to repeat"),
        ("(?i)a", Some(0), "[aA]"),
        ("é(?>a)", Some(1), "JavaScript has no such group"),
        ("(?P<x>a)", Some(0), "JavaScript has no such group"),
        ("(?<1>a)", Some(3), "does not start with a digit"),
        ("(?<x", Some(3), "ends with `>`"),
        ("(?<x>a)(?<x>b)", Some(7), "rename one"),
        (r"(?<x>a)\k<y>", Some(7), "no group of this name"),
        (r"a\u{61}", Some(1), "flag u"),
        (r"\p{L}", Some(0), "flag u"),
        (r"\ud83d", Some(0), "surrogate"),
        (r"a\", Some(1), "escapes nothing"),
        (r"(?:a{1000}){1000}", None, "too large"),
    ] {
        let refused = Pattern::parse(pattern).unwrap_err();
        assert_eq!(refused.at, at, "{pattern}: {refused}");
        assert!(refused.to_string().contains(says), "{pattern}: {refused}");
    }
    let refused = Pattern::parse("é(?>a)").unwrap_err().to_string();
    assert!(refused.contains("at character 2:"), "{refused}");
}

#[test]
fn named_groups_are_captured() {
    let find = |pattern: &str, text: &str| {
        let pattern = Pattern::parse(pattern).unwrap();
        let found = pattern.captures(text, &mut Budget::of_document()).unwrap();
        found
            .map(|found| {
                found
                    .into_iter()
                    .map(|(name, text)| format!("{name}={text}"))
            })
            .map(|found| found.collect::<Vec<_>>().join(","))
    };
    assert_eq!(find("^user_(?<name>.*)$", "user_joe").unwrap(), "name=joe");
    assert_eq!(find("^(x)?(?<a>.)(?:(?<b>!)|)$", "xy").unwrap(), "a=y,b=");
    assert_eq!(find("(?<=_)(?<a>.)", "x_y").unwrap(), "a=y");
    assert_eq!(find("^(?<a>.)$", "xy"), None);
    assert_eq!(find("^x$", "x").unwrap(), "");
}

#[test]
fn literal_beginnings_are_known() {
    for (pattern, prefix, exact) in [
        ("^test_db1$", "test_db1", Some("test_db1")),
        (r"^a\.b\x2f$", "a.b/", Some("a.b/")),
        ("^$", "", Some("")),
        ("^user_(.*)$", "user_", None),
        ("^ab*", "a", None),
        ("^ab{2}$", "a", None),
        ("^ab?$", "a", None),
        ("^ab|c", "", None),
        ("^ab$|c", "", None),
        ("c|^ab$", "", None),
        ("^ab$c", "ab", None),
        ("^a^b", "a", None),
        ("^ab.$", "ab", None),
        (r"^ab\b", "ab", None),
        ("foo", "", None),
        ("(^foo)$", "", None),
    ] {
        let parsed = Pattern::parse(pattern).unwrap();
        assert_eq!(
            (parsed.prefix(), parsed.exact()),
            (prefix, exact),
            "{pattern}"
        );
    }
}
