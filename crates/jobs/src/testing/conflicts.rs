//! Every conflicting read is necessary: a test fails when it is weakened, or it is listed as
//! redundant with the reason. The list of reads is recorded at run time.

use std::collections::BTreeSet;

use bytes::Bytes;
use store::{ReadLog, Reads, Weaken, Weakened};

use crate::model::keys::Table;
use crate::testing::mistake::{Mistake, PREFIXES, reads};
use crate::testing::{model, races, simulation};

/// Reads whose conflict is not needed, and which cannot be snapshot reads.
const REDUNDANT: &[(Weaken, &str)] = &[
    (
        reads("accept", Table::Sleeper, Weakened::All, false),
        "watching a row is a read of it. The watch fires for whatever comes after that read, \
         whether or not the transaction, which may end runs as well, is tried again for it",
    ),
    (
        reads("recall", Table::Job, Weakened::First, false),
        "a claim that is still on its way writes all of its jobs, so a conflict with one of them \
         is enough. Without any, a race finds it",
    ),
    (
        reads("recall", Table::Job, Weakened::Later, false),
        "as above",
    ),
    (
        reads("clear_bells", Table::Sleeper, Weakened::Later, false),
        "as below",
    ),
    (
        reads("clear_bells", Table::Sleeper, Weakened::First, false),
        "a sleeper hangs no bell twice, so that a stale one only ever goes away. It is the read \
         of clear_bells in NOTIFIER, where a bell may be touched again",
    ),
];

/// What a transaction reads that frees a slot. One function does it for all operations, so that each of several such reads
/// matters is shown for some of them.
const FREED: [u8; 4] = [
    Table::Pending as u8,
    Table::Slot as u8,
    Table::Limit as u8,
    // The same of what a transaction reads that makes jobs of tenants ready.
    Table::There as u8,
];
const SEVERAL_FREED: [(&str, u8); 3] = [
    ("finish", Table::Pending as u8),
    ("accept", Table::Slot as u8),
    ("add", Table::There as u8),
];

/// A read in the lists: transaction and table.
type Named = (String, u8);

fn named(weaken: &Weaken) -> Named {
    (weaken.transaction.to_owned(), weaken.prefix[3])
}

/// The number of the table of a row.
fn table_of(key: &Bytes) -> Option<u8> {
    key.strip_prefix(&PREFIXES[0][..3])?.first().copied()
}

/// The reads of the queue's rows in a log.
fn seen(log: &[Reads]) -> BTreeSet<Named> {
    (log.iter())
        .flat_map(|reads| reads.keys.iter().map(|key| (reads.transaction, key)))
        .filter_map(|(transaction, key)| Some((transaction.to_owned(), table_of(key)?)))
        .collect()
}

/// Transactions that read several rows of a table, for several jobs.
fn seen_several(log: &[Reads]) -> BTreeSet<Named> {
    let one = |reads: &Reads| {
        let mut keys: Vec<_> = reads.keys.clone();
        keys.sort();
        keys.dedup();
        // Sorted by key, rows of one table are adjacent.
        let tables: Vec<u8> = keys.iter().filter_map(table_of).collect();
        let several = tables.windows(2).filter(|pair| pair[0] == pair[1]);
        let name = |pair: &[u8]| (reads.transaction.to_owned(), pair[0]);
        several.map(name).collect::<Vec<_>>()
    };
    log.iter().flat_map(one).collect()
}

/// Every conflicting read of every writing transaction is in one of the lists, and every listed read
/// happens.
#[test]
fn every_conflicting_read_is_tested() {
    let log = ReadLog::default();
    let mistake = Mistake {
        log: Some(log.clone()),
        ..Mistake::default()
    };
    simulation::planted::log(&mistake);
    model::planted::log(&mistake);
    races::log(&mistake);
    let mut log = log.take();
    // A caller's transaction; its parts are tested on their own.
    log.retain(|reads| reads.transaction != "together");
    let tried: Vec<&Weaken> = (simulation::planted::weakened().iter())
        .chain(model::planted::weakened())
        .chain(races::weakened())
        .chain(REDUNDANT.iter().map(|(weaken, _)| weaken))
        .collect();
    let tried_names: BTreeSet<_> = tried.iter().map(|weaken| named(weaken)).collect();
    assert_eq!(seen(&log), tried_names);
    for name in seen_several(&log) {
        if FREED.contains(&name.1) && !SEVERAL_FREED.contains(&(&*name.0, name.1)) {
            continue;
        }
        let of_name = || tried.iter().filter(|weaken| named(weaken) == name);
        let has = |reads| of_name().any(|weaken| weaken.reads == reads);
        assert!(
            has(Weakened::First) && has(Weakened::Later),
            "{name:?} reads several rows, and each of them matters"
        );
    }
}

#[test]
fn table_prefixes_are_correct() {
    let keys = crate::model::keys::Keys::new();
    let ty = crate::JobType::new("t").unwrap();
    for (key, table) in [
        (keys.type_row(&ty), Table::Type),
        (keys.sleeper(&ty, 1), Table::Sleeper),
        (keys.lease(&ty, 1), Table::Lease),
    ] {
        assert!(key.starts_with(&PREFIXES[table as usize]), "{table:?}");
    }
}
