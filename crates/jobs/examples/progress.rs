//! A long run that stores its progress, and stops when its job is cancelled or requested again.
//!
//! `cargo run --example progress`

use std::time::Duration;

use jobs::{
    Add, Clock, Entropy, Failure, Finish, Holder, JobId, JobType, Jobs, Task, TypeConfig, Worker,
    WorkerOptions,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
struct Copy {
    files: u32,
    copied: u32,
}

async fn copy(mut task: Task<Copy>) -> Result<Finish, Failure> {
    while task.data.copied < task.data.files {
        // Each step is idempotent: the next run starts from the last saved progress.
        tokio::time::sleep(Duration::from_millis(5)).await;
        task.data.copied += 1;
        // If the job was removed, the handler is dropped here.
        let held = task.save().await?;
        if held.again || task.superseded() {
            // Another run was requested, perhaps with new data.
            return Ok(Finish::again(0));
        }
    }
    Ok(Finish::done())
}

#[tokio::main]
async fn main() -> Result<(), jobs::Error> {
    let store = store::Store::open("memory:").await?;
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let ty = JobType::new("copy")?;
    jobs.set_type(&ty, TypeConfig::new(30_000)).await?;
    let id = JobId::try_from("holiday")?;
    let data = Copy {
        files: 1_000_000,
        copied: 0,
    };
    jobs.add(&ty, Add::new(id.clone(), jobs::encode(&data)?))
        .await?;

    let stop = CancellationToken::new();
    let holder = Holder::new("node-1")?;
    let worker = Worker::new(jobs.clone(), ty.clone(), holder, WorkerOptions::default());
    let working = tokio::spawn(worker.run(stop.clone(), copy));

    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let Some((_, data)) = jobs.get(&ty, &id).await? else {
            continue;
        };
        if serde_json::from_slice::<Copy>(&data).is_ok_and(|data| data.copied > 3) {
            break;
        }
    }
    // The current run is notified at once.
    jobs.remove(&ty, &id).await?;
    stop.cancel();
    let _ = working.await;
    assert!(jobs.get(&ty, &id).await?.is_none());
    Ok(())
}
