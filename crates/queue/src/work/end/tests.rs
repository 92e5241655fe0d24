//! A heartbeat while a run ends.

use std::time::Duration;

use crate::work::tests::mail;
use crate::{Claim, lock};

/// Its progress is committed after the end has read the job.
#[tokio::test]
async fn progress_reported_while_a_run_ends_is_kept() {
    let (queue, ty) = &mail().await;
    let claim = Claim::new("w", 1, Duration::ZERO).unwrap();
    for claims in [false, true] {
        for (nth, outcome) in ["failed", "again"].into_iter().enumerate() {
            let job = serde_json::from_str(r#"{"id":"a","data":1}"#).unwrap();
            assert!(queue.add(ty, vec![Ok(job)], None).await.unwrap()[0].is_ok());
            let claimed = queue.claim(ty, &claim).await.unwrap();
            let lock = &claimed.jobs[0].lock.clone();
            claimed.sent();
            let end = format!(
                r#"{{"id":"a","lock":"{lock}","outcome":"{outcome}","error":{nth},"delay_sec":60}}"#
            );
            let end = serde_json::from_str(&end).unwrap();
            let (job, has_more) = lock::decode(&ty.ty, "a", lock).unwrap();
            let runs = vec![queue.end(ty, job, has_more, end).await.unwrap()];
            let beat = format!(r#"{{"id":"a","lock":"{lock}","progress":"{claims} {outcome}"}}"#);
            let beat = serde_json::from_str(&beat).unwrap();
            assert!(
                queue.beat(ty, &[beat]).await.unwrap().0[0]
                    .refused
                    .is_none()
            );
            let held = if claims {
                let line = queue.enter(ty).unwrap();
                let ended = queue.finish_and_claim(ty, runs, &claim, &line).await;
                ended.unwrap().0
            } else {
                queue.end_many(ty, &runs).await.unwrap()
            };
            assert!(held[0].as_ref().unwrap().again);
            let shown = queue.show(ty, "a").await.unwrap();
            let envelope = shown.envelope.unwrap().unwrap();
            let text = |raw| serde_json::to_string(&raw).unwrap();
            assert_eq!(text(envelope.progress), format!("\"{claims} {outcome}\""));
            assert_eq!(text(envelope.error), nth.to_string());
        }
    }
}
