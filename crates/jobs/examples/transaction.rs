//! Application keys and a job in one transaction: an order and the job that ships it are stored together or not at all,
//! and each order is shipped exactly once, however often its job runs.
//!
//! `cargo run --example transaction`

use std::time::Duration;

use jobs::{
    Add, Clock, Entropy, Failure, Finish, Holder, JobId, JobType, Jobs, Task, TypeConfig, Worker,
    WorkerOptions,
};
use store::Transaction;
use tokio_util::sync::CancellationToken;

/// Keys of the application, outside the queue's.
fn order(number: u64) -> Vec<u8> {
    store::tuple::pack(&("shop", "order", number))
}

fn shipped() -> Vec<u8> {
    store::tuple::pack(&("shop", "shipped"))
}

async fn place(jobs: &Jobs, ship: &JobType, number: u64) -> Result<(), jobs::Error> {
    // Times and random bits are drawn before the transaction, so that a retry is the same transaction.
    let op = &jobs.op();
    let (id, data) = (
        &JobId::new(number.to_be_bytes().to_vec())?,
        &jobs::encode(&number)?,
    );
    (jobs.store())
        .transact("place_order", |tx: Transaction| async move {
            tx.set(&order(number), b"placed");
            let add = Add::new(id.clone(), data.clone());
            jobs.add_in(&tx, op, ship, add).await?;
            Ok(())
        })
        .await
}

async fn ship(task: Task<u64>) -> Result<Finish, Failure> {
    let (jobs, job, number) = (task.jobs(), task.job(), task.data);
    let op = &jobs.op();
    (jobs.store())
        .transact("ship_order", |tx: Transaction| async move {
            let held = jobs.finish_in(&tx, op, job, Finish::done()).await?;
            // Otherwise an earlier try was committed, although the store could not report it.
            if !held.repeated {
                tx.set(&order(number), b"shipped");
                tx.add(&shipped(), 1);
            }
            Ok::<_, jobs::Error>(())
        })
        .await?;
    // The run has ended already; ending it again changes nothing.
    Ok(Finish::done())
}

#[tokio::main]
async fn main() -> Result<(), jobs::Error> {
    let store = store::Store::open("memory:").await?;
    let jobs = Jobs::new(store.clone(), Clock::system(), Entropy::from_os());
    let ty = JobType::new("ship")?;
    jobs.set_type(&ty, TypeConfig::new(30_000)).await?;
    for number in 0..10 {
        place(&jobs, &ty, number).await?;
    }
    let stop = CancellationToken::new();
    let holder = Holder::new("node-1")?;
    let worker = Worker::new(jobs.clone(), ty.clone(), holder, WorkerOptions::default());
    let working = tokio::spawn(worker.run(stop.clone(), ship));
    while jobs.counts(&ty).await?.finished < 10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    let _ = working.await;
    let count = store.transact("count", |tx| async move { tx.get(&shipped()).await });
    assert_eq!(count.await?.as_deref(), Some(&10_i64.to_le_bytes()[..]));
    Ok(())
}
