//! Revisions that come from elsewhere, and what replicators ask for.

use docstore::{
    BulkGet, EditMode, Error, NoHook, OpenRevs, OpenedPage, ReadOptions, Rev, RevsDiff,
};

use super::support::{Fixture, edit, replicated, rev};

async fn leaves(fixture: &Fixture, id: &str) -> Vec<String> {
    let options = ReadOptions::default();
    let opened = fixture.open_revs(id, &OpenRevs::All, false, &options);
    let opened = opened.await.into_iter();
    opened.map(|leaf| leaf.unwrap().rev.to_string()).collect()
}

pub(crate) async fn histories_merge(fixture: Fixture) {
    fixture
        .replicate("a", &["2-b", "1-a"], r#"{"x":"b"}"#)
        .await;
    // Known revisions change nothing, not even the sequence.
    let before = fixture.docstore.info(&fixture.db).await.unwrap();
    for known in [&["2-b", "1-a"][..], &["2-b"], &["1-a"]] {
        fixture.replicate("a", known, r#"{"x":"other"}"#).await;
    }
    assert_eq!(fixture.docstore.info(&fixture.db).await.unwrap(), before);
    fixture
        .replicate("a", &["4-d", "3-c", "2-b"], r#"{"x":"d"}"#)
        .await;
    assert_eq!(leaves(&fixture, "a").await, ["4-d"]);
    fixture
        .replicate("a", &["2-z", "1-a"], r#"{"x":"z"}"#)
        .await;
    fixture
        .replicate("a", &["5-q"], r#"{"_deleted":true}"#)
        .await;
    assert_eq!(leaves(&fixture, "a").await, ["4-d", "2-z", "5-q"]);
    fixture.check().await;
}

pub(crate) async fn the_winner_is_the_same_everywhere(fixture: Fixture) {
    let revs = ["3-a", "3-b", "2-z", "4-a"];
    for rotation in 0..revs.len() {
        let id = format!("doc{rotation}");
        let mut order = revs;
        order.rotate_left(rotation);
        for rev in order {
            let deleted = rev == "4-a";
            let body = format!(r#"{{"_deleted":{deleted},"rev":"{rev}"}}"#);
            fixture.replicate(&id, &[rev], &body).await;
        }
        let winner = fixture.get(&id).await.unwrap();
        assert_eq!(winner.rev, rev("3-b"));
        assert_eq!(winner.body, r#"{"rev":"3-b"}"#);
    }
    fixture.check().await;
}

pub(crate) async fn deleting_the_winner_uncovers_another(fixture: Fixture) {
    fixture
        .replicate("a", &["2-c", "1-a"], r#"{"x":"c"}"#)
        .await;
    fixture
        .replicate("a", &["2-b", "1-a"], r#"{"x":"b"}"#)
        .await;
    fixture.delete("a", &rev("2-c")).await.unwrap();
    let uncovered = fixture.get("a").await.unwrap();
    assert_eq!(
        (uncovered.rev, &*uncovered.body),
        (rev("2-b"), r#"{"x":"b"}"#)
    );
    fixture.check().await;
}

pub(crate) async fn missing_revisions_are_told(fixture: Fixture) {
    fixture.replicate("a", &["2-b", "1-a"], "{}").await;
    fixture.replicate("a", &["3-x"], "{}").await;
    let revs = |revs: &[&str]| revs.iter().map(|text| rev(text)).collect::<Vec<_>>();
    let mut named = vec![
        ("a".to_owned(), revs(&["1-a", "2-b", "3-x"])),
        ("a".to_owned(), revs(&["3-c", "2-b", "3-c"])),
        ("new".to_owned(), revs(&["1-x"])),
        ("_".repeat(2000), revs(&["1-x"])),
    ];
    // More than one transaction compares.
    named.extend((0..500).map(|number| (format!("n{number}"), revs(&["1-x"]))));
    let diffs = fixture
        .docstore
        .revs_diff(&fixture.db, &named)
        .await
        .unwrap();
    assert_eq!(
        diffs[..2],
        [
            RevsDiff {
                id: "a".to_owned(),
                missing: revs(&["3-c"]),
                possible_ancestors: revs(&["2-b"]),
            },
            RevsDiff {
                id: "new".to_owned(),
                missing: revs(&["1-x"]),
                possible_ancestors: Vec::new(),
            }
        ]
    );
    assert_eq!(diffs.len(), 503);
}

pub(crate) async fn revisions_are_opened(fixture: Fixture) {
    fixture
        .replicate("a", &["3-c", "2-b", "1-a"], r#"{"x":"c"}"#)
        .await;
    fixture
        .replicate("a", &["3-d", "2-b", "1-a"], r#"{"x":"d"}"#)
        .await;
    let open = async |revs: &[&str], latest| {
        let revs = OpenRevs::These(revs.iter().map(|text| rev(text)).collect());
        let options = ReadOptions {
            revs: true,
            ..ReadOptions::default()
        };
        let opened = fixture.open_revs("a", &revs, latest, &options);
        let opened = opened.await.into_iter();
        let told = opened.map(|opened| match opened {
            Ok(document) => document.rev.to_string(),
            Err(missing) => format!("no {missing}"),
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(
        open(&["3-d", "2-b", "9-z", "3-c"], false).await,
        ["3-d", "3-c", "no 2-b", "no 9-z"]
    );
    assert_eq!(open(&["1-a", "9-z"], true).await, ["3-c", "3-d", "no 9-z"]);
    assert_eq!(open(&["3-c"], true).await, ["3-c"]);
    // Each once, however often it is named.
    let twice = ["3-d", "9-z", "3-d", "9-z"];
    assert_eq!(open(&twice, false).await, ["3-d", "no 9-z"]);
    let options = ReadOptions::default();
    let none = fixture.open_revs("none", &OpenRevs::All, false, &options);
    assert_eq!(none.await, []);
    let latest = fixture
        .docstore
        .get_rev(&fixture.db, "a", &rev("2-b"), true, &options)
        .await;
    assert_eq!(latest.unwrap().rev, rev("3-d"));
}

pub(crate) async fn many_revisions_are_opened_in_pages(fixture: Fixture) {
    let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(400_000));
    for leaf in ["1-a", "1-b", "1-c", "1-d", "1-e"] {
        fixture.replicate("a", &[leaf], &body).await;
    }
    let Fixture { docstore, db, .. } = &fixture;
    let options = ReadOptions::default();
    let first = docstore.open_revs_page(db, "a", &OpenRevs::All, false, &options);
    let first = first.await.unwrap();
    let found: Vec<_> = first
        .found
        .into_iter()
        .map(|leaf| leaf.unwrap().rev)
        .collect();
    assert_eq!(found, [rev("1-e"), rev("1-d"), rev("1-c")]);
    assert_eq!(first.rest, [rev("1-b"), rev("1-a")]);
    let named = OpenRevs::These(["9-z", "1-a", "1-b", "1-c", "1-d"].map(rev).to_vec());
    let first = docstore.open_revs_page(db, "a", &named, false, &options);
    let first = first.await.unwrap();
    assert_eq!(first.found.len(), 3);
    assert_eq!(first.rest, [rev("1-d"), rev("9-z")]);
    let all = fixture.open_revs("a", &named, false, &options).await;
    assert_eq!((all.len(), &all[4]), (5, &Err(rev("9-z"))));
    let request = |id: &str| BulkGet {
        id: id.to_owned(),
        revs: OpenRevs::All,
        options: ReadOptions::default(),
    };
    let requests = [request("none"), request("a"), request("b")];
    let page = docstore.bulk_get_page(db, &requests, false).await.unwrap();
    let counts: Vec<_> = (page.iter())
        .map(|answer| (answer.found.len(), answer.rest.len()))
        .collect();
    assert_eq!(counts, [(0, 0), (3, 2)]);
}

pub(crate) async fn many_requests_are_answered_in_pages(fixture: Fixture) {
    let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(100_000));
    let edits: Vec<_> = (0..30)
        .map(|number| edit(&format!("d{number:02}"), None, &body))
        .collect();
    let written = (fixture.docstore)
        .bulk_docs(&fixture.db, &edits, EditMode::NewEdits, &NoHook)
        .await
        .unwrap();
    let written: Vec<Rev> = written.into_iter().map(Result::unwrap).collect();
    let mut requests: Vec<_> = (0..30)
        .map(|number| BulkGet {
            id: format!("d{number:02}"),
            revs: OpenRevs::These(vec![written[number].clone()]),
            options: ReadOptions::default(),
        })
        .collect();
    requests.insert(
        7,
        BulkGet {
            id: "none".to_owned(),
            revs: OpenRevs::All,
            options: ReadOptions::default(),
        },
    );
    let mut answers = Vec::new();
    let mut pages = 0;
    while answers.len() < requests.len() {
        let rest = &requests[answers.len()..];
        let page = fixture
            .docstore
            .bulk_get_page(&fixture.db, rest, false)
            .await
            .unwrap();
        assert!(!page.is_empty());
        answers.extend(page);
        pages += 1;
    }
    assert!(
        (3..=4).contains(&pages),
        "three megabytes came in {pages} pages"
    );
    assert_eq!(answers[7], OpenedPage::default());
    for (request, answer) in requests
        .iter()
        .zip(&answers)
        .filter(|(request, _)| request.id != "none")
    {
        assert_eq!(answer.found[0].as_ref().unwrap().id, request.id);
    }
    let empty = fixture
        .docstore
        .bulk_get_page(&fixture.db, &[], false)
        .await
        .unwrap();
    assert_eq!(empty.len(), 0);
    // Writes cannot name a database that is gone.
    fixture.docstore.delete_database(&fixture.db).await.unwrap();
    let edits = [replicated("a", &["1-a"], "{}")];
    let gone = fixture
        .docstore
        .bulk_docs(&fixture.db, &edits, EditMode::Replicated, &NoHook);
    assert!(matches!(gone.await, Err(Error::NoDatabase)));
}
