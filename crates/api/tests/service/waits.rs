//! Who may wait when many do.

use api::Options;
use serde_json::json;
use tokio::net::TcpListener;

use crate::fixture::{Fixture, Setting};
use crate::jobs::claim;
use crate::tokens::token;

/// A service with a job type, in which so many requests may wait.
pub(crate) async fn fixture(waits_max: usize) -> Fixture {
    let options = Options {
        waits_max,
        ..Options::default()
    };
    let fixture = Fixture::with(options, Setting::default()).await;
    let made = fixture.root().put("/_jobs/mail", &json!({})).await;
    made.gives(201);
    fixture
}

#[tokio::test]
async fn one_caller_cannot_take_all_waits() {
    let fixture = fixture(4).await;
    let root = fixture.root();
    let new = json!({"rights": ["work"], "types": ["mail"]});
    let greedy = token(&fixture, "greedy", new.clone()).await.1;
    let modest = token(&fixture, "modest", new).await.1;
    let body = json!({"worker": "w", "wait_sec": 60});
    let others = async {
        let refused = greedy.post("/_jobs/mail/_claim", &body).await;
        assert_eq!(refused.header("retry-after"), "1");
        refused.gives(503);
        let due = async || {
            // What does not wait is not refused.
            assert_eq!(claim(&greedy, 1, 0).await.len(), 0);
            for n in 0..4 {
                let job = json!({"id": format!("{n}"), "data": 1});
                root.post("/_jobs/mail", &job).await.gives(201);
            }
        };
        let (root, modest, ()) =
            tokio::join!(biased; claim(&root, 1, 60), claim(&modest, 1, 60), due());
        assert_eq!((root.len(), modest.len()), (1, 1));
    };
    let (first, second, ()) =
        tokio::join!(biased; claim(&greedy, 1, 60), claim(&greedy, 1, 60), others);
    assert_eq!((first.len(), second.len()), (1, 1));
    // The share is free again.
    let job = json!({"id": "last", "data": 1});
    root.post("/_jobs/mail", &job).await.gives(201);
    assert_eq!(claim(&greedy, 1, 60).await.len(), 1);
}

#[tokio::test]
async fn claims_that_do_not_wait_need_no_permit_to_wait() {
    let fixture = fixture(1).await;
    let root = fixture.root();
    let others = async {
        assert_eq!(claim(&root, 1, 0).await.len(), 0);
        root.post("/_jobs/mail", &json!({"data": 1}))
            .await
            .gives(201);
    };
    let (claimed, ()) = tokio::join!(biased; claim(&root, 1, 60), others);
    assert_eq!(claimed.len(), 1);
}

#[tokio::test]
async fn forwarded_requests_take_no_waits_of_claims() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = Options {
        waits_max: 1,
        ..Options::default()
    };
    let setting = Setting {
        upstream: Some(format!("http://{}", mute.local_addr().unwrap())),
        ..Setting::default()
    };
    let fixture = Fixture::with(options, setting).await;
    let root = fixture.root();
    root.put("/_jobs/mail", &json!({})).await.gives(201);
    let claims = async {
        assert_eq!(fixture.anonymous().get("/b").await.status, 503);
        let add = async {
            root.post("/_jobs/mail", &json!({"data": 1}))
                .await
                .gives(201);
        };
        let (claimed, ()) = tokio::join!(biased; claim(&root, 1, 60), add);
        assert_eq!(claimed.len(), 1);
    };
    let anonymous = fixture.anonymous();
    tokio::select! {
        biased;
        answer = anonymous.get("/a") => panic!("{answer:?}"),
        () = claims => {}
    }
}
