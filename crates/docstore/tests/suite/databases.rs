//! Databases as a whole.

use docstore::{AllDocsQuery, ChangesQuery, Error, IdRange, NoHook, Swept};

use super::support::{Fixture, instance};

pub(crate) async fn a_name_is_one_database(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let again = docstore.create(db.name(), instance(2)).await;
    assert!(matches!(again, Err(Error::DatabaseExists)));
    assert_eq!(docstore.open(db.name()).await.unwrap(), *db);
    // The same random bits are the same creation, seen a second time.
    let same = docstore.create(db.name(), instance(1)).await;
    assert_eq!(same.unwrap(), *db);
    let other = docstore.name("other/_replicator").unwrap();
    assert!(matches!(
        docstore.open(&other).await,
        Err(Error::NoDatabase)
    ));
}

pub(crate) async fn names_are_checked(fixture: Fixture) {
    for name in ["a/_replicator", "_users", "b/_users"] {
        assert_eq!(fixture.docstore.name(name).unwrap().as_str(), name);
    }
    for name in ["db", "_global_changes", "A/_replicator", "/_users"] {
        let refused = fixture.docstore.name(name);
        assert!(matches!(refused, Err(Error::IllegalName(_))), "{name}");
    }
}

pub(crate) async fn a_deleted_database_is_gone_at_once(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let rev = fixture.put("a", None, "{}").await.unwrap();
    docstore.delete_database(db).await.unwrap();
    assert!(matches!(
        docstore.open(db.name()).await,
        Err(Error::NoDatabase)
    ));
    assert!(matches!(
        docstore.delete_database(db).await,
        Err(Error::NoDatabase)
    ));
    assert!(matches!(docstore.info(db).await, Err(Error::NoDatabase)));
    assert!(matches!(fixture.get("a").await, Err(Error::NoDatabase)));
    assert!(matches!(
        fixture.get("_local/a").await,
        Err(Error::NoDatabase)
    ));
    assert!(matches!(
        fixture.put("b", None, "{}").await,
        Err(Error::NoDatabase)
    ));
    assert!(matches!(
        fixture.delete("a", &rev).await,
        Err(Error::NoDatabase)
    ));
    assert!(matches!(
        docstore.set_security(db, "{}").await,
        Err(Error::NoDatabase)
    ));
    let query = AllDocsQuery::default();
    assert!(matches!(
        docstore.all_docs_page(db, &query).await,
        Err(Error::NoDatabase)
    ));
    assert!(matches!(
        docstore.all_docs_counts(db, &query).await,
        Err(Error::NoDatabase)
    ));
    let query = ChangesQuery::default();
    let changes = docstore.changes_page(db, &query, &|doc| doc).await;
    assert!(matches!(changes, Err(Error::NoDatabase)));
}

pub(crate) async fn a_database_made_again_is_another(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    fixture.put("a", None, "{}").await.unwrap();
    let (_, old_seq) = fixture.changes(ChangesQuery::default()).await;
    docstore.delete_database(db).await.unwrap();
    let new = docstore.create(db.name(), instance(2)).await.unwrap();
    assert_ne!(new, *db);
    let fixture = Fixture { db: new, ..fixture };
    assert!(matches!(fixture.get("a").await, Err(Error::Missing)));
    fixture.put("b", None, "{}").await.unwrap();
    fixture.check().await;
    // A reader of the old database gets the new one from its beginning.
    let since_old = ChangesQuery {
        since: old_seq.into(),
        ..ChangesQuery::default()
    };
    assert_eq!(fixture.changes(since_old).await.0.len(), 1);
    // Sweeping the old one leaves the new one alone.
    while fixture.docstore.sweep(&NoHook).await.unwrap() != Swept::Nothing {}
    fixture.check().await;
    assert!(fixture.get("b").await.is_ok());
}

pub(crate) async fn databases_are_listed_by_name(fixture: Fixture) {
    let docstore = &fixture.docstore;
    for (number, name) in ["b/_replicator", "_users", "a/_replicator"]
        .iter()
        .enumerate()
    {
        let name = docstore.name(name).unwrap();
        let number = u8::try_from(number).unwrap() + 10;
        docstore.create(&name, instance(number)).await.unwrap();
    }
    let list = async |range: IdRange| {
        let page = docstore.databases_page(&range).await.unwrap();
        assert_eq!(page.rest, None);
        let names = page.rows.into_iter().map(|db| db.name().to_string());
        names.collect::<Vec<_>>()
    };
    let all = ["_replicator", "_users", "a/_replicator", "b/_replicator"];
    assert_eq!(list(IdRange::default()).await, all);
    let one = IdRange {
        skip: 1,
        limit: Some(1),
        descending: true,
        ..IdRange::default()
    };
    assert_eq!(list(one).await, ["a/_replicator"]);
    let open = docstore.databases_page(&IdRange::default()).await.unwrap();
    for db in open.rows {
        assert_eq!(docstore.open(db.name()).await.unwrap(), db);
    }
}

pub(crate) async fn security_is_what_was_set(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    assert_eq!(docstore.security(db).await.unwrap(), None);
    let long = format!(r#"{{"admins":{{"names":["{}"]}}}}"#, "é".repeat(100_000));
    for security in [r#"{"members":{"roles":["x"]}}"#, &*long, "{}"] {
        docstore.set_security(db, security).await.unwrap();
        assert_eq!(docstore.security(db).await.unwrap().unwrap(), security);
    }
    let too_long = "x".repeat(8_000_001);
    let refused = docstore.set_security(db, &too_long).await;
    assert!(matches!(
        refused,
        Err(Error::TooLarge {
            bytes_max: 8_000_000,
            ..
        })
    ));
    assert_eq!(docstore.security(db).await.unwrap().unwrap(), "{}");
}

pub(crate) async fn info_counts(fixture: Fixture) {
    let counts = async || {
        let info = fixture.docstore.info(&fixture.db).await.unwrap();
        (info.doc_count, info.doc_del_count, info.sizes.active)
    };
    assert_eq!(counts().await, (0, 0, 0));
    let first = fixture.put("a", None, r#"{"x":1}"#).await.unwrap();
    fixture.put("_design/d", None, "{}").await.unwrap();
    assert_eq!(counts().await, (2, 0, 9));
    let second = fixture.put("a", Some(&first), r#"{"x":12}"#).await.unwrap();
    assert_eq!(counts().await, (2, 0, 10));
    fixture.delete("a", &second).await.unwrap();
    assert_eq!(counts().await, (1, 1, 4));
    // A deletion that comes by replication, of a document that did not exist here.
    fixture
        .replicate("gone", &["3-c", "2-b"], r#"{"_deleted":true}"#)
        .await;
    assert_eq!(counts().await, (1, 2, 6));
    fixture.put("a", None, "{}").await.unwrap();
    assert_eq!(counts().await, (2, 1, 6));
    fixture.check().await;
}

pub(crate) async fn info_is_couchdbs_json(fixture: Fixture) {
    let info = fixture.docstore.info(&fixture.db).await.unwrap();
    assert_eq!(
        serde_json::to_string(&info).unwrap(),
        concat!(
            r#"{"db_name":"_replicator","doc_count":0,"doc_del_count":0,"update_seq":"0","#,
            r#""sizes":{"file":0,"external":0,"active":0},"purge_seq":"0","compact_running":false,"#,
            r#""disk_format_version":1,"instance_start_time":"0","props":{},"#,
            r#""cluster":{"q":1,"n":1,"w":1,"r":1}}"#
        )
    );
}

pub(crate) async fn deletion_leaves_nothing(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    for number in 0..250 {
        fixture
            .put(&format!("doc{number}"), None, r#"{"a":1}"#)
            .await
            .unwrap();
    }
    fixture.put("_local/x", None, "{}").await.unwrap();
    docstore.set_security(db, "{}").await.unwrap();
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(3_000_000));
    let rev = fixture.put("large", None, &large).await.unwrap();
    fixture.delete("large", &rev).await.unwrap();
    docstore.delete_database(db).await.unwrap();
    let mut pieces = 0;
    loop {
        match docstore.sweep(&NoHook).await.unwrap() {
            Swept::Nothing => break,
            Swept::Some(swept) | Swept::Last(swept) => assert_eq!(swept, *db),
        }
        pieces += 1;
    }
    assert!(pieces > 3, "{pieces} pieces are too large");
    assert_eq!(fixture.rows().await, 0);
}
