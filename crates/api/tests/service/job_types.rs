//! Types of jobs that end, and jobs that end for good.

use serde_json::json;

use crate::jobs::{claim, finish, fixture, fixture_with};

#[tokio::test]
async fn a_type_without_jobs_can_be_removed() {
    let fixture = fixture_with(json!({"limits": {"a": 1}})).await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1, "key": "a"}))
        .await
        .gives(201);
    let refused = root.delete("/_jobs/mail").await;
    refused.refuses(
        409,
        "conflict",
        "`mail` has 1 job; remove it first, or wait until it has finished and expired",
    );
    root.post("/_jobs/mail", &json!({"id": "b", "data": 1}))
        .await
        .gives(201);
    root.delete("/_jobs/mail").await.refuses(
        409,
        "conflict",
        "`mail` has 2 jobs; remove them first, or wait until they have finished and expired",
    );
    root.delete("/_jobs/mail/b").await.gives(200);
    root.delete("/_jobs/mail/a").await.gives(200);
    root.delete("/_jobs/mail").await.gives(200);
    assert_eq!(root.get("/_jobs/mail/_type").await.status, 404);
    assert_eq!(root.delete("/_jobs/mail").await.status, 404);
    let listed = root.get("/_jobs").await.gives(200);
    assert!(!listed.to_string().contains("mail"), "{listed}");
    let job = json!({"data": 1});
    assert_eq!(root.post("/_jobs/mail", &job).await.status, 404);
    // Made again, it begins anew.
    root.put("/_jobs/mail", &json!({})).await.gives(201);
    root.post("/_jobs/mail", &job).await.gives(201);
}

#[tokio::test]
async fn own_types_are_kept_from_users() {
    let fixture = fixture().await;
    let root = fixture.root();
    let types = [
        rules::deliver::JOB_TYPE,
        rules::rule::JOB_TYPE,
        rules::source::FEEDS,
        scheduler::JOB_TYPE,
    ];
    let registered = fixture.queue.own_types().await.unwrap();
    let registered = registered.iter().map(|ty| ty.name.as_str());
    let schedules = queue::schedules_type();
    for name in registered.chain(types).chain([schedules.as_str()]) {
        assert!(queue::OWN_TYPES.contains(&name), "{name}");
    }
    for name in queue::OWN_TYPES {
        let path = format!("/_jobs/{name}");
        let token = json!({"name": "a", "rights": ["work"], "types": ["mail", name]});
        let schedule = json!({"type": name, "job": {"data": 1}, "every_sec": 60});
        for answer in [
            root.put(&path, &json!({})).await,
            root.post("/_tokens", &token).await,
        ] {
            let reason =
                format!("`{name}` is a job type of the service itself; choose another name");
            answer.refuses(400, "bad_request", &reason);
        }
        for answer in [
            root.post(&path, &json!({"data": 1})).await,
            root.post(&format!("{path}/_claim"), &json!({"worker": "w"}))
                .await,
            root.post(&format!("{path}/_pause"), &json!({})).await,
            root.delete(&path).await,
            root.put("/_schedules/s", &schedule).await,
        ] {
            let reason = answer.gives(400)["reason"].to_string();
            let advice = format!("`{name}` is a job type of the service itself: use ");
            assert!(reason.contains(&advice), "{reason}");
        }
    }
    let reason = "`git` is a job type of the service itself: use `davenport-git queue` for its jobs, and another name for yours";
    let answer = root.get("/_jobs/git").await;
    answer.refuses(400, "bad_request", reason);
}

#[tokio::test]
async fn a_maximum_of_no_pending_jobs_is_refused() {
    let fixture = fixture().await;
    let put = fixture
        .root()
        .put("/_jobs/mail", &json!({"max_pending": 0}))
        .await;
    put.refuses(400, "bad_request", "`max_pending` must be at least 1");
}

#[tokio::test]
async fn a_run_that_failed_for_good_is_not_retried() {
    let fixture = fixture().await;
    let root = fixture.root();
    root.post("/_jobs/mail", &json!({"id": "a", "data": 1}))
        .await
        .gives(201);
    let job = claim(&root, 1, 0).await.remove(0);
    let end = json!({"outcome": "failed", "error": "no such user", "retry": false});
    assert_eq!(finish(&root, &job, end).await.0, "ok");
    let shown = root.get("/_jobs/mail/a").await.gives(200);
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&json!("dead"), &json!("no such user"))
    );
}
