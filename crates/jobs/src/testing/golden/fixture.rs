//! Data of earlier versions: an export of each format with rows of every table.
//!
//! `UPDATE_GOLDENFILES=1` rewrites that of the current format. Once a version with this format is
//! released, a change needs a new format with its own fixture.

use std::collections::BTreeSet;
use std::path::PathBuf;

use store::{Formats, OpenOptions, Store, TransferError};

use super::{Script, mail, show};
use crate::model::keys::Table;
use crate::operations::leases::Leases;
use crate::{Add, Clock, Entropy, Finish, Holder, JobId, Jobs, Lane, Query};

const LIFE: &str = "
type timeout=30000 retention=100000
add ready data=hello
add later due=5000
add large data=95000bytes
add done
add again
add letter
accept node-1 count=10
finish done data=result
finish letter dead=yes reason=unreadable
finish again reason=later again=1
accept node-1 count=10
update ready data=progress
add ready data=newer due=9000
add bell
watch bell 7
add bell data=changed
watch large 8
signal later due=4000
signal ready due=8000
---
";

fn path(format: u16) -> PathBuf {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    PathBuf::from(format!("{directory}/format-{format}.export"))
}

/// A queue with rows in every table.
fn export() -> Vec<u8> {
    let mut script = Script::new();
    let shown = goldenscript::generate(&mut script, LIFE).unwrap();
    assert!(!shown.contains("error"), "{shown}");
    let Script { runtime, jobs, .. } = script;
    runtime.block_on(async {
        let (jobs, ty, mut export) = (&jobs, &mail(), Vec::new());
        let add = Add::new(JobId::try_from("in a lane").unwrap(), "").lane(Lane::of(b"anna"));
        jobs.add(ty, add).await.unwrap();
        let sleeps = jobs.store().transact("sleep", |tx| async move {
            jobs.add_sleeper_in(&tx, ty, 9, 1);
            Ok::<_, crate::Error>(())
        });
        sleeps.await.unwrap();
        let minute = std::time::Duration::from_mins(1);
        Leases::new(5).turn(jobs, ty, minute).await.unwrap();
        jobs.store().export(&mut export).await.unwrap();
        export
    })
}

async fn open(url: &str, newest: u16) -> Jobs {
    let options = OpenOptions {
        formats: Formats { oldest: 2, newest },
        ..OpenOptions::default()
    };
    let store = Store::open_with(url, &options).await.unwrap();
    Jobs::new(store, Clock::standing(1_000_000), Entropy::from_os())
}

/// Two versions use the older one's data: one reads and writes this format; the other also reads a
/// later one, but does not write it while the first is running.
#[test]
fn two_versions_share_rows_of_this_format() {
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::write(path(2), export()).unwrap();
    }
    let fixture = std::fs::read(path(2)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let url = format!("lmdb:{}", directory.path().display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        Store::import(&url, &mut &*fixture).await.unwrap();
        let (old, new) = (open(&url, 2).await, open(&url, 3).await);
        let (ty, me) = (mail(), Holder::new("me").unwrap());
        let mut tables = BTreeSet::new();
        for row in old.rows(store::KeyRange::all()).await {
            // Fails if a row cannot be decoded.
            show::row(&row.key, &row.value);
            tables.insert(row.key.get(3).copied().unwrap_or(Table::Types as u8));
        }
        let all = (1..=Table::Types as u8).chain([Table::Dead as u8, Table::Call as u8]);
        assert_eq!(tables, all.collect());
        let check = new.check(&ty).await.unwrap();
        assert_eq!((check.jobs, check.problems), (8, Vec::new()));
        for (one, other) in [(&old, &new), (&new, &old)] {
            let id = JobId::try_from("large").unwrap();
            assert_eq!(one.get(&ty, &id).await.unwrap().unwrap().1.len(), 95_000);
            let more = Add::new(JobId::try_from("more").unwrap(), "data");
            one.add(&ty, more).await.unwrap();
            let claimed = other.accept(&ty, &me, 10).await.unwrap().jobs;
            assert!(!claimed.is_empty());
            for accepted in claimed {
                let beat = one.update(&accepted.job, None).await.unwrap();
                assert!(!beat.repeated);
                let held = other.finish(&accepted.job, Finish::done()).await.unwrap();
                assert!(!held.repeated);
            }
            let all = Query::default();
            let listed = |jobs: &Jobs| {
                let (jobs, all, ty) = (jobs.clone(), all.clone(), ty.clone());
                async move { jobs.list(&ty, &all, None, 100).await.unwrap().jobs }
            };
            assert_eq!(listed(one).await, listed(other).await);
            assert_eq!(one.check(&ty).await.unwrap().problems, Vec::<String>::new());
        }
        assert_eq!((old.store().format(), new.store().format()), (2, 2));
    });
}

/// The first format used other keys.
#[tokio::test]
async fn an_export_of_the_first_format_is_rejected() {
    let fixture = std::fs::read(path(1)).unwrap();
    let refused = Store::import("memory:", &mut &*fixture).await;
    let Err(TransferError::Store(store::Error::Open { message, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert!(message.contains("has format 1") && message.contains("start it on a new store"));
}
