//! Where this crate does what FoundationDB's client and cluster could do: they must agree. What a
//! transaction sees of its own writes, and what is too large.

use foundationdb::options::{MutationType, StreamingMode};
use foundationdb::{Database, RangeOption};
use futures::TryStreamExt;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use store::limits::TRANSACTION_BYTES_MAX;
use store::tuple::pack;
use store::{Error, KeyRange, Store, Transaction};
use testkit::{fdb_cluster_file, fdb_url};

use super::model::{Answer, Op, key as key_of, op, perform, value};

/// The same through the client alone, under a prefix of its own.
async fn there(tx: &foundationdb::Transaction, prefix: &[u8], op: &Op) -> Answer {
    let key = |n: u8| [prefix, &key_of(n)].concat();
    match *op {
        Op::Get(n) | Op::SnapshotGet(n) => {
            let snapshot = matches!(op, Op::SnapshotGet(_));
            let value = tx.get(&key(n), snapshot).await.unwrap();
            return (value.map(|value| (key_of(n), value.to_vec())))
                .into_iter()
                .collect();
        }
        // To the client, zero is no limit.
        Op::Range { limit: Some(0), .. } => {}
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

/// Runs every transaction through both; there are no other writers, so none is retried.
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
                answers.push(perform(&tx, op).await?);
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

#[test]
fn own_writes_look_as_in_the_client() {
    let (Some(cluster_file), Some(url)) = (fdb_cluster_file(), fdb_url()) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(Store::open(&url)).unwrap();
    let database = Database::from_path(&cluster_file).unwrap();
    let prefix = pack(&format!("client of {url}"));
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
    let Some(url) = fdb_url() else {
        return;
    };
    let (cluster, prefix) = url.rsplit_once('=').unwrap();
    let longest = format!("{cluster}={prefix:-<24}");
    let store = Store::open(&longest).await.unwrap();
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
