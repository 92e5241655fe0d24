//! A worker: adds a few jobs to an in-memory queue and runs them.
//!
//! `cargo run --example worker`

use std::time::Duration;

use jobs::{
    Add, Clock, Entropy, Failure, Finish, Holder, JobType, Jobs, Maintenance, Options, State, Task,
    TypeConfig, Worker, WorkerOptions,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

async fn send(task: Task<Mail>) -> Result<Finish, Failure> {
    if !task.data.to.contains('@') {
        return Err(Failure::Dead(format!("{} is not an address", task.data.to)));
    }
    // An error passed on with `?` is retried later.
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(Finish::done())
}

#[tokio::main]
async fn main() -> Result<(), jobs::Error> {
    let store = store::Store::open("memory:").await?;
    let jobs = Jobs::new(store, Clock::system(), Entropy::from_os());
    let mail = JobType::new("mail")?;
    jobs.set_type(&mail, TypeConfig::new(30_000)).await?;
    for to in ["anna@example.org", "bob@example.org", "nobody"] {
        let data = jobs::encode(&Mail { to: to.to_owned() })?;
        jobs.add(&mail, Add::new(to.try_into()?, data)).await?;
    }

    let stop = CancellationToken::new();
    let maintenance = Maintenance::new(jobs.clone(), Options::default()).serve(mail.clone());
    let maintaining = tokio::spawn(maintenance.run(stop.clone()));
    let holder = Holder::new("node-1")?;
    let worker = Worker::new(jobs.clone(), mail.clone(), holder, WorkerOptions::default());
    let working = tokio::spawn(worker.run(stop.clone(), send));

    while jobs.counts(&mail).await?.finished < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    let _ = tokio::join!(maintaining, working);
    let info = jobs.info(&mail, &"nobody".try_into()?).await?;
    assert_eq!(info.map(|info| info.state), Some(State::Finished));
    Ok(())
}
