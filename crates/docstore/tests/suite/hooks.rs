//! The hook: one transaction with the write.

use std::sync::Mutex;

use docstore::{Change, Db, EditMode, Error, InstanceId, Swept, WriteHook};
use store::{AsStoreError, Transaction};

use super::support::{Fixture, edit, replicated, rev};

/// Keeps a row for each document, notes what it was told, and refuses what says `no`.
#[derive(Default)]
struct Rows {
    told: Mutex<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("forbidden")]
    Forbidden,
    #[error(transparent)]
    Docs(#[from] Error),
}

impl From<store::Error> for Refused {
    fn from(error: store::Error) -> Self {
        Self::Docs(error.into())
    }
}

impl AsStoreError for Refused {
    fn as_store_error(&self) -> Option<&store::Error> {
        match self {
            Self::Forbidden => None,
            Self::Docs(error) => error.as_store_error(),
        }
    }
}

fn row(instance: InstanceId, id: &str) -> Vec<u8> {
    format!("job/{instance}/{id}").into_bytes()
}

impl Rows {
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

impl WriteHook for Rows {
    type Error = Refused;

    fn watches(&self, _: &Db, id: &str) -> bool {
        !id.starts_with("_design/")
    }

    async fn changed(&self, tx: &Transaction, change: &Change<'_>) -> Result<(), Refused> {
        if change.written.body.contains("no") {
            return Err(Refused::Forbidden);
        }
        let key = row(change.db.instance(), change.id);
        let stored = tx.get(&key).await?;
        let before = change.before.map(|before| before.rev.to_string());
        let seen = stored.map(|row| String::from_utf8(row.to_vec()).unwrap());
        assert_eq!(
            seen,
            before
                .clone()
                .filter(|_| change.before.is_some_and(|doc| !doc.deleted))
        );
        if change.after.deleted {
            tx.clear(&key);
        } else {
            tx.set(&key, change.after.rev.to_string().as_bytes());
        }
        let line = format!(
            "{} {} + {} = {} {}{}{}",
            change.id,
            before.as_deref().unwrap_or("-"),
            change.written.rev,
            change.after.rev,
            change.after.body,
            if change.winner_changed() { "" } else { " same" },
            if change.adds_conflict {
                " conflict"
            } else {
                ""
            },
        );
        self.told.lock().unwrap().push(line);
        Ok(())
    }

    async fn dropped(&self, tx: &Transaction, db: &Db, id: &str) -> Result<(), Refused> {
        tx.clear(&row(db.instance(), id));
        self.told.lock().unwrap().push(format!("dropped {id}"));
        Ok(())
    }
}

pub(crate) async fn a_hook_sees_both_winners(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let hook = Rows::default();
    let replicate = async |history: &[&str], body: &str| {
        let edit = replicated("a", history, body);
        docstore
            .put(db, &edit, EditMode::Replicated, &hook)
            .await
            .unwrap();
        hook.told().join("; ")
    };
    assert_eq!(
        replicate(&["1-a"], r#"{"x":1}"#).await,
        r#"a - + 1-a = 1-a {"x":1}"#
    );
    assert_eq!(replicate(&["1-a"], r#"{"x":1}"#).await, "");
    assert_eq!(
        replicate(&["2-c", "1-a"], r#"{"x":"c"}"#).await,
        r#"a 1-a + 2-c = 2-c {"x":"c"}"#
    );
    assert_eq!(
        replicate(&["2-b", "1-a"], r#"{"x":"b"}"#).await,
        r#"a 2-c + 2-b = 2-c {"x":"c"} same conflict"#
    );
    let deleted = docstore
        .delete(db, "a", Some(&rev("2-c")), &hook)
        .await
        .unwrap();
    assert_eq!(
        hook.told().join("; "),
        format!(r#"a 2-c + {deleted} = 2-b {{"x":"b"}}"#)
    );
    let last = docstore
        .delete(db, "a", Some(&rev("2-b")), &hook)
        .await
        .unwrap();
    let winner = (&deleted).max(&last);
    assert_eq!(
        hook.told().join("; "),
        format!("a 2-b + {last} = {winner} {{}}")
    );
    docstore
        .put(
            db,
            &edit("_design/x", None, "{}"),
            EditMode::NewEdits,
            &hook,
        )
        .await
        .unwrap();
    docstore
        .put(db, &edit("_local/x", None, "{}"), EditMode::NewEdits, &hook)
        .await
        .unwrap();
    assert_eq!(hook.told().join("; "), "");
    fixture.check().await;
}

pub(crate) async fn a_refusal_concerns_one_document(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let hook = Rows::default();
    let edits = [
        edit("a", None, "{}"),
        edit("b", None, r#"{"no":1}"#),
        edit("c", None, "{}"),
        edit("c", None, r#"{"no":1}"#),
    ];
    let written = docstore
        .bulk_docs(db, &edits, EditMode::NewEdits, &hook)
        .await
        .unwrap();
    assert!(matches!(
        written[..],
        [
            Ok(_),
            Err(Refused::Forbidden),
            Ok(_),
            Err(Refused::Docs(Error::Conflict))
        ]
    ));
    assert!(matches!(fixture.get("b").await, Err(Error::Missing)));
    let rev = fixture.get("a").await.unwrap().rev;
    let refused = edit("a", Some(&rev), r#"{"no":1}"#);
    let refused = docstore.put(db, &refused, EditMode::NewEdits, &hook).await;
    assert!(matches!(refused, Err(Refused::Forbidden)));
    assert_eq!(fixture.get("a").await.unwrap().rev, rev);
    fixture.check().await;
}

pub(crate) async fn a_hook_writes_with_the_document(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let hook = Rows::default();
    let first = docstore
        .put(db, &edit("a", None, "{}"), EditMode::NewEdits, &hook)
        .await
        .unwrap();
    let key = &row(db.instance(), "a");
    let read = |tx: Transaction| async move { tx.get(key).await };
    let stored = docstore
        .store()
        .transact("read", read)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stored, first.to_string().as_bytes());
    // Several edits of a document in one transaction are told one by one.
    let edits = [
        replicated("b", &["1-a"], r#"{"x":1}"#),
        replicated("b", &["2-b", "1-a"], r#"{"x":2}"#),
        replicated("b", &["2-a", "1-a"], r#"{"x":3}"#),
    ];
    hook.told();
    docstore
        .bulk_docs(db, &edits, EditMode::Replicated, &hook)
        .await
        .unwrap();
    assert_eq!(
        hook.told(),
        [
            r#"b - + 1-a = 1-a {"x":1}"#,
            r#"b 1-a + 2-b = 2-b {"x":2}"#,
            r#"b 2-b + 2-a = 2-b {"x":2} same conflict"#
        ]
    );
    fixture.check().await;
}

pub(crate) async fn a_hook_hears_of_dropped_documents(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let hook = Rows::default();
    let ids: Vec<_> = (0..250).map(|number| format!("d{number:03}")).collect();
    let edits: Vec<_> = ids.iter().map(|id| edit(id, None, "{}")).collect();
    docstore
        .bulk_docs(db, &edits, EditMode::NewEdits, &hook)
        .await
        .unwrap();
    let gone = fixture.get("d007").await.unwrap().rev;
    docstore
        .delete(db, "d007", Some(&gone), &hook)
        .await
        .unwrap();
    let design = edit("_design/x", None, "{}");
    docstore
        .put(db, &design, EditMode::NewEdits, &hook)
        .await
        .unwrap();
    docstore.delete_database(db).await.unwrap();
    hook.told();
    while docstore.sweep(&hook).await.unwrap() != Swept::Nothing {}
    let mut told = hook.told();
    told.sort();
    told.dedup();
    let expected = ids.iter().filter(|id| *id != "d007");
    assert_eq!(
        told,
        expected
            .map(|id| format!("dropped {id}"))
            .collect::<Vec<_>>()
    );
    assert_eq!(fixture.rows().await, 0);
}
