//! A full store can be emptied through the queue.

use std::time::Duration;

use store::{OpenOptions, Store};
use tokio_util::sync::CancellationToken;

use crate::operations::leases::PARTITIONS;
use crate::{
    Add, Clock, Entropy, Error, Finish, Holder, JobId, JobType, Jobs, Maintenance, Options, Query,
    Retention, TypeConfig,
};

/// Adds jobs until the store is full. The largest transaction is small compared to the map.
async fn fill(jobs: &Jobs, ty: &JobType, bytes: usize) -> usize {
    for batch in 0.. {
        let adds = (0..20).map(|number| {
            let id = JobId::new(format!("{batch}/{number}")).unwrap();
            Add::new(id, vec![7; bytes]).retention(Retention::Ms(1))
        });
        let adds: Vec<Add> = adds.collect();
        match jobs.add_many(ty, &adds).await {
            Ok(_) => {}
            Err(Error::Store(store::Error::Full { .. })) => return batch * 20,
            Err(error) => panic!("{error:?}"),
        }
        // Fails when the store is full.
        let _ = jobs.store().settle().await;
    }
    unreachable!()
}

async fn tiny() -> (tempfile::TempDir, Jobs, JobType) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("lmdb:{}", directory.path().display());
    let options = OpenOptions {
        map_size_bytes: 2 << 20,
        ..OpenOptions::default()
    };
    let store = Store::open_with(&url, &options).await.unwrap();
    let jobs = Jobs::new(store, Clock::standing(1_000), Entropy::from_os());
    let ty = JobType::new("mail").unwrap();
    jobs.set_type(&ty, TypeConfig::new(300)).await.unwrap();
    (directory, jobs, ty)
}

async fn is_empty_and_works(jobs: &Jobs, ty: &JobType) {
    let check = jobs.check(ty).await.unwrap();
    assert_eq!((check.jobs, check.problems), (0, Vec::new()));
    jobs.store().settle().await.unwrap();
    let add = Add::new(JobId::try_from("more").unwrap(), vec![7; 5_000]);
    jobs.add(ty, add).await.unwrap();
}

#[tokio::test]
async fn jobs_can_be_removed_from_a_full_store() {
    for bytes in [100, 20_000] {
        let (_directory, jobs, ty) = tiny().await;
        let count = fill(&jobs, &ty, bytes).await;
        assert!(count > 0);
        loop {
            let page = jobs.list(&ty, &Query::default(), None, 100).await.unwrap();
            if page.jobs.is_empty() {
                break;
            }
            for job in page.jobs {
                jobs.remove(&ty, &job.info.id).await.unwrap();
            }
            // The last jobs added may not fit into the tree before more are removed.
            let _ = jobs.store().settle().await;
        }
        is_empty_and_works(&jobs, &ty).await;
    }
}

/// The nodes share the work by leases, whose rows exist before the store is full.
#[tokio::test]
async fn finished_jobs_expire_in_a_full_store() {
    let (_directory, jobs, ty) = tiny().await;
    let me = Holder::new("me").unwrap();
    let add = Add::new(JobId::try_from("held").unwrap(), "").retention(Retention::Ms(1));
    jobs.add(&ty, add).await.unwrap();
    let held = jobs.accept(&ty, &me, 1).await.unwrap().jobs;
    let _ = jobs.finish(&held[0].job, Finish::done()).await.unwrap();
    let stop = CancellationToken::new();
    let maintenance = Maintenance::new(jobs.clone(), Options::default()).serve(ty.clone());
    let running = tokio::spawn(maintenance.run(stop.clone()));
    let until = async |what: &dyn Fn(usize, u64) -> bool| loop {
        let leases = jobs.rows(jobs.keys().leases(&ty)).await.len();
        if what(leases, jobs.counts(&ty).await.unwrap().finished) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let time_limit = Duration::from_mins(1);
    let leased = until(&|leases, _| leases == usize::from(PARTITIONS));
    tokio::time::timeout(time_limit, leased)
        .await
        .expect("leases");
    fill(&jobs, &ty, 100).await;
    assert_eq!(jobs.counts(&ty).await.unwrap().finished, 1);
    jobs.clock().set_ms(2_000);
    let gone = until(&|_, finished| finished == 0);
    tokio::time::timeout(time_limit, gone)
        .await
        .expect("its retention is over");
    stop.cancel();
    running.await.unwrap();
}
