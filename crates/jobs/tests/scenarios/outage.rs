//! An outage of the store right after a claim whose outcome is unknown.

use std::time::Duration;

use jobs::{Acceptor, Add, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, TypeConfig};
use store::{CommitFate, Faults, Store};
use tokio_util::sync::CancellationToken;

/// A worker that is stopped would wait for it as long as the outage lasts.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_is_answered_during_an_outage() {
    let store = Store::open("memory:").await.unwrap();
    let (store, control) = store.with_faults(Faults::default());
    let jobs = Jobs::new(store, Clock::simulated(0), Entropy::seeded(1));
    let ty = JobType::new("t").unwrap();
    jobs.set_type(&ty, TypeConfig::new(20_000)).await.unwrap();
    for id in ["a", "b"] {
        let add = Add::new(JobId::new(id).unwrap(), "");
        jobs.add(&ty, add).await.unwrap();
    }
    let (acceptor, handle) = Acceptor::new(jobs.clone(), ty, Holder::new("me").unwrap());
    tokio::spawn(acceptor.run(CancellationToken::new()));
    let minute = Duration::from_mins(1);
    let run = handle.accept(1, minute).await.unwrap().remove(0);
    control.set_next_commit(CommitFate::UnknownLost);
    let other = handle.clone();
    let claiming = tokio::spawn(async move { other.accept(1, minute).await });
    // Until that commit has been sent.
    while control.set_next_commit(CommitFate::Normal) != CommitFate::Normal {
        control.set_next_commit(CommitFate::UnknownLost);
        tokio::task::yield_now().await;
    }
    control.set_outage(true);
    tokio::time::sleep(minute * 2).await;
    claiming.abort();
    let ended = handle.finish(&run.job, Finish::done());
    let ended = tokio::time::timeout(minute * 2, ended).await;
    assert!(ended.unwrap().unwrap_err().is_retryable());
}
