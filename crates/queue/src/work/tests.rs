//! Ends of many runs with much data.

use std::sync::Arc;
use std::time::Duration;

use jobs::{Clock, Entropy, Jobs, Options, State};
use seal::Sealer;
use store::Store;

use crate::{Claim, Ended, Error, Queue, Settings, Type, TypeName, lock};

const JOBS: usize = 20;

/// A queue with a type.
pub(super) async fn mail() -> (Queue, Arc<Type>) {
    let store = Store::open("memory:").await.unwrap();
    let jobs = Jobs::new(store, Clock::simulated(1_000_000), Entropy::seeded(1));
    let queue = Queue::new(jobs, Options::default(), Sealer::plain());
    let name = TypeName::new("mail").unwrap();
    queue.put_type(&name, &Settings::default()).await.unwrap();
    let ty = queue.find(&name).await.unwrap();
    (queue, ty)
}

/// A request for 500 jobs must not hold the data of all of them, so what is behind a part is not read before it has ended.
#[tokio::test]
async fn runs_end_in_parts_by_their_data() {
    let (queue, ty) = &mail().await;
    for nth in 0..JOBS {
        let job = format!(r#"{{"id":"{nth:02}","data":"{}"}}"#, "x".repeat(300_000));
        let job = serde_json::from_str(&job).unwrap();
        assert!(queue.add(ty, vec![Ok(job)], None).await.unwrap()[0].is_ok());
    }
    let mut given: Vec<(String, String)> = Vec::new();
    while given.len() < JOBS {
        let claim = Claim::new("w", JOBS, Duration::ZERO).unwrap();
        let claimed = queue.claim(ty, &claim).await.unwrap();
        let locks = claimed.jobs.iter();
        given.extend(locks.map(|job| (job.id.clone(), job.lock.clone())));
        claimed.sent();
    }
    given.sort();
    let (id, lock) = &given[JOBS - 1];
    let last = &lock::decode(&ty.ty, id, lock).unwrap().0;
    let (op, store) = (&queue.jobs().op(), queue.jobs().store());
    let _ = (store.transact("damage", |tx| async move {
        let damaged = Some("damaged".into());
        queue.jobs().beat_with_in(&tx, op, last, damaged).await
    }))
    .await
    .unwrap();
    let ends = given.iter().map(|(id, lock)| {
        let end = format!(
            r#"{{"id":"{id}","lock":"{lock}","outcome":"failed","error":"no","retry":false}}"#
        );
        serde_json::from_str(&end).unwrap()
    });
    let ends: Vec<Ended> = ends.collect();
    let refused = queue.finish(ty, ends, None).await.map(|_| ());
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    let state = async |nth: usize| {
        let shown = queue.show(ty, &given[nth].0).await.unwrap();
        shown.info.state
    };
    assert_eq!(state(0).await, State::Dead);
    assert_eq!(state(JOBS - 1).await, State::Running);
}
