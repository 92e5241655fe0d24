//! Where this crate does what FoundationDB's client and cluster could do: they must agree. What a
//! transaction sees of its own writes, and what is too large.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it skips"
)]

use foundationdb::options::{MutationType, StreamingMode};
use foundationdb::{Database, RangeOption};
use futures::TryStreamExt;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use store::limits::TRANSACTION_BYTES_MAX;
use store::tuple::pack;
use store::{Error, KeyRange, RangeOptions, Store, Transaction};

#[derive(Debug, Clone)]
enum Op {
    Get(u8),
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

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn value(n: u8) -> Vec<u8> {
    // Some values are numbers of eight bytes, some are not.
    vec![n; usize::from(n % 12)]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..10_u8;
    prop_oneof![
        3 => key.clone().prop_map(Op::Get),
        3 => (key.clone(), key.clone(), prop::option::of(1..5_usize), any::<bool>()).prop_map(
            |(a, b, limit, reverse)| Op::Range { begin: a.min(b), end: a.max(b), limit, reverse }
        ),
        3 => (key.clone(), any::<u8>()).prop_map(|(k, v)| Op::Set(k, v)),
        2 => key.clone().prop_map(Op::Clear),
        2 => (key.clone(), key.clone()).prop_map(|(a, b)| Op::ClearRange(a.min(b), a.max(b))),
        4 => (key, -3..3_i64).prop_map(|(k, d)| Op::Add(k, d)),
    ]
}

async fn here(tx: &Transaction, op: &Op) -> Result<Rows, Error> {
    match *op {
        Op::Get(k) => {
            let value = tx.get(&[k]).await?;
            return Ok(value.map(|v| (vec![k], v.to_vec())).into_iter().collect());
        }
        Op::Range {
            begin,
            end,
            limit,
            reverse,
        } => {
            let options = RangeOptions { limit, reverse };
            let rows = tx.get_range((vec![begin], vec![end]), options);
            let rows = rows.collect().await?.into_iter();
            return Ok(rows.map(|r| (r.key.to_vec(), r.value.to_vec())).collect());
        }
        Op::Set(k, v) => tx.set(&[k], &value(v)),
        Op::Clear(k) => tx.clear(&[k]),
        Op::ClearRange(a, b) => tx.clear_range((vec![a], vec![b])),
        Op::Add(k, delta) => tx.add(&[k], delta),
    }
    Ok(Vec::new())
}

/// The same through the client alone, under a prefix of its own.
async fn there(tx: &foundationdb::Transaction, prefix: &[u8], op: &Op) -> Rows {
    let key = |k: u8| [prefix, &[k]].concat();
    match *op {
        Op::Get(k) => {
            let value = tx.get(&key(k), false).await.unwrap();
            return value.map(|v| (vec![k], v.to_vec())).into_iter().collect();
        }
        Op::Range {
            begin,
            end,
            limit,
            reverse,
        } => {
            let option = RangeOption {
                limit,
                reverse,
                mode: StreamingMode::WantAll,
                ..RangeOption::from((key(begin), key(end)))
            };
            let strip = |key: &[u8]| key.strip_prefix(prefix).unwrap().to_vec();
            let rows = tx.get_ranges_keyvalues(option, false);
            let rows: Vec<_> = rows.try_collect().await.unwrap();
            return (rows.iter())
                .map(|row| (strip(row.key()), row.value().to_vec()))
                .collect();
        }
        Op::Set(k, v) => tx.set(&key(k), &value(v)),
        Op::Clear(k) => tx.clear(&key(k)),
        Op::ClearRange(a, b) => tx.clear_range(&key(a), &key(b)),
        Op::Add(k, delta) => tx.atomic_op(&key(k), &delta.to_le_bytes(), MutationType::Add),
    }
    Vec::new()
}

/// Runs every transaction through both; nobody else writes, so none is retried.
async fn compare(
    store: &Store,
    database: &Database,
    prefix: &[u8],
    transactions: &[Vec<Op>],
) -> Result<(), TestCaseError> {
    let clear = |tx: Transaction| async move {
        tx.clear_range(KeyRange::all());
        Ok::<_, Error>(())
    };
    store.transact("clear", clear).await.unwrap();
    let tx = database.create_trx().unwrap();
    tx.clear_range(prefix, &[prefix, &[0xff]].concat());
    tx.commit().await.unwrap();
    for ops in transactions {
        let body = |tx: Transaction| async move {
            let mut answers = Vec::new();
            for op in ops {
                answers.push(here(&tx, op).await?);
            }
            Ok::<_, Error>(answers)
        };
        let ours = store.transact("compare", body).await.unwrap();
        let tx = database.create_trx().unwrap();
        let mut theirs = Vec::new();
        for op in ops {
            theirs.push(there(&tx, prefix, op).await);
        }
        tx.commit().await.unwrap();
        prop_assert_eq!(ours, theirs);
    }
    Ok(())
}

/// The cluster that `TEST_FDB_CLUSTER_FILE` names, and a number for a prefix that nobody else has.
#[expect(
    clippy::disallowed_methods,
    reason = "test runs share one cluster and must not meet"
)]
fn cluster() -> Option<(String, u32)> {
    let Ok(cluster_file) = std::env::var("TEST_FDB_CLUSTER_FILE") else {
        assert!(
            std::env::var_os("TEST_FDB_REQUIRED").is_none(),
            "TEST_FDB_REQUIRED is set, but TEST_FDB_CLUSTER_FILE names no cluster"
        );
        println!("skipped: TEST_FDB_CLUSTER_FILE names no cluster");
        return None;
    };
    Some((cluster_file, rand::random()))
}

#[test]
fn own_writes_look_as_in_the_client() {
    let Some((cluster_file, unique)) = cluster() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = format!("fdb:{cluster_file}?prefix=ours-{unique:08x}");
    let store = runtime.block_on(Store::open(&url)).unwrap();
    let database = Database::from_path(&cluster_file).unwrap();
    let prefix = pack(&format!("theirs-{unique:08x}"));
    let transactions = prop::collection::vec(prop::collection::vec(op(), 1..25), 1..5);
    let mut runner = TestRunner::new(Config {
        cases: 60,
        ..Config::default()
    });
    let result = runner.run(&transactions, |transactions| {
        runtime.block_on(compare(&store, &database, &prefix, &transactions))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// One operation of each kind, at the size that costs the cluster most beside what we count.
type Fill = fn(&Transaction, &[u8]);

const FILLS: [(&str, Fill); 10] = [
    ("set", |tx, key| tx.set(key, b"")),
    ("clear", |tx, key| tx.clear(key)),
    ("clear_range to a long end", |tx, key| {
        tx.clear_range((key[..5].to_vec(), [key, b"\0"].concat()));
    }),
    ("clear_range of a key", |tx, key| {
        tx.clear_range(KeyRange::key(key));
    }),
    ("add", |tx, key| tx.add(key, 1)),
    ("stamped key", |tx, key| {
        let end = u32::try_from(key.len()).unwrap();
        let template = [key, &[0; 10], &end.to_le_bytes()].concat();
        tx.set_versionstamped_key(&template, b"");
    }),
    ("stamped value", |tx, key| {
        tx.set_versionstamped_value(key, &[0; 14]);
    }),
    ("read conflict", |tx, key| {
        tx.add_read_conflict_range(KeyRange::key(key));
    }),
    ("read conflict to a long end", |tx, key| {
        tx.add_read_conflict_range((key[..5].to_vec(), [key, b"\0"].concat()));
    }),
    ("write conflict", |tx, key| {
        tx.add_write_conflict_range(KeyRange::key(key));
    }),
];

/// A transaction that is as large as can be is not too large for the cluster, with the longest
/// prefix and whatever it consists of.
#[tokio::test]
async fn what_fits_here_fits_the_cluster() {
    let Some((cluster_file, unique)) = cluster() else {
        return;
    };
    let url = format!("fdb:{cluster_file}?prefix=the-longest-one-{unique:08x}");
    let store = Store::open(&url).await.unwrap();
    for (name, fill) in FILLS {
        for padding in [0, 900] {
            let body = |tx: Transaction| async move {
                tx.get(b"the version").await?;
                tx.set(b"a write", b"");
                let before = tx.approximate_size();
                for n in 0_u32.. {
                    // A letter and the number, so that no range touches the next.
                    let key = [b"k", &n.to_be_bytes()[..], &vec![b'k'; padding]].concat();
                    fill(&tx, &key);
                    if n == 0 {
                        assert!(tx.approximate_size() > before);
                    }
                    let each = (tx.approximate_size() - before) / (n as usize + 1);
                    if tx.approximate_size() + each > TRANSACTION_BYTES_MAX {
                        break;
                    }
                }
                Ok::<_, Error>(())
            };
            let result = store.transact("fill", body).await;
            result.unwrap_or_else(|error| panic!("{name} with {padding}: {error}"));
        }
    }
    store
        .transact("clear", |tx: Transaction| async move {
            tx.clear_range(KeyRange::all());
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
}
