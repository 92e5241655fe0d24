//! Single documents: edits, revisions, history.

use docstore::{
    ChangesQuery, Edit, EditMode, Error, NoHook, OpenRevs, ReadOptions, Rev, WriteHook,
};
use document::doc::Invalid;
use store::Transaction;

use super::support::{Fixture, edit, replicated, rev};

/// The vectors were read from CouchDB 3.
pub(crate) async fn revisions_are_named_as_couchdb_names_them(fixture: Fixture) {
    let first = fixture.put("a", None, "{}").await.unwrap();
    assert_eq!(first, rev("1-967a00dff5e02add41819138abb3284d"));
    let deleted = fixture.delete("a", &first).await.unwrap();
    assert_eq!(deleted, rev("2-eec205a9d413992850a6e32678485900"));
    let other = fixture.put("b", None, r#"{"a": 1}"#).await.unwrap();
    assert_eq!(other, rev("1-23202479633c2b380f79507a776743d5"));
}

pub(crate) async fn an_edit_needs_the_revision(fixture: Fixture) {
    let first = fixture.put("a", None, r#"{"n":1}"#).await.unwrap();
    let again = fixture.put("a", None, r#"{"n":1}"#).await;
    assert!(matches!(again, Err(Error::Conflict)));
    let second = fixture.put("a", Some(&first), r#"{"n":2}"#).await.unwrap();
    for stale in [
        &first,
        &rev("2-x"),
        &rev("9-967a00dff5e02add41819138abb3284d"),
    ] {
        let refused = fixture.put("a", Some(stale), r#"{"n":3}"#).await;
        assert!(matches!(refused, Err(Error::Conflict)), "{stale}");
        let refused = fixture.delete("a", stale).await;
        assert!(matches!(refused, Err(Error::Conflict)), "{stale}");
    }
    let refused = fixture
        .docstore
        .delete(&fixture.db, "a", None, &NoHook)
        .await;
    assert!(matches!(refused, Err(Error::Conflict)));
    let refused = fixture.put("new", Some(&first), "{}").await;
    assert!(matches!(refused, Err(Error::Conflict)));
    let read = fixture.get("a").await.unwrap();
    assert_eq!(
        read.to_json(),
        format!(r#"{{"_id":"a","_rev":"{second}","n":2}}"#)
    );
    fixture.check().await;
}

pub(crate) async fn a_deletion_hides_the_document(fixture: Fixture) {
    let docstore = &fixture.docstore;
    assert!(matches!(fixture.get("a").await, Err(Error::Missing)));
    let missing = docstore.delete(&fixture.db, "a", None, &NoHook).await;
    assert!(matches!(missing, Err(Error::Missing)));
    let first = fixture.put("a", None, "{}").await.unwrap();
    let deleted = fixture.delete("a", &first).await.unwrap();
    assert!(matches!(fixture.get("a").await, Err(Error::Deleted)));
    assert!(matches!(
        fixture.delete("a", &deleted).await,
        Err(Error::Deleted)
    ));
    let options = ReadOptions::default();
    let tombstone = docstore
        .get_rev(&fixture.db, "a", &deleted, false, &options)
        .await
        .unwrap();
    assert_eq!(
        tombstone.to_json(),
        format!(r#"{{"_id":"a","_rev":"{deleted}","_deleted":true}}"#)
    );
    // A deletion may say why.
    let first = fixture.put("b", None, "{}").await.unwrap();
    let why = fixture
        .put("b", Some(&first), r#"{"_deleted":true,"why":1}"#)
        .await
        .unwrap();
    let tombstone = docstore
        .get_rev(&fixture.db, "b", &why, false, &options)
        .await
        .unwrap();
    assert!(tombstone.deleted);
    assert_eq!(tombstone.body, r#"{"why":1}"#);
    fixture.check().await;
}

pub(crate) async fn a_deleted_document_can_be_made_again(fixture: Fixture) {
    let first = fixture.put("a", None, "{}").await.unwrap();
    fixture.delete("a", &first).await.unwrap();
    let third = fixture.put("a", None, "{}").await.unwrap();
    assert_eq!(third.generation, 3);
    assert_eq!(fixture.get("a").await.unwrap().rev, third);
    fixture.check().await;
}

pub(crate) async fn only_leaves_have_bodies(fixture: Fixture) {
    let first = fixture.put("a", None, r#"{"n":1}"#).await.unwrap();
    let rows = fixture.rows().await;
    let second = fixture.put("a", Some(&first), r#"{"n":2}"#).await.unwrap();
    assert_eq!(fixture.rows().await, rows, "an edit leaves no rows behind");
    let options = ReadOptions::default();
    let read = async |rev: &Rev, latest| {
        let read = fixture
            .docstore
            .get_rev(&fixture.db, "a", rev, latest, &options);
        read.await.map(|document| document.rev)
    };
    assert!(matches!(read(&first, false).await, Err(Error::Missing)));
    assert_eq!(read(&first, true).await.unwrap(), second);
    assert_eq!(read(&second, false).await.unwrap(), second);
    assert!(matches!(read(&rev("5-x"), true).await, Err(Error::Missing)));
}

pub(crate) async fn bad_documents_are_refused(fixture: Fixture) {
    let long = "x".repeat(901);
    let nul = "\0".repeat(451);
    for id in ["", "_x", "_design/", "_local/", &long, &nul] {
        let refused = fixture.put(id, None, "{}").await;
        let is_id = matches!(refused, Err(Error::Invalid(Invalid::Id(_))));
        assert!(is_id, "{id:?}: {refused:?}");
    }
    for id in ["x".repeat(900), "\0".repeat(450), "é".repeat(450)] {
        let rev = fixture.put(&id, None, "{}").await.unwrap();
        assert_eq!(fixture.get(&id).await.unwrap().rev, rev);
        fixture.delete(&id, &rev).await.unwrap();
    }
    for text in [
        &format!("1-{}", "x".repeat(1001)),
        "18446744073709551615-x",
        "0-1",
    ] {
        let edit = replicated("a", &[text], "{}");
        let mode = EditMode::Replicated;
        let refused = fixture
            .docstore
            .put(&fixture.db, &edit, mode, &NoHook)
            .await;
        assert!(
            matches!(refused, Err(Error::Invalid(Invalid::Request(_)))),
            "{text}"
        );
    }
    let unnamed = edit("a", None, "{}");
    let mode = EditMode::Replicated;
    let refused = fixture
        .docstore
        .put(&fixture.db, &unnamed, mode, &NoHook)
        .await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "When `new_edits: false`, the document needs `_rev` or `_revisions` specified"
    );
    assert!(matches!(fixture.get(&long).await, Err(Error::Missing)));
    fixture.check().await;
}

pub(crate) async fn history_is_told(fixture: Fixture) {
    fixture
        .replicate("a", &["3-c", "2-b", "1-a"], r#"{"x":"c"}"#)
        .await;
    fixture
        .replicate("a", &["3-d", "2-b", "1-a"], r#"{"x":"d"}"#)
        .await;
    fixture
        .replicate("a", &["2-e", "1-a"], r#"{"_deleted":true}"#)
        .await;
    let everything = ReadOptions {
        revs: true,
        revs_info: true,
        conflicts: true,
        deleted_conflicts: true,
        local_seq: true,
        ..ReadOptions::default()
    };
    let read = fixture
        .docstore
        .get(&fixture.db, "a", &everything)
        .await
        .unwrap();
    let seq = fixture.changes(ChangesQuery::default()).await.0[0].seq;
    assert_eq!(
        read.to_json(),
        format!(
            concat!(
                r#"{{"_id":"a","_rev":"3-d","x":"d","_revisions":{{"start":3,"ids":["d","b","a"]}},"#,
                r#""_revs_info":[{{"rev":"3-d","status":"available"}},{{"rev":"2-b","status":"missing"}},"#,
                r#"{{"rev":"1-a","status":"missing"}}],"_local_seq":"{}","#,
                r#""_conflicts":["3-c"],"_deleted_conflicts":["2-e"]}}"#
            ),
            seq
        )
    );
}

pub(crate) async fn old_history_is_forgotten(fixture: Fixture) {
    fixture
        .docstore
        .set_revs_limit(&fixture.db, 3)
        .await
        .unwrap();
    assert_eq!(fixture.docstore.revs_limit(&fixture.db).await.unwrap(), 3);
    let mut last = None;
    for number in 0..6 {
        let body = format!(r#"{{"n":{number}}}"#);
        last = Some(fixture.put("a", last.as_ref(), &body).await.unwrap());
    }
    let options = ReadOptions {
        revs: true,
        ..ReadOptions::default()
    };
    let read = fixture
        .docstore
        .get(&fixture.db, "a", &options)
        .await
        .unwrap();
    let revisions = read.meta.revisions.unwrap();
    assert_eq!((revisions.start, revisions.ids.len()), (6, 3));
    fixture
        .docstore
        .set_revs_limit(&fixture.db, 0)
        .await
        .unwrap();
    fixture.put("a", last.as_ref(), "{}").await.unwrap();
    let read = fixture
        .docstore
        .get(&fixture.db, "a", &options)
        .await
        .unwrap();
    assert_eq!(read.meta.revisions.unwrap().ids.len(), 1, "0 counts as 1");
}

pub(crate) async fn an_edit_of_a_conflict_is_none(fixture: Fixture) {
    fixture
        .replicate("a", &["2-c", "1-a"], r#"{"x":"c"}"#)
        .await;
    fixture
        .replicate("a", &["2-b", "1-a"], r#"{"x":"b"}"#)
        .await;
    assert_eq!(fixture.get("a").await.unwrap().rev, rev("2-c"));
    // The loser is a leaf, so it may be edited, and wins by its length.
    let edited = fixture
        .put("a", Some(&rev("2-b")), r#"{"x":"e"}"#)
        .await
        .unwrap();
    assert_eq!(fixture.get("a").await.unwrap().rev, edited);
    fixture.delete("a", &rev("2-c")).await.unwrap();
    fixture.delete("a", &edited).await.unwrap();
    assert!(matches!(fixture.get("a").await, Err(Error::Deleted)));
    fixture.check().await;
}

pub(crate) async fn a_sealed_body_keeps_its_name(fixture: Fixture) {
    let sealed = Edit {
        sealed: Some(r#"{"a":"sealed"}"#.to_owned()),
        ..edit("a", None, r#"{"a":1}"#)
    };
    let put = fixture
        .docstore
        .put(&fixture.db, &sealed, EditMode::NewEdits, &NoHook);
    let named = put.await.unwrap();
    assert_eq!(named, rev("1-23202479633c2b380f79507a776743d5"));
    assert_eq!(fixture.get("a").await.unwrap().body, r#"{"a":"sealed"}"#);
    fixture.check().await;
}

pub(crate) async fn answers_are_in_order(fixture: Fixture) {
    let edits = [
        edit("b", None, "{}"),
        edit("_bad", None, "{}"),
        edit("a", None, r#"{"first":1}"#),
        edit("a", None, r#"{"second":1}"#),
        edit("_local/x", None, "{}"),
        edit("c", Some(&rev("1-x")), "{}"),
        edit("d", None, r#"{"_deleted":true}"#),
    ];
    let written = (fixture.docstore)
        .bulk_docs(&fixture.db, &edits, EditMode::NewEdits, &NoHook)
        .await
        .unwrap();
    let answers = written.iter().map(|answer| match answer {
        Ok(rev) => rev.generation.to_string(),
        Err(error) => error.to_string(),
    });
    assert_eq!(
        answers.collect::<Vec<_>>(),
        [
            "1",
            "Only reserved document ids may start with underscore.",
            "1",
            "Document update conflict.",
            "0",
            "Document update conflict.",
            "1"
        ]
    );
    assert_eq!(fixture.get("a").await.unwrap().body, r#"{"first":1}"#);
    assert!(matches!(fixture.get("d").await, Err(Error::Deleted)));
    fixture.check().await;
    // Two revisions of a document in one request are a conflict of it, and one row of the changes.
    let edits = [
        replicated("e", &["1-x"], "{}"),
        replicated("e", &["1-y"], "{}"),
    ];
    let written = (fixture.docstore)
        .bulk_docs(&fixture.db, &edits, EditMode::Replicated, &NoHook)
        .await
        .unwrap();
    assert!(written.iter().all(Result::is_ok));
    let options = ReadOptions::default();
    let opened = fixture.open_revs("e", &OpenRevs::All, false, &options);
    assert_eq!(opened.await.len(), 2);
    fixture.check().await;
}

pub(crate) async fn several_writes_meet_in_one_transaction(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let before = fixture.put("b", None, r#"{"n":0}"#).await.unwrap();
    let before = &before;
    let write = |tx: Transaction| async move {
        let put = async |id: &str, rev: Option<&Rev>, body: &str| {
            let edit = edit(id, rev, body);
            docstore
                .put_in(&tx, db, &edit, EditMode::NewEdits, &NoHook)
                .await
        };
        let first = put("a", None, r#"{"n":1}"#).await?;
        put("c", None, "{}").await?;
        let second = put("a", Some(&first), r#"{"n":2}"#).await?;
        let edited = put("b", Some(before), r#"{"n":1}"#).await?;
        let deleted = docstore
            .delete_in(&tx, db, "b", Some(&edited), &NoHook)
            .await?;
        put("a", Some(&second), r#"{"n":3}"#).await?;
        let read = docstore
            .get_in(&tx, db, "a", &ReadOptions::default())
            .await?;
        assert_eq!(read.body, r#"{"n":3}"#);
        Ok::<_, <NoHook as WriteHook>::Error>(deleted)
    };
    let deleted = docstore.store().transact("several", write).await.unwrap();
    assert_eq!(deleted.generation, 3);
    assert_eq!(fixture.get("a").await.unwrap().rev.generation, 3);
    fixture.check().await;
    let (changes, _) = fixture.changes(ChangesQuery::default()).await;
    let ids: Vec<_> = changes.iter().map(|row| &*row.id).collect();
    assert_eq!(
        ids,
        ["a", "c", "b"],
        "a document keeps its first place in a transaction"
    );
    // The next transaction finds the place that the last write of this one has left.
    let rev = fixture.get("a").await.unwrap().rev;
    fixture.put("a", Some(&rev), "{}").await.unwrap();
    fixture.check().await;
}

/// Gives every body with `old` in it one with `new`.
async fn rewrite(fixture: &Fixture) -> (u64, u64, usize) {
    let renew = |_: &str, body: &str| body.contains("old").then(|| body.replace("old", "new"));
    let (mut looked, mut written, mut pages) = (0, 0, 0);
    let mut after: Option<String> = None;
    loop {
        let (docstore, db, from) = (&fixture.docstore, &fixture.db, after.as_deref());
        let page = (docstore.store())
            .transact("rewrite", |tx: Transaction| async move {
                docstore.rewrite_bodies_in(&tx, db, from, &renew).await
            })
            .await
            .unwrap();
        (looked, written, pages) = (looked + page.looked, written + page.written, pages + 1);
        if page.done {
            return (looked, written, pages);
        }
        after = page.after;
    }
}

pub(crate) async fn rewriting_bodies_changes_nothing_else(fixture: Fixture) {
    fixture.put("a", None, r#"{"x":"old"}"#).await.unwrap();
    fixture.put("b", None, r#"{"x":"kept"}"#).await.unwrap();
    fixture
        .replicate("c", &["2-b", "1-a"], r#"{"x":"old b"}"#)
        .await;
    fixture
        .replicate("c", &["2-c", "1-a"], r#"{"x":"old c"}"#)
        .await;
    let text = "old".repeat(30_000);
    let long = format!(r#"{{"_deleted":true,"x":"{text}"}}"#);
    let gone = fixture.put("d\0d", None, &long).await.unwrap();
    let before = fixture.changes(ChangesQuery::default()).await;
    let info = fixture.docstore.info(&fixture.db).await.unwrap();
    assert_eq!(rewrite(&fixture).await, (4, 4, 1));
    assert_eq!(fixture.changes(ChangesQuery::default()).await, before);
    assert_eq!(fixture.docstore.info(&fixture.db).await.unwrap(), info);
    assert_eq!(fixture.get("a").await.unwrap().body, r#"{"x":"new"}"#);
    assert_eq!(fixture.get("b").await.unwrap().body, r#"{"x":"kept"}"#);
    let options = ReadOptions::default();
    let open = async |id: &str, revs| {
        let opened = fixture.open_revs(id, &revs, false, &options);
        let leaves = opened.await.into_iter();
        leaves.map(|leaf| leaf.unwrap().body).collect::<Vec<_>>()
    };
    let mut leaves = open("c", OpenRevs::All).await;
    leaves.sort();
    assert_eq!(leaves, [r#"{"x":"new b"}"#, r#"{"x":"new c"}"#]);
    let deleted = open("d\0d", OpenRevs::These(vec![gone])).await;
    assert_eq!(deleted, [format!(r#"{{"x":"{}"}}"#, "new".repeat(30_000))]);
    fixture.check().await;
    assert_eq!(rewrite(&fixture).await, (4, 0, 1));
    // A document is edited as if nothing had been.
    let doc = fixture.get("a").await.unwrap();
    fixture.put("a", Some(&doc.rev), "{}").await.unwrap();
    fixture.check().await;
}

pub(crate) async fn rewriting_bodies_is_bounded(fixture: Fixture) {
    let large = format!(r#"{{"x":"{}"}}"#, "old".repeat(2_600_000));
    for rev in ["2-a", "2-b"] {
        fixture.replicate("a", &[rev, "1-x"], &large).await;
    }
    fixture.put("b", None, &large).await.unwrap();
    let edits: Vec<_> = (0..450)
        .map(|n| edit(&format!("c{n:03}"), None, r#"{"x":"old"}"#))
        .collect();
    let (docstore, db) = (&fixture.docstore, &fixture.db);
    let written = docstore.bulk_docs(db, &edits, EditMode::NewEdits, &NoHook);
    assert!(written.await.unwrap().iter().all(Result::is_ok));
    let (looked, written, pages) = rewrite(&fixture).await;
    assert_eq!((looked, written), (452, 453));
    assert!(pages >= 5, "{pages}");
    assert_eq!(rewrite(&fixture).await.1, 0);
    fixture.check().await;
}
