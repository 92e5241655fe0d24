use super::*;

fn parse(text: &str) -> Doc<'_> {
    Doc::parse(text).unwrap()
}

fn refused(text: &str) -> (&'static str, String) {
    let invalid = Doc::parse(text).unwrap_err();
    (invalid.name(), invalid.to_string())
}

#[test]
fn the_clients_members_stay_as_they_are() {
    let text = r#" { "b" : 1.0 , "_id":"x", "a" : [ 1 , "two  \" \\" , { "n" : 123456789012345678901234567890 } ], "b":1e400,
        "\u0061" : null, "q\"" : "\u00e9\ud800" } "#;
    let doc = parse(text);
    assert_eq!(
        doc.body,
        r#"{"b":1.0,"a":[1,"two  \" \\",{"n":123456789012345678901234567890}],"b":1e400,"a":null,"q\"":"\u00e9\ud800"}"#
    );
    assert_eq!(doc.id.as_deref(), Some("x"));
    assert_eq!(parse("{}").body, "{}");
    assert_eq!(parse(r#"{"_id":"x"}"#).body, "{}");
}

#[test]
fn couchdbs_members_are_taken_out() {
    let doc = parse(
        r#"{"_deleted":true,"_rev":"9-z","_revisions":{"start":2,"ids":["b","a"]},"_conflicts":["1-x"],"_revs_info":[],
            "_local_seq":7,"_deleted_conflicts":[],"_attachments":{"b":{"stub":true},"a":{ "data":"" }},"_replication_state":"failed"}"#,
    );
    assert!(doc.deleted);
    assert_eq!(
        doc.rev().unwrap().to_string(),
        "2-b",
        "_revisions counts, wherever _rev stands"
    );
    assert_eq!(doc.revisions.unwrap().ids.len(), 2);
    assert_eq!(
        doc.attachments,
        [
            ("b".to_owned(), r#"{"stub":true}"#),
            ("a".to_owned(), r#"{ "data":"" }"#)
        ]
    );
    assert_eq!(doc.body, r#"{"_replication_state":"failed"}"#);
    assert_eq!(parse(r#"{"_rev":"1-a"}"#).rev().unwrap().to_string(), "1-a");
    assert_eq!(parse(r#"{"a":1}"#).rev(), None);
    assert!(!parse(r#"{"_deleted":false}"#).deleted);
}

fn check_refusals(refusals: &[(&str, &str, &str)]) {
    for (text, error, reason) in refusals {
        assert_eq!(refused(text), (*error, (*reason).to_owned()), "{text}");
    }
}

#[test]
fn what_is_no_document_is_refused_in_couchdbs_words() {
    check_refusals(&[
        ("[]", "bad_request", "Document must be a JSON object"),
        ("1", "bad_request", "Document must be a JSON object"),
        ("", "bad_request", "invalid UTF-8 JSON"),
        ("{", "bad_request", "invalid UTF-8 JSON"),
        (r#"{"a":1,}"#, "bad_request", "invalid UTF-8 JSON"),
        (
            r#"{"_foo":1}"#,
            "doc_validation",
            "Bad special document member: _foo",
        ),
        (
            r#"{"_deleted":"true"}"#,
            "doc_validation",
            "Bad special document member: _deleted",
        ),
        (
            r#"{"_attachments":[]}"#,
            "doc_validation",
            "Bad special document member: _attachments",
        ),
        (
            r#"{"_revisions":[]}"#,
            "doc_validation",
            "Bad special document member: _revisions",
        ),
    ]);
}

#[test]
fn bad_ids_and_revisions_are_refused_in_couchdbs_words() {
    check_refusals(&[
        (
            r#"{"_id":7}"#,
            "illegal_docid",
            "Document id must be a string",
        ),
        (
            r#"{"_id":""}"#,
            "illegal_docid",
            "Document id must not be empty",
        ),
        (
            r#"{"_id":"_x"}"#,
            "illegal_docid",
            "Only reserved document ids may start with underscore.",
        ),
        (
            r#"{"_id":"_design/"}"#,
            "illegal_docid",
            "Illegal document id `_design/`",
        ),
        (
            r#"{"_id":"_local/"}"#,
            "illegal_docid",
            "Illegal document id `_local/`",
        ),
        (r#"{"_rev":"x"}"#, "bad_request", "Invalid rev format"),
        (r#"{"_rev":1}"#, "bad_request", "Invalid rev format"),
        (
            r#"{"_revisions":{"start":"1","ids":[]}}"#,
            "doc_validation",
            "_revisions.start isn't an integer.",
        ),
        (
            r#"{"_revisions":{"start":1}}"#,
            "doc_validation",
            "_revisions.ids isn't a array.",
        ),
        (
            r#"{"_revisions":{"start":1,"ids":[1]}}"#,
            "doc_validation",
            "RevId isn't a string",
        ),
        (
            r#"{"_revisions":{"start":1,"ids":["g67a00dff5e02add41819138abb3284d"]}}"#,
            "doc_validation",
            "RevId isn't a valid hexadecimal",
        ),
    ]);
}

#[test]
fn ids_have_a_limit_and_reserved_names() {
    assert_eq!(check_id("abcde", Some(5)), Ok(()));
    assert_eq!(
        check_id("abcdef", Some(5)),
        Err(Invalid::Id("Document id is too long"))
    );
    for id in ["_design/x", "_local/x", "a_b", "é\u{0}"] {
        assert_eq!(check_id(id, None), Ok(()));
    }
}
