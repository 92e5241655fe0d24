//! Attachments within documents.

use docstore::{
    Attachments, Content, Document, Edit, EditMode, Error, NewAttachment, NoHook, ReadOptions, Rev,
};
use document::doc::Doc;

use super::support::{Fixture, edit, replicated, rev};

const HI: &str =
    r#"{"_attachments":{"a.txt":{"content_type":"text/plain","data":"aGk="},"b":{"data":"AAEC"}}}"#;

async fn read(fixture: &Fixture, attachments: Attachments) -> Document {
    let options = ReadOptions {
        attachments,
        ..ReadOptions::default()
    };
    let get = fixture.docstore.get(&fixture.db, "x", &options);
    get.await.unwrap()
}

fn bytes(document: &Document) -> Vec<Option<&[u8]>> {
    let attachments = document.attachments.iter();
    attachments
        .map(|attachment| attachment.data.as_deref())
        .collect()
}

pub(crate) async fn attachments_come_back(fixture: Fixture) {
    let first = fixture.put("x", None, HI).await.unwrap();
    let stubs = read(&fixture, Attachments::Stubs).await;
    assert_eq!(
        stubs.to_json(),
        format!(
            concat!(
                r#"{{"_id":"x","_rev":"{}","_attachments":{{"#,
                r#""a.txt":{{"content_type":"text/plain","revpos":1,"digest":"md5-SfaKXIST7CwL9ImCHCH8Ow==","length":2,"stub":true}},"#,
                r#""b":{{"content_type":"application/octet-stream","revpos":1,"digest":"md5-uV9n9h67A2GWIteY9F/C0w==","length":3,"stub":true}}}}}}"#
            ),
            first
        )
    );
    let all = read(&fixture, Attachments::All).await;
    assert_eq!(bytes(&all), [Some(&b"hi"[..]), Some(&[0, 1, 2])]);
    let one = read(&fixture, Attachments::Named("b".to_owned())).await;
    assert_eq!(bytes(&one), [None, Some(&[0, 1, 2][..])]);
    // What one replica tells, another takes.
    let edit = Edit::new("y", Doc::parse(&all.to_json()).unwrap()).unwrap();
    let copy = fixture
        .docstore
        .put(&fixture.db, &edit, EditMode::Replicated, &NoHook);
    assert_eq!(copy.await.unwrap(), first);
    fixture.check().await;
}

/// The limit is that of a document, however many writes add its attachments.
pub(crate) async fn stubs_count_towards_the_limit(fixture: Fixture) {
    let attach = |name: &str, bytes: usize| NewAttachment {
        name: name.to_owned(),
        revpos: None,
        content: Some(Content {
            content_type: "text/plain".to_owned(),
            data: vec![b'x'; bytes].into(),
        }),
    };
    let stub = |name: &str| NewAttachment {
        content: None,
        ..attach(name, 0)
    };
    let put = async |rev: Option<&Rev>, attachments| {
        let edit = Edit {
            attachments,
            ..edit("x", rev, "{}")
        };
        let mode = EditMode::NewEdits;
        (fixture.docstore)
            .put(&fixture.db, &edit, mode, &NoHook)
            .await
    };
    let first = put(None, vec![attach("a", 5_000_000)]).await.unwrap();
    let large = vec![stub("a"), attach("b", 3_000_001)];
    let refused = put(Some(&first), large).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    let fits = vec![stub("a"), attach("b", 3_000_000)];
    let second = put(Some(&first), fits).await.unwrap();
    let both = vec![stub("a"), stub("b")];
    put(Some(&second), both).await.unwrap();
    fixture.check().await;
}

pub(crate) async fn stubs_stand_for_what_is_there(fixture: Fixture) {
    let first = fixture.put("x", None, HI).await.unwrap();
    let kept = r#"{"n":2,"_attachments":{"b":{"stub":true,"revpos":1},"c":{"data":""}}}"#;
    let second = fixture.put("x", Some(&first), kept).await.unwrap();
    let all = read(&fixture, Attachments::All).await;
    assert_eq!(bytes(&all), [Some(&[0, 1, 2][..]), Some(&[])]);
    let positions: Vec<_> = all.attachments.iter().map(|att| att.revpos).collect();
    assert_eq!(positions, [1, 2]);
    for stub in [
        r#"{"_attachments":{"a.txt":{"stub":true}}}"#,
        r#"{"_attachments":{"b":{"stub":true,"revpos":2}}}"#,
    ] {
        let refused = fixture.put("x", Some(&second), stub).await;
        assert!(matches!(refused, Err(Error::MissingStub { .. })), "{stub}");
        let refused = fixture.put("new", None, stub).await;
        assert!(matches!(refused, Err(Error::MissingStub { .. })), "{stub}");
    }
    // A replicator sends stubs for what its target has of an ancestor.
    let third = "3-967a00dff5e02add41819138abb3284d";
    let history = [third, &second.to_string(), &first.to_string()];
    fixture
        .replicate(
            "x",
            &history,
            kept.replace("data\":\"", "data\":\"aGk=").as_str(),
        )
        .await;
    let all = read(&fixture, Attachments::All).await;
    assert_eq!(all.rev, rev(third));
    assert_eq!(bytes(&all), [Some(&[0, 1, 2][..]), Some(b"hi")]);
    fixture.check().await;
}

pub(crate) async fn attachments_go_with_their_revisions(fixture: Fixture) {
    let plain = fixture.put("x", None, r#"{"n":1}"#).await.unwrap();
    let rows = fixture.rows().await;
    let with = fixture.put("x", Some(&plain), HI).await.unwrap();
    assert_eq!(fixture.rows().await, rows + 2);
    let kept = r#"{"_attachments":{"a.txt":{"stub":true}}}"#;
    let kept = fixture.put("x", Some(&with), kept).await.unwrap();
    assert_eq!(fixture.rows().await, rows + 1);
    fixture.check().await;
    fixture.put("x", Some(&kept), r#"{"n":4}"#).await.unwrap();
    assert_eq!(fixture.rows().await, rows);
    fixture.check().await;
}

pub(crate) async fn newer_attachments_can_be_asked_for(fixture: Fixture) {
    let first = fixture.put("x", None, HI).await.unwrap();
    let more = r#"{"_attachments":{"b":{"stub":true},"c":{"data":"aGk="}}}"#;
    let second = fixture.put("x", Some(&first), more).await.unwrap();
    let since = async |revs: &[&Rev]| {
        let revs = revs.iter().map(|rev| (*rev).clone()).collect();
        let document = read(&fixture, Attachments::Since(revs)).await;
        let attachments = document.attachments.iter();
        attachments
            .map(|att| att.data.is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(since(&[&first]).await, [false, true]);
    assert_eq!(since(&[&first, &second]).await, [false, false]);
    assert_eq!(since(&[&rev("1-x")]).await, [true, true]);
}

pub(crate) async fn what_is_no_attachment_is_refused(fixture: Fixture) {
    for (attachment, expected) in [
        (r#"{"follows":true,"length":3}"#, Error::Follows.to_string()),
        (
            r#"{"data":"?"}"#,
            "Invalid attachment data for n".to_owned(),
        ),
        (r#"{"data":7}"#, "Invalid attachment data for n".to_owned()),
        ("{}", "Invalid attachment data for n".to_owned()),
        ("7", "Invalid attachment data for n".to_owned()),
    ] {
        let text = format!(r#"{{"_attachments":{{"n":{attachment}}}}}"#);
        let refused = Edit::new("x", Doc::parse(&text).unwrap()).unwrap_err();
        assert_eq!(refused.to_string(), expected, "{attachment}");
    }
    let reserved = fixture
        .put("x", None, r#"{"_attachments":{"_n":{"data":""}}}"#)
        .await;
    let reserved = reserved.unwrap_err().to_string();
    assert_eq!(
        reserved,
        "Attachment name '_n' starts with prohibited character '_'"
    );
    let large = "A".repeat(11_000_000);
    for large in [
        edit(
            "x",
            None,
            &format!(r#"{{"_attachments":{{"n":{{"data":"{large}"}}}}}}"#),
        ),
        replicated(
            "x",
            &["1-x"],
            &format!(
                r#"{{"a":"{}","_attachments":{{"n":{{"data":"{}"}}}}}}"#,
                &large[..5_000_000],
                &large[..8_000_000]
            ),
        ),
    ] {
        let refused = fixture
            .docstore
            .put(&fixture.db, &large, EditMode::NewEdits, &NoHook)
            .await;
        assert!(matches!(refused, Err(Error::TooLarge { .. })));
    }
}
