//! What is rare in requests about jobs: odd JSON, odd ids, explicit nulls, repeated runs of schedules.

use http::Method;
use crate::fixture::{Answer, User};
use crate::jobs::{fixture};

async fn send(user: &User<'_>, method: Method, path: &str, body: &str) -> Answer {
    let user = user.clone().with("content-type", "application/json");
    user.send(method, path, body.to_owned()).await
}

#[tokio::test]
async fn schedules_are_shown_with_the_data_that_was_sent() {
    let fixture = fixture().await;
    let root = fixture.root();
    let data = r#"{ "b":1.50, "a" : 1e400,"b":[ ],"x":"\ud800","n":12345678901234567890123 }"#;
    for name in ["odd", "plain"] {
        let data = if name == "odd" { data } else { "1" };
        let body = format!(r#"{{"type":"mail","job":{{"data":{data}}},"every_sec":5}}"#);
        let put = send(&root, Method::PUT, &format!("/_schedules/{name}"), &body).await;
        assert_eq!(put.status, 201, "{}", put.text);
    }
    for path in ["/_schedules/odd", "/_schedules"] {
        let shown = root.get(path).await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        assert!(
            shown.text.contains(&format!(r#""data":{data}"#)),
            "{}",
            shown.text
        );
    }
}
