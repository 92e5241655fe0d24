//! What the suites share: a database in a fresh store of each backend.

use std::collections::BTreeMap;

use docstore::{
    AllDocsQuery, AllDocsRow, ChangeRow, ChangesQuery, Db, DocStore, Document, Edit, EditMode,
    Error, InstanceId, NoHook, OpenRevs, Opened, Options, ReadOptions, Rev, Seq,
};
use document::doc::Doc;
use store::{KeyRange, Store};
use testkit::{Backend, Place};

/// A database in a fresh store, removed with the fixture.
pub(crate) struct Fixture {
    pub(crate) docstore: DocStore,
    pub(crate) db: Db,
    pub(crate) _place: Option<Place>,
}

impl Fixture {
    /// `None` when the backend needs a cluster that is not there.
    pub(crate) async fn open(backend: Backend) -> Option<Self> {
        let place = backend.place()?;
        let docstore = open(Store::open(&place.url).await.unwrap());
        let name = docstore.name("_replicator").unwrap();
        let db = docstore.create(&name, instance(1)).await.unwrap();
        Some(Self {
            docstore,
            db,
            _place: Some(place),
        })
    }

    pub(crate) async fn memory() -> Self {
        Self::open(Backend::Memory).await.unwrap()
    }

    /// Writes a document over `rev` and returns its new revision.
    pub(crate) async fn put(&self, id: &str, rev: Option<&Rev>, body: &str) -> Result<Rev, Error> {
        let edit = edit(id, rev, body);
        (self.docstore)
            .put(&self.db, &edit, EditMode::NewEdits, &NoHook)
            .await
    }

    /// Writes a revision with its history, newest first, as replication does.
    pub(crate) async fn replicate(&self, id: &str, history: &[&str], body: &str) -> Rev {
        let edit = replicated(id, history, body);
        (self.docstore)
            .put(&self.db, &edit, EditMode::Replicated, &NoHook)
            .await
            .unwrap()
    }

    pub(crate) async fn delete(&self, id: &str, rev: &Rev) -> Result<Rev, Error> {
        (self.docstore)
            .delete(&self.db, id, Some(rev), &NoHook)
            .await
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Document, Error> {
        self.docstore
            .get(&self.db, id, &ReadOptions::default())
            .await
    }

    /// Every row of a listing.
    pub(crate) async fn list(&self, query: AllDocsQuery) -> Vec<AllDocsRow> {
        let mut rows = Vec::new();
        let mut rest = Some(query);
        while let Some(query) = rest {
            let page = self.docstore.all_docs_page(&self.db, &query).await.unwrap();
            rows.extend(page.rows);
            rest = page.rest;
        }
        rows
    }

    /// The ids of a listing.
    pub(crate) async fn ids(&self, query: AllDocsQuery) -> Vec<String> {
        let rows = self.list(query).await.into_iter();
        rows.map(|row| row.id).collect()
    }

    /// Every row of a feed, and where it ends.
    pub(crate) async fn changes(&self, query: ChangesQuery) -> (Vec<ChangeRow>, Seq) {
        let mut rows = Vec::new();
        let mut next = query;
        loop {
            let page = self.docstore.changes_page(&self.db, &next, &|doc| doc);
            let page = page.await.unwrap();
            rows.extend(page.rows);
            match page.rest {
                Some(rest) => next = rest,
                None => return (rows, page.last_seq),
            }
        }
    }

    /// Opens revisions of a document, in as many pages as it takes.
    pub(crate) async fn open_revs(
        &self,
        id: &str,
        revs: &OpenRevs,
        latest: bool,
        options: &ReadOptions,
    ) -> Vec<Opened> {
        let mut opened = Vec::new();
        let mut revs = revs.clone();
        loop {
            let page = self
                .docstore
                .open_revs_page(&self.db, id, &revs, latest, options)
                .await
                .unwrap();
            opened.extend(page.found);
            if page.rest.is_empty() {
                return opened;
            }
            revs = OpenRevs::These(page.rest);
        }
    }

    /// Counts again what the database counts, and looks whether its parts agree.
    pub(crate) async fn check(&self) {
        let info = self.docstore.info(&self.db).await.unwrap();
        let (changes, last_seq) = self.changes(ChangesQuery::default()).await;
        assert_eq!(last_seq, info.update_seq);
        assert!(changes.is_sorted_by(|a, b| a.seq < b.seq));
        let ids: BTreeMap<_, _> = changes.iter().map(|row| (&row.id, row)).collect();
        assert_eq!(ids.len(), changes.len(), "a document is told twice");
        let deleted = changes.iter().filter(|row| row.deleted).count() as u64;
        assert_eq!(info.doc_del_count, deleted);
        assert_eq!(info.doc_count, changes.len() as u64 - deleted);
        let listed = self.list(AllDocsQuery::default()).await;
        assert_eq!(info.doc_count, listed.len() as u64);
        let mut bytes = 0;
        for row in &listed {
            let change = ids[&row.id];
            assert!(!change.deleted);
            assert_eq!(row.value.as_ref().unwrap().rev, change.revs[0]);
        }
        for row in &changes {
            let options = ReadOptions::default();
            let leaves = self
                .open_revs(&row.id, &OpenRevs::All, false, &options)
                .await;
            for leaf in leaves {
                let leaf = leaf.unwrap();
                bytes += leaf.body.len() as u64;
                bytes += leaf.attachments.iter().map(|att| att.bytes).sum::<u64>();
            }
        }
        assert_eq!(info.sizes.active, bytes);
    }

    /// How many rows the whole store has.
    pub(crate) async fn rows(&self) -> usize {
        let mut scan = self.docstore.store().scan(KeyRange::all());
        let mut rows = 0;
        while let Some(page) = scan.next_page().await.unwrap() {
            rows += page.len();
        }
        rows
    }
}

pub(crate) fn open(store: Store) -> DocStore {
    let options = Options {
        kinds: vec!["_replicator".to_owned(), "_users".to_owned()],
        ..Options::default()
    };
    DocStore::new(store, options)
}

pub(crate) fn instance(number: u8) -> InstanceId {
    InstanceId([number; 16])
}

pub(crate) fn rev(text: &str) -> Rev {
    text.parse().unwrap()
}

/// A document as a client sends it.
pub(crate) fn edit(id: &str, rev: Option<&Rev>, body: &str) -> Edit {
    let mut edit = Edit::new(id, Doc::parse(body).unwrap()).unwrap();
    if let Some(rev) = rev {
        edit.revisions = Some(rev.clone().into());
    }
    edit
}

/// A document as a replicator sends it.
pub(crate) fn replicated(id: &str, history: &[&str], body: &str) -> Edit {
    let revs: Vec<Rev> = history.iter().map(|text| rev(text)).collect();
    Edit {
        revisions: Some(docstore::Revisions {
            start: revs[0].generation,
            ids: revs.into_iter().map(|rev| rev.id).collect(),
        }),
        ..edit(id, None, body)
    }
}
