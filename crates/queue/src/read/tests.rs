//! What readers hold while they follow jobs.

use std::time::Duration;

use jobs::{Clock, Entropy, Jobs, Notice, Options, State};
use seal::Sealer;
use store::Store;

use crate::{Beat, Claim, Queue, Raw, Settings, TypeName};

/// A feed follows up to 100 jobs, each with a megabyte or more of data.
#[tokio::test]
async fn data_of_followed_jobs_is_not_held() {
    let store = Store::open("memory:").await.unwrap();
    let jobs = Jobs::new(store, Clock::standing(1_000), Entropy::seeded(1));
    let queue = Queue::new(jobs, Options::default(), Sealer::plain());
    let name = TypeName::new("mail").unwrap();
    queue.put_type(&name, &Settings::default()).await.unwrap();
    let ty = queue.find(&name).await.unwrap();
    let job = serde_json::from_str(r#"{"id":"1","data":"much"}"#).unwrap();
    queue.add(&ty, vec![Ok(job)], None).await.unwrap()[0]
        .as_ref()
        .unwrap();
    let claim = Claim::new("w", 1, Duration::ZERO).unwrap();
    let claimed = queue.claim(&ty, &claim).await.unwrap();
    let mut following = queue.follow(&ty, "1").await.unwrap();
    let beat = format!(
        r#"{{"id":"1","lock":"{}","progress":50}}"#,
        claimed.jobs[0].lock
    );
    let beat: Beat = serde_json::from_str(&beat).unwrap();
    for progress in [None, Some("50")] {
        let (info, envelope) = if progress.is_none() {
            following.first().unwrap()
        } else {
            queue.beat(&ty, std::slice::from_ref(&beat)).await.unwrap();
            following.next().await.unwrap().unwrap()
        };
        assert_eq!(info.state, State::Running);
        let envelope = envelope.unwrap();
        let json = |raw: &Raw| serde_json::to_string(raw).unwrap();
        assert_eq!(json(&envelope.data), r#""much""#);
        assert_eq!(envelope.progress.as_ref().map(json).as_deref(), progress);
        let held = following.subscription.now();
        assert!(matches!(held, Notice::Job(_, data) if data.is_empty()));
    }
    claimed.sent();
}
