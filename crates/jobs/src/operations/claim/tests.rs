use std::collections::BTreeSet;

use store::Store;

use super::candidates::{Candidate, choose};
use crate::model::keys::Position;
use crate::{Class, Clock, Entropy, Holder, JobId, JobType, Jobs};

/// Every candidate is chosen at some time, even one after whole blocks of others, like a scheduled
/// job behind a backlog of ready ones.
#[tokio::test]
async fn every_candidate_has_its_turn() {
    let store = Store::open("memory:").await.unwrap();
    let jobs = Jobs::new(store, Clock::simulated(1), Entropy::seeded(1));
    let (ty, me) = (JobType::new("t").unwrap(), Holder::new("me").unwrap());
    for (count, wanted) in [(81, 16), (80, 16), (17, 2), (16, 16), (3, 16)] {
        let mut taken = BTreeSet::new();
        for _ in 0..200 {
            let candidates = (0..count).map(|number| Candidate {
                id: JobId::new(vec![number]).unwrap(),
                position: Position::Timed(Class::Normal, None, 1),
                since_ms: 0,
            });
            let chosen = choose(
                candidates.collect(),
                wanted,
                &jobs.claim(&ty, &me, wanted),
                1,
            )
            .0;
            assert_eq!(chosen.len(), wanted.min(usize::from(count)));
            taken.extend(chosen.into_iter().map(|candidate| candidate.id));
        }
        assert_eq!(taken.len(), usize::from(count), "{wanted} of {count}");
    }
}
