//! The timeout that workers are told after it has changed.

use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fixture::User;
use crate::jobs::fixture_with;

async fn timeout_sec(root: &User<'_>, seconds: u32) {
    let settings = json!({"timeout_sec": seconds});
    root.put("/_jobs/mail", &settings).await.gives(200);
}

async fn asked(root: &User<'_>, request: &str, body: &Value) -> Value {
    let path = format!("/_jobs/mail/{request}");
    root.post(&path, body).await.gives(200)
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_tells_the_timeout() {
    let fixture = fixture_with(json!({"timeout_sec": 300})).await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let claimed = asked(&root, "_claim", &json!({"worker": "w"})).await;
    assert_eq!(claimed["timeout_sec"], 300);
    let job = &claimed["jobs"][0];
    for seconds in [30, 60] {
        timeout_sec(&root, seconds).await;
        for progress in [json!({}), json!({"progress": seconds})] {
            let mut beat = json!({"id": job["id"], "lock": job["lock"]});
            let members = beat.as_object_mut().unwrap();
            members.extend(progress.as_object().unwrap().clone());
            let beaten = asked(&root, "_beat", &json!({"jobs": [beat]})).await;
            assert_eq!(beaten["jobs"][0]["status"], "held");
            assert_eq!(beaten["timeout_sec"], seconds, "{beaten}");
        }
    }
    let none = asked(&root, "_beat", &json!({"jobs": []})).await;
    assert_eq!(none["timeout_sec"], 60);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waited_tells_the_new_timeout() {
    let fixture = fixture_with(json!({"timeout_sec": 300})).await;
    let root = fixture.root();
    let claim = json!({"worker": "w", "wait_sec": 10});
    let finish = json!({"jobs": [], "claim": 1, "worker": "w", "wait_sec": 10});
    let mut seconds = 300;
    for (request, body) in [("_claim", claim), ("_finish", finish)] {
        for there in [true, false] {
            let mut waits = pin!(asked(&root, request, &body));
            timeout(Duration::from_secs(5), &mut waits)
                .await
                .unwrap_err();
            seconds -= 30;
            timeout_sec(&root, seconds).await;
            if there {
                root.post("/_jobs/mail", &json!({"data": 1}))
                    .await
                    .gives(201);
            }
            let claimed = waits.await;
            let jobs = claimed["jobs"].as_array().unwrap();
            assert_eq!(jobs.len(), usize::from(there));
            assert_eq!(claimed["timeout_sec"], seconds, "{request}: {claimed}");
        }
    }
}
