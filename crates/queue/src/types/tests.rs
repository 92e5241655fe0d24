//! Settings of types, and what the queue knows of them.

use std::time::Duration;

use jobs::{Clock, Entropy, Jobs, Options};
use store::{Faults, Store};

use crate::{Claim, Error, NewJob, Queue, Settings, TypeName};

fn queue(store: &Store, seed: u64) -> Queue {
    let jobs = Jobs::new(store.clone(), Clock::standing(1_000), Entropy::seeded(seed));
    Queue::new(jobs, Options::default(), seal::Sealer::plain())
}

fn settings(limits: &str) -> Settings {
    serde_json::from_str(&format!(r#"{{"limits":{limits}}}"#)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn limits_are_those_of_the_settings_that_were_written_last() {
    let store = Store::open("memory:").await.unwrap();
    let (slow, _) = store.with_faults(Faults {
        delay: 1.0,
        delay_max: Duration::from_millis(10),
        ..Faults::default()
    });
    let (here, there) = (queue(&slow, 1), queue(&slow, 2));
    let name = TypeName::new("mail").unwrap();
    let [one, two] = [r#"{"a":1,"b":1}"#, r#"{"b":2,"c":2}"#].map(settings);
    for _ in 0..20 {
        let both = tokio::join!(here.put_type(&name, &one), there.put_type(&name, &two));
        assert!(both.0.is_ok() && both.1.is_ok());
        let ty = queue(&store, 3).find(&name).await.unwrap();
        let set = here.jobs().limits(&ty.ty).await.unwrap();
        assert_eq!(set, ty.settings.limits().unwrap());
    }
    here.remove_type(&name).await.unwrap();
    let set = here.jobs().limits(&name.job_type()).await.unwrap();
    assert!(set.is_empty());
}

#[tokio::test]
async fn a_higher_limit_lets_waiting_jobs_run() {
    let store = Store::open("memory:").await.unwrap();
    let queue = queue(&store, 1);
    let name = TypeName::new("mail").unwrap();
    let claim = async || {
        let ty = queue.find(&name).await.unwrap();
        let claim = Claim::new("w", 5, Duration::ZERO).unwrap();
        let claimed = queue.claim(&ty, &claim).await.unwrap();
        let count = claimed.jobs.len();
        claimed.sent();
        count
    };
    queue.put_type(&name, &settings("{}")).await.unwrap();
    let ty = queue.find(&name).await.unwrap();
    let job: NewJob = serde_json::from_str(r#"{"data":1,"key":"a|x"}"#).unwrap();
    let jobs = (0..3).map(|_| Ok(job.clone())).collect();
    queue.add(&ty, jobs, None).await.unwrap();
    assert_eq!((claim().await, claim().await), (1, 0));
    queue
        .put_type(&name, &settings(r#"{"a":2}"#))
        .await
        .unwrap();
    assert_eq!(claim().await, 1);
    // A limit that is removed is one job at a time.
    queue
        .put_type(&name, &settings(r#"{"b":0}"#))
        .await
        .unwrap();
    let job: NewJob = serde_json::from_str(r#"{"data":1,"key":"b"}"#).unwrap();
    queue.add(&ty, vec![Ok(job)], None).await.unwrap();
    assert_eq!(claim().await, 0);
    queue.put_type(&name, &settings("{}")).await.unwrap();
    assert_eq!(claim().await, 1);
}

/// The other node has the type in its cache.
#[tokio::test(start_paused = true)]
async fn a_type_is_removed_or_gets_a_job() {
    let store = Store::open("memory:").await.unwrap();
    let (slow, _) = store.with_faults(Faults {
        delay: 1.0,
        delay_max: Duration::from_millis(10),
        ..Faults::default()
    });
    let (here, there) = (queue(&slow, 1), queue(&slow, 2));
    let job: NewJob = serde_json::from_str(r#"{"data":1}"#).unwrap();
    let mut removed_types = 0;
    for nth in 0..40 {
        let name = TypeName::new(&format!("mail{nth}")).unwrap();
        here.put_type(&name, &settings("{}")).await.unwrap();
        let ty = there.find(&name).await.unwrap();
        let add = || there.add(&ty, vec![Ok(job.clone())], None);
        let remove = async {
            tokio::time::sleep(Duration::from_millis(nth)).await;
            here.remove_type(&name).await
        };
        let (removed, added) = tokio::join!(remove, add());
        let pending = here.jobs().counts(&ty.ty).await.unwrap().pending;
        match (removed, added) {
            (Ok(()), Err(Error::NoType(_))) => assert_eq!(pending, 0),
            (Err(Error::Conflict(_)), Ok(_)) => assert_eq!(pending, 1),
            both => panic!("{both:?}, and {pending} jobs"),
        }
        if pending == 0 {
            assert!(matches!(add().await, Err(Error::NoType(_))));
            removed_types += 1;
        }
    }
    assert!((1..40).contains(&removed_types), "{removed_types}");
}
