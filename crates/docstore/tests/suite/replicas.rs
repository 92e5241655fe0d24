//! Random edits and replications of several databases over a store on a bad day, against a model.

use std::collections::BTreeMap;

use docstore::{
    ChangesQuery, Edit, EditMode, Error, NoHook, OpenRevs, ReadOptions, Rev, Revisions, Seq,
};
use document::revid::new_rev;
use document::revtree::{Path, RevTree};
use proptest::prelude::*;
use store::{Faults, Store};

use super::faults::bad_day;
use super::support::{Fixture, edit, instance, open};

const REPLICAS: usize = 3;
const DOCUMENTS: usize = 4;

/// What happens to the databases.
#[derive(Clone, Debug)]
enum Step {
    /// Edits of documents of one database, in one request.
    Write(usize, Vec<Change>),
    /// What one database has since the last time comes to another.
    Replicate { from: usize, to: usize },
}

#[derive(Clone, Debug)]
struct Change {
    document: usize,
    /// Which leaf is edited; none makes the document.
    leaf: Option<usize>,
    deleted: bool,
    value: u8,
}

fn changes() -> impl Strategy<Value = Change> {
    let leaf = prop_oneof![1 => Just(None), 3 => (0..3_usize).prop_map(Some)];
    (0..DOCUMENTS, leaf, prop::bool::weighted(0.25), 0..3_u8).prop_map(
        |(document, leaf, deleted, value)| Change {
            document,
            leaf,
            deleted,
            value,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..REPLICAS, prop::collection::vec(changes(), 1..4));
    let step = prop_oneof![
        3 => write.prop_map(|(replica, changes)| Step::Write(replica, changes)),
        1 => (0..REPLICAS, 1..REPLICAS).prop_map(|(from, distance)| Step::Replicate {
            from,
            to: (from + distance) % REPLICAS,
        }),
    ];
    prop::collection::vec(step, 1..40)
}

/// What a database should hold: the bodies of all revisions of each document.
type Model = BTreeMap<String, RevTree<String>>;

/// What an edit should come to.
fn model_edit(model: &mut Model, edit: &Edit) -> Option<Rev> {
    let tree = model.entry(edit.id.clone()).or_default();
    let parent = tree.edit(edit.rev().as_ref(), edit.deleted).ok()?;
    let rev = new_rev(parent.as_ref(), edit.deleted, &edit.body, []);
    let ids = [rev.id.clone()]
        .into_iter()
        .chain(parent.map(|parent| parent.id));
    tree.merge(Path {
        revisions: Revisions {
            start: rev.generation,
            ids: ids.collect(),
        },
        deleted: edit.deleted,
        value: edit.body.clone(),
    });
    Some(rev)
}

struct World {
    replicas: Vec<Fixture>,
    models: Vec<Model>,
    checkpoints: BTreeMap<(usize, usize), Seq>,
}

impl World {
    async fn new(store: Store) -> Self {
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            let docstore = open(store.clone());
            let name = docstore.name(&format!("r{number}/_replicator")).unwrap();
            let instance = instance(u8::try_from(number).unwrap());
            let db = docstore.create(&name, instance).await.unwrap();
            replicas.push(Fixture {
                docstore,
                db,
                _place: None,
            });
        }
        Self {
            replicas,
            models: vec![Model::new(); REPLICAS],
            checkpoints: BTreeMap::new(),
        }
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Write(replica, changes) => self.write(*replica, changes).await,
            Step::Replicate { from, to } => self.replicate(*from, *to).await,
        }
    }

    async fn write(&mut self, replica: usize, changes: &[Change]) {
        let model = &mut self.models[replica];
        let edits: Vec<Edit> = (changes.iter())
            .map(|change| {
                let id = format!("d{}", change.document);
                let leaves = model.get(&id).map(RevTree::leaves).unwrap_or_default();
                let base = change.leaf.filter(|_| !leaves.is_empty());
                let base = base.map(|leaf| leaves[leaf % leaves.len()].rev.clone());
                let body = format!(r#"{{"n":{}}}"#, change.value);
                Edit {
                    deleted: change.deleted,
                    ..edit(&id, base.as_ref(), &body)
                }
            })
            .collect();
        let Fixture { docstore, db, .. } = &self.replicas[replica];
        let written = docstore
            .bulk_docs(db, &edits, EditMode::NewEdits, &NoHook)
            .await
            .unwrap();
        for (edit, written) in edits.iter().zip(written) {
            match (written, model_edit(model, edit)) {
                (Ok(rev), Some(expected)) => assert_eq!(rev, expected),
                (Err(Error::Conflict), None) => {}
                // An attempt that looks for the success of an earlier one may find that of an earlier
                // request, or one that was made elsewhere: the same revision with the same body.
                (Ok(rev), None) => {
                    let made = model[&edit.id].get(&rev).expect("a revision that was made");
                    // Of an ancestor that came with a history only the name is known.
                    if let Some(body) = made.value {
                        assert_eq!((made.deleted, body), (edit.deleted, &edit.body));
                    }
                }
                (written, expected) => panic!("{edit:?}: {written:?}, not {expected:?}"),
            }
        }
    }

    async fn replicate(&mut self, from: usize, to: usize) {
        let (source, target) = (&self.replicas[from], &self.replicas[to]);
        let query = ChangesQuery {
            since: self
                .checkpoints
                .get(&(from, to))
                .copied()
                .unwrap_or(Seq::ZERO)
                .into(),
            all_leaves: true,
            ..ChangesQuery::default()
        };
        let (rows, last_seq) = source.changes(query).await;
        let named: Vec<_> = rows.into_iter().map(|row| (row.id, row.revs)).collect();
        let diffs = target.docstore.revs_diff(&target.db, &named).await.unwrap();
        let options = ReadOptions {
            revs: true,
            ..ReadOptions::default()
        };
        let mut edits = Vec::new();
        for diff in diffs {
            let revs = OpenRevs::These(diff.missing);
            let opened = source.open_revs(&diff.id, &revs, true, &options).await;
            for document in opened {
                let document = document.unwrap();
                let tree = self.models[to].entry(document.id.clone()).or_default();
                tree.merge(Path {
                    revisions: document.meta.revisions.clone().unwrap(),
                    deleted: document.deleted,
                    value: document.body.clone(),
                });
                edits.push(Edit {
                    revisions: document.meta.revisions,
                    deleted: document.deleted,
                    ..edit(&document.id, None, &document.body)
                });
            }
        }
        let mode = EditMode::Replicated;
        let bulk = target.docstore.bulk_docs(&target.db, &edits, mode, &NoHook);
        assert!(bulk.await.unwrap().iter().all(Result::is_ok));
        self.checkpoints.insert((from, to), last_seq);
    }

    /// Every leaf of every document, with its history.
    async fn contents(
        &self,
        replica: usize,
    ) -> BTreeMap<String, Vec<(Rev, bool, String, Revisions)>> {
        let fixture = &self.replicas[replica];
        let options = ReadOptions {
            revs: true,
            ..ReadOptions::default()
        };
        let mut contents = BTreeMap::new();
        for number in 0..DOCUMENTS {
            let id = format!("d{number}");
            let opened = fixture.open_revs(&id, &OpenRevs::All, false, &options);
            let leaves = opened.await.into_iter().map(|leaf| {
                let leaf = leaf.unwrap();
                (
                    leaf.rev,
                    leaf.deleted,
                    leaf.body,
                    leaf.meta.revisions.unwrap(),
                )
            });
            contents.insert(id, leaves.collect());
        }
        contents
    }

    /// Compares with the model.
    async fn compare(&self) {
        for (replica, model) in self.models.iter().enumerate() {
            self.replicas[replica].check().await;
            for (id, leaves) in self.contents(replica).await {
                let tree = model.get(&id).cloned().unwrap_or_default();
                let expected = tree.leaves().into_iter().map(|leaf| {
                    let revisions = tree.revisions(leaf.rev).unwrap();
                    (
                        leaf.rev.clone(),
                        leaf.deleted,
                        leaf.value.unwrap().clone(),
                        revisions,
                    )
                });
                assert_eq!(
                    leaves,
                    expected.collect::<Vec<_>>(),
                    "{id} in replica {replica}"
                );
            }
        }
    }

    /// Replicates until everybody has everything: then all are the same.
    async fn converge(&mut self) {
        for _ in 0..2 {
            for from in 0..REPLICAS {
                for to in (0..REPLICAS).filter(|to| *to != from) {
                    self.replicate(from, to).await;
                }
            }
        }
        self.compare().await;
        let first = self.contents(0).await;
        for replica in 1..REPLICAS {
            assert_eq!(self.contents(replica).await, first);
        }
    }
}

fn run(steps: &[Step], faults: Option<Faults>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Store::open("memory:").await.unwrap();
        let store = match faults {
            Some(faults) => store.with_faults(faults).0,
            None => store,
        };
        let mut world = World::new(store).await;
        for step in steps {
            world.step(step).await;
        }
        world.compare().await;
        world.converge().await;
    });
}

/// More of them when a night is to be spent on it.
fn cases() -> u32 {
    let cases = std::env::var("SIM_CASES").ok();
    cases.and_then(|cases| cases.parse().ok()).unwrap_or(100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn replicas_converge(steps in steps()) {
        run(&steps, None);
    }

    #[test]
    fn replicas_converge_on_a_bad_day(steps in steps(), seed: u64) {
        run(&steps, Some(bad_day(seed)));
    }
}

/// The same random steps on the store that keeps them, without faults.
#[tokio::test]
async fn replicas_converge_on_disk() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    for _ in 0..3 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let place = testkit::Backend::Lmdb.place().unwrap();
        let mut world = World::new(Store::open(&place.url).await.unwrap()).await;
        for step in &steps {
            world.step(step).await;
        }
        world.converge().await;
    }
}

/// A document that is made again with the body it had in an earlier life is made again, even when
/// the first attempt was lost.
#[test]
fn another_life_is_not_taken_for_this_one() {
    let change = |leaf, deleted| Change {
        document: 0,
        leaf,
        deleted,
        value: 1,
    };
    let life = [
        Step::Write(0, vec![change(None, false)]),
        Step::Write(0, vec![change(Some(0), true)]),
    ];
    let lives: Vec<_> = life.iter().cycle().take(20).cloned().collect();
    for seed in 0..50 {
        run(&lives, Some(bad_day(seed)));
    }
}
