//! Random concurrent transactions: every backend gives the answers of a plain map, and what ran at
//! the same time could have run one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use store::{CommitStamp, Error, KeyRange, RangeOptions, Store, Transaction};
use testkit::Backend;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::support::{self, Fixture, once};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// One thing a transaction does. Keys are few, so that transactions meet.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Get(u8),
    SnapshotGet(u8),
    Range {
        begin: u8,
        end: u8,
        limit: Option<usize>,
        reverse: bool,
    },
    Set(u8, u8),
    Clear(u8),
    ClearRange(u8, u8),
    Add(u8, i64),
}

/// What it answered: the rows that were read.
pub(super) type Answer = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn key(n: u8) -> Vec<u8> {
    vec![b'k', n]
}

pub(super) fn value(n: u8) -> Vec<u8> {
    // Some values are numbers of eight bytes, some are not.
    vec![n; usize::from(n % 12)]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let key = 0..12_u8;
    prop_oneof![
        4 => key.clone().prop_map(Op::Get),
        1 => key.clone().prop_map(Op::SnapshotGet),
        3 => (key.clone(), key.clone(), prop::option::of(0..5_usize), any::<bool>()).prop_map(
            |(a, b, limit, reverse)| Op::Range { begin: a.min(b), end: a.max(b), limit, reverse }
        ),
        4 => (key.clone(), any::<u8>()).prop_map(|(k, v)| Op::Set(k, v)),
        1 => key.clone().prop_map(Op::Clear),
        1 => (key.clone(), key.clone()).prop_map(|(a, b)| Op::ClearRange(a.min(b), a.max(b))),
        2 => (key, -3..3_i64).prop_map(|(k, d)| Op::Add(k, d)),
    ]
}

pub(super) async fn perform(tx: &Transaction, op: &Op) -> Result<Answer, Error> {
    let row = |n: u8, value: Option<bytes::Bytes>| {
        value
            .map(|value| (key(n), value.to_vec()))
            .into_iter()
            .collect()
    };
    match *op {
        Op::Get(n) => return Ok(row(n, tx.get(&key(n)).await?)),
        Op::SnapshotGet(n) => return Ok(row(n, tx.snapshot().get(&key(n)).await?)),
        Op::Range {
            begin,
            end,
            limit,
            reverse,
        } => {
            let options = RangeOptions { limit, reverse };
            let rows = tx
                .get_range((key(begin), key(end)), options)
                .collect()
                .await?;
            let rows = rows
                .into_iter()
                .map(|row| (row.key.to_vec(), row.value.to_vec()));
            return Ok(rows.collect());
        }
        Op::Set(n, v) => tx.set(&key(n), &value(v)),
        Op::Clear(n) => tx.clear(&key(n)),
        Op::ClearRange(a, b) => tx.clear_range((key(a), key(b))),
        Op::Add(n, delta) => tx.add(&key(n), delta),
    }
    Ok(Vec::new())
}

/// The same on a plain map.
fn model(rows: &mut Rows, op: &Op) -> Answer {
    match *op {
        Op::Get(n) | Op::SnapshotGet(n) => rows
            .get(&key(n))
            .map(|value| (key(n), value.clone()))
            .into_iter()
            .collect(),
        Op::Range {
            begin,
            end,
            limit,
            reverse,
        } => {
            let found = rows
                .range(key(begin)..key(end))
                .map(|(k, v)| (k.clone(), v.clone()));
            let limit = limit.unwrap_or(usize::MAX);
            if reverse {
                found.rev().take(limit).collect()
            } else {
                found.take(limit).collect()
            }
        }
        Op::Set(n, v) => {
            rows.insert(key(n), value(v));
            Vec::new()
        }
        Op::Clear(n) => {
            rows.remove(&key(n));
            Vec::new()
        }
        Op::ClearRange(a, b) => {
            rows.retain(|k, _| !(key(a)..key(b)).contains(k));
            Vec::new()
        }
        Op::Add(n, delta) => {
            let old = rows.entry(key(n)).or_default();
            old.resize(8, 0);
            let sum = i64::from_le_bytes(old[..].try_into().unwrap()).wrapping_add(delta);
            *old = sum.to_le_bytes().to_vec();
            Vec::new()
        }
    }
}

// Interleaved scripts: the same steps on two backends give the same answers and verdicts.

/// What one transaction is told to do next.
type Step = (Option<Op>, oneshot::Sender<Result<Answer, String>>);

/// A transaction that is driven from outside, one step at a time.
struct Driven(
    mpsc::Sender<Step>,
    tokio::task::JoinHandle<Result<(), Error>>,
);

impl Driven {
    fn begin(store: Store) -> Self {
        let (sender, receiver) = mpsc::channel::<Step>(1);
        let receiver = Arc::new(Mutex::new(receiver));
        let task = tokio::spawn(async move {
            let receiver = &receiver;
            let body = |tx: Transaction| async move {
                while let Some((Some(op), reply)) = receiver.lock().await.recv().await {
                    let answer = perform(&tx, &op).await;
                    let _ = reply.send(answer.map_err(|error| error.to_string()));
                }
                Ok(())
            };
            store.transact(once("driven"), body).await
        });
        Self(sender, task)
    }

    async fn perform(&self, op: Op) -> Result<Answer, String> {
        let (reply, answer) = oneshot::channel();
        self.0.send((Some(op), reply)).await.unwrap();
        answer.await.unwrap()
    }

    async fn commit(self) -> Result<(), String> {
        drop(self.0);
        self.1.await.unwrap().map_err(|error| error.to_string())
    }
}

/// Runs a script of (transaction, operation) over three open transactions; an operation of `None`
/// commits and begins a new one. Returns everything that was read.
async fn interleave(store: &Store, script: &[(usize, Option<Op>)]) -> Vec<Result<Answer, String>> {
    let mut open: Vec<Driven> = (0..3).map(|_| Driven::begin(store.clone())).collect();
    let mut seen = Vec::new();
    for (who, op) in script {
        if let Some(op) = op {
            seen.push(open[*who].perform(op.clone()).await);
            continue;
        }
        let next = Driven::begin(store.clone());
        let ended = std::mem::replace(&mut open[*who], next);
        seen.push(ended.commit().await.map(|()| Vec::new()));
    }
    for driven in open {
        seen.push(driven.commit().await.map(|()| Vec::new()));
    }
    seen.push(Ok(support::all(store).await));
    seen
}

fn same_answers(backend: Backend, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let Some(fixture) = runtime.block_on(Fixture::open(backend)) else {
        return;
    };
    let script = prop::collection::vec((0..3_usize, prop::option::weighted(0.8, op())), 1..60);
    let mut runner = TestRunner::new(Config {
        cases,
        ..Config::default()
    });
    let result = runner.run(&script, |script| {
        let (expected, found) = runtime.block_on(async {
            let clear = |tx: Transaction| async move {
                tx.clear_range(KeyRange::all());
                Ok::<_, Error>(())
            };
            fixture.store.transact("clear", clear).await.unwrap();
            let memory = Store::open("memory:").await.unwrap();
            (
                interleave(&memory, &script).await,
                interleave(&fixture.store, &script).await,
            )
        });
        prop_assert_eq!(expected, found);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn lmdb_answers_like_memory() {
    same_answers(Backend::Lmdb, 300);
}

#[test]
fn fdb_answers_like_memory() {
    same_answers(Backend::Fdb, 100);
}

/// One transaction alone answers like a map: the reference itself is checked against something plain.
#[test]
fn memory_answers_like_a_map() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let transactions = prop::collection::vec(prop::collection::vec(op(), 1..20), 1..8);
    let mut runner = TestRunner::new(Config {
        cases: 300,
        ..Config::default()
    });
    let result = runner.run(&transactions, |transactions| {
        runtime.block_on(async {
            let store = Store::open("memory:").await.unwrap();
            let mut rows = Rows::new();
            for ops in &transactions {
                let body = |tx: Transaction| async move {
                    let mut answers = Vec::new();
                    for op in ops {
                        answers.push(perform(&tx, op).await?);
                    }
                    Ok::<_, Error>(answers)
                };
                let answers = store.transact("alone", body).await.unwrap();
                let expected: Vec<_> = ops.iter().map(|op| model(&mut rows, op)).collect();
                prop_assert_eq!(answers, expected);
            }
            Ok(())
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

// Real concurrency: the order of the stamps must explain every answer.

struct Committed {
    stamp: CommitStamp,
    read_version: u64,
    ops: Vec<Op>,
    answers: Vec<Answer>,
}

/// Replays what was committed, in the order of the commits, on a map. A transaction that wrote must
/// have read what was there at its commit; one that only read, what was there at its read version.
fn check_serializable(mut history: Vec<Committed>) {
    let version = |c: &Committed| c.stamp.version();
    history.sort_by_key(|c| match c.stamp.get() {
        Some(stamp) => (u64::from_be_bytes(stamp[..8].try_into().unwrap()), 0, stamp),
        None => (c.read_version, 1, [0; 10]),
    });
    let mut rows = Rows::new();
    for committed in &history {
        let mut trial = rows.clone();
        for (op, answer) in committed.ops.iter().zip(&committed.answers) {
            let expected = model(&mut trial, op);
            // A snapshot read before the commit may be older than the commit.
            if !matches!(op, Op::SnapshotGet(_)) {
                assert_eq!(
                    *answer,
                    expected,
                    "{op:?} of the commit at {:?}",
                    version(committed)
                );
            }
        }
        if version(committed).is_some() {
            rows = trial;
        }
    }
}

async fn stress(backend: Backend) {
    let Some(fixture) = Fixture::open(backend).await else {
        return;
    };
    let mut runner = TestRunner::deterministic();
    let programs = prop::collection::vec(prop::collection::vec(op(), 1..6), 40..41);
    let mut tasks = Vec::new();
    for _ in 0..12 {
        let program = programs.new_tree(&mut runner).unwrap().current();
        let store = fixture.store.clone();
        tasks.push(tokio::spawn(async move {
            let mut history = Vec::new();
            for ops in program {
                let ops = &ops;
                let body = |tx: Transaction| async move {
                    let read_version = tx.read_version().await?;
                    let mut answers = Vec::new();
                    for op in ops {
                        answers.push(perform(&tx, op).await?);
                        tokio::task::yield_now().await;
                    }
                    let (stamp, ops) = (tx.commit_stamp(), ops.clone());
                    Ok::<_, Error>(Committed {
                        stamp,
                        read_version,
                        ops,
                        answers,
                    })
                };
                history.push(store.transact("stress", body).await.unwrap());
            }
            history
        }));
    }
    let mut history = Vec::new();
    for task in tasks {
        history.extend(task.await.unwrap());
    }
    assert_eq!(history.len(), 480);
    check_serializable(history);
    let stats = fixture.store.stats()["stress"];
    assert!(stats.conflicts > 0, "the transactions never met: {stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_is_serializable() {
    stress(Backend::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lmdb_is_serializable() {
    stress(Backend::Lmdb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fdb_is_serializable() {
    stress(Backend::Fdb).await;
}

/// The checker itself must be able to say no.
#[test]
#[should_panic(expected = "of the commit at")]
fn the_checker_finds_a_lost_update() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let memory = Store::open("memory:").await.unwrap();
        let faults = store::Faults {
            weaken: Some(store::Weaken {
                reads: store::Weakened::First,
                ..store::Weaken::all("first")
            }),
            ..store::Faults::default()
        };
        let (store, _) = memory.with_faults(faults);
        let store = &store;
        let body = |tx: Transaction| async move {
            let read_version = tx.read_version().await?;
            let ops = vec![Op::Get(1), Op::Set(1, 5)];
            let mut answers = vec![perform(&tx, &ops[0]).await?];
            let other = update(store).await;
            answers.push(perform(&tx, &ops[1]).await?);
            let stamp = tx.commit_stamp();
            Ok::<_, Error>((
                Committed {
                    stamp,
                    read_version,
                    ops,
                    answers,
                },
                other,
            ))
        };
        let (first, second) = store.transact(once("first"), body).await.unwrap();
        check_serializable(vec![first, second]);
    });
}

/// A store that has become full says nothing about the outcome of the attempt before.
#[tokio::test(start_paused = true)]
async fn a_full_store_does_not_deny_what_it_may_have_done() {
    let memory = Store::open("memory:").await.unwrap();
    let faults = store::Faults {
        unknown_applied: 1.0,
        ..store::Faults::default()
    };
    let (store, control) = memory.with_faults(faults);
    let control = &control;
    let result: Result<(), Error> = store
        .transact("test", |tx: Transaction| async move {
            control.set_full(tx.attempt() == 2);
            tx.set(b"k", b"v");
            Ok(())
        })
        .await;
    assert!(matches!(result, Err(Error::MaybeCommitted)), "{result:?}");
}

async fn update(store: &Store) -> Committed {
    let body = |tx: Transaction| async move {
        let read_version = tx.read_version().await?;
        let ops = vec![Op::Get(1), Op::Set(1, 3)];
        let answers = vec![perform(&tx, &ops[0]).await?, perform(&tx, &ops[1]).await?];
        let stamp = tx.commit_stamp();
        Ok::<_, Error>(Committed {
            stamp,
            read_version,
            ops,
            answers,
        })
    };
    store.transact("second", body).await.unwrap()
}
