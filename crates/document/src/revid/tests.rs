use super::*;

fn named(parent: Option<&str>, deleted: bool, body: &str) -> String {
    let parent = parent.map(|rev| rev.parse().unwrap());
    new_rev(parent.as_ref(), deleted, body, []).to_string()
}

fn created(body: &str) -> String {
    named(None, false, body)
}

/// The best known revisions of all.
#[test]
fn the_empty_document() {
    let first = created("{}");
    assert_eq!(first, "1-967a00dff5e02add41819138abb3284d");
    assert_eq!(
        named(Some(&first), false, "{}"),
        "2-7051cbe5c8faecd085a3fa619e6e6337"
    );
    assert_eq!(
        named(Some(&first), true, "{}"),
        "2-eec205a9d413992850a6e32678485900"
    );
}

/// Bulk insertion, bulk update and a document with an array in CouchDB's manual.
#[test]
fn the_manual() {
    let created_then_updated = [
        (
            r#"{"servings": 4, "subtitle": "Delicious with freshly baked bread", "title": "FishStew"}"#,
            "1-6a466d5dfda05e613ba97bd737829d67",
            "2-2bff94179917f1dec7cd7f0209066fb8",
        ),
        (
            r#"{"servings": 8, "subtitle": "Hand-made dumplings make a great accompaniment", "title": "BeefStew"}"#,
            "1-e4602845fc4c99674f50b1d5a804fdfa",
            "2-9801936a42f06a16f16c30027980d96f",
        ),
    ];
    for (body, first, second) in created_then_updated {
        assert_eq!(created(body), first);
        assert_eq!(named(Some(first), false, body), second);
    }
    let spaghetti = r#"{
        "description": "An Italian-American dish that usually consists of spaghetti, tomato sauce and meatballs.",
        "ingredients": ["spaghetti", "tomato sauce", "meatballs"],
        "name": "Spaghetti with meatballs"
    }"#;
    assert_eq!(created(spaghetti), "1-917fa2381192822767f010b95b45325b");
}

/// Revisions that CouchDB's own integration tests expect.
#[test]
fn couchdbs_tests() {
    let first = created(r#"{"val":"r0"}"#);
    assert_eq!(first, "1-47f3268e7546965196b57572099f4372");
    let second = named(Some(&first), false, r#"{"val":"r1"}"#);
    assert_eq!(second, "2-1d8171ab3a91475cfece749291e6f897");
    let third = named(Some(&second), false, r#"{"val":"r2"}"#);
    assert_eq!(third, "3-3fb0a342d2ce092fdcc77856dbe8a2ef");
    assert_eq!(
        created(r#"{"partitioned_doc":true}"#),
        "1-43d86359741cb629c0953a2beb6e9d7a"
    );
    assert_eq!(created(r#"{"a":2}"#), "1-3975759ccff3842adf690a5c10caee42");
    assert_eq!(created(r#"{"a":1}"#), "1-23202479633c2b380f79507a776743d5");
}

/// Revisions made by CouchDB 3.5.2.
#[test]
fn couchdb_3_5() {
    let every_kind = r#"{"n":[1,2,3],"f":1.0,"e":1e2,"big":123456789012345678901234567890,"neg":-5,"s":"é\u00e9\n",
        "o":{"a":null,"b":[true,false,[]],"c":{}},"z":-0,"nz":-0.0,"u":2147483648, "l":[300,1], "d":0.1}"#;
    assert_eq!(created(every_kind), "1-6d65697e0acaf3aae5b2a18eb62ddff9");
    assert_eq!(
        created(r#"{"a":1,"b":2,"a":3}"#),
        "1-cf8195ee4268460f49235c8e98d42c6f"
    );
    let tombstone = named(None, true, r#"{"k":1}"#);
    assert_eq!(tombstone, "1-2472626437787ea8a39fdd4f22e938b2");
    assert_eq!(
        named(Some(&tombstone), false, r#"{"a":1}"#),
        "2-2bbbc19d680523d6d4ff456334e8a19a"
    );
    assert_eq!(
        named(Some("1-abc"), false, r#"{"a":1}"#),
        "2-662a61caf479e571df4eb8cf54542802"
    );
    let eels = Attachment {
        name: "file.txt",
        content_type: "application/octet-stream",
        md5: Md5::digest("My hovercraft is full of eels!").into(),
    };
    assert_eq!(
        new_rev(None, false, "{}", [eels]).to_string(),
        "1-f46b1869202d04376d7016b284816667"
    );
}

#[test]
fn attachments_count_last_first() {
    let first = Attachment {
        name: "a",
        content_type: "text/plain",
        md5: [7; 16],
    };
    let second = Attachment {
        name: "b",
        content_type: "",
        md5: [9; 16],
    };
    let parent: Rev = "300-x".parse().unwrap();
    let expected: [&[u8]; 12] = [
        b"\x83l\0\0\0\x05d\0\x04trueb\0\0\x01\x2cm\0\0\0\x01xh\x01j",
        b"l\0\0\0\x02",
        b"h\x03m\0\0\0\x01b",
        b"m\0\0\0\0",
        b"m\0\0\0\x10",
        &[9; 16],
        b"h\x03m\0\0\0\x01a",
        b"m\0\0\0\x0atext/plain",
        b"m\0\0\0\x10",
        &[7; 16],
        b"j",
        b"j",
    ];
    assert_eq!(
        term(Some(&parent), true, "{}", [first, second]),
        expected.concat()
    );
    assert_eq!(
        new_rev(Some(&parent), true, "{}", [first, second]).generation,
        301
    );
}

#[test]
fn every_part_counts() {
    let base = named(Some("1-a"), false, r#"{"a":1}"#);
    for other in [
        named(Some("1-b"), false, r#"{"a":1}"#),
        named(Some("2-a"), false, r#"{"a":1}"#),
        named(Some("1-a"), true, r#"{"a":1}"#),
        named(Some("1-a"), false, r#"{"a":1.0}"#),
        named(None, false, r#"{"a":1}"#),
    ] {
        assert_ne!(
            other.split_once('-').unwrap().1,
            base.split_once('-').unwrap().1
        );
    }
}
