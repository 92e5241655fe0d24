//! A child process that runs jobs, with all services of a node.

use std::time::Duration;

use jobs::{Accepted, Acceptor, Error, Finish, Held, Holder, Jobs, Maintenance, Options};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::work::{effect_key, expected_data, mail, runs, runs_wanted};

const WORKERS: usize = 4;

pub(crate) async fn run(jobs: Jobs, stop: CancellationToken, done: fn(&str)) {
    let options = Options {
        activity_monitor_max_jitter_msec: 50,
        type_check_period_msec: 500,
        type_check_max_jitter_msec: 50,
        ..Options::default()
    };
    let mut tasks = JoinSet::new();
    let maintenance = Maintenance::new(jobs.clone(), options).serve(mail());
    tasks.spawn(maintenance.run(stop.clone()));
    let holder = Holder::new("processor").unwrap();
    let (acceptor, handle) = Acceptor::new(jobs.clone(), mail(), holder);
    tasks.spawn(acceptor.run(stop.clone()));
    for _ in 0..WORKERS {
        let (jobs, handle) = (jobs.clone(), handle.clone());
        tasks.spawn(async move {
            loop {
                match handle.accept(2, Duration::from_mins(1)).await {
                    Ok(accepted) => {
                        for accepted in accepted {
                            work(&jobs, &accepted, done).await;
                        }
                    }
                    Err(Error::Stopped) => return,
                    Err(error) => panic!("accept: {error}"),
                }
            }
        });
    }
    drop(handle);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Counts a run of a job in the transaction that ends it.
async fn work(jobs: &Jobs, accepted: &Accepted, done: fn(&str)) {
    let id = accepted.job.id.to_string();
    assert!(accepted.data == expected_data(&id), "data of {id}");
    let (op, key, job) = (jobs.op(), effect_key(&id), &accepted.job);
    let wanted = runs_wanted(&id);
    let ended = (jobs.store()).transact("work", |tx| {
        let key = &key;
        async move {
            let before = runs(tx.get(key).await?.as_deref());
            let last = before + 1 >= wanted;
            let finish = if last {
                Finish::done()
            } else {
                Finish::again(0)
            };
            let Held { repeated, .. } = jobs.finish_in(&tx, &op, job, finish).await?;
            if !repeated {
                tx.set(key, &(before + 1).to_be_bytes());
            }
            Ok(last)
        }
    });
    match ended.await {
        Ok(true) => done(&id),
        // It runs again, or the lock was lost and its next holder finishes it.
        Ok(false) | Err(Error::Halt) => {}
        // Nor is it ours when the store could not be reached.
        Err(error) if error.is_retryable() => {}
        Err(error) => panic!("finish {id}: {error}"),
    }
}
