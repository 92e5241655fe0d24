//! The schemas of `/_openapi.json` for jobs, schedules and tokens say what the service reads and sends.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use crate::fixture::User;
use crate::jobs::fixture;

/// A request with an unknown member, and where it is in the schema of the body.
const UNKNOWN: &[(&str, &str, &str, &str, &str)] = &[
    ("put", "/_jobs/{type}", "/_jobs/mail", r#"{"zzz":1}"#, ""),
    (
        "put",
        "/_jobs/{type}",
        "/_jobs/mail",
        r#"{"retry":{"zzz":1}}"#,
        "/properties/retry",
    ),
    (
        "put",
        "/_jobs/{type}",
        "/_jobs/mail",
        r#"{"roles":{"zzz":1}}"#,
        "/properties/roles",
    ),
    (
        "post",
        "/_jobs/{type}",
        "/_jobs/mail",
        r#"{"zzz":1}"#,
        "/anyOf/0",
    ),
    (
        "post",
        "/_jobs/{type}",
        "/_jobs/mail",
        r#"{"jobs":[],"zzz":1}"#,
        "/anyOf/1",
    ),
    (
        "post",
        "/_jobs/{type}/_claim",
        "/_jobs/mail/_claim",
        r#"{"zzz":1}"#,
        "",
    ),
    (
        "post",
        "/_jobs/{type}/_beat",
        "/_jobs/mail/_beat",
        r#"{"zzz":1}"#,
        "",
    ),
    (
        "post",
        "/_jobs/{type}/_beat",
        "/_jobs/mail/_beat",
        r#"{"jobs":[{"zzz":1}]}"#,
        "/properties/jobs/items",
    ),
    (
        "post",
        "/_jobs/{type}/_finish",
        "/_jobs/mail/_finish",
        r#"{"zzz":1}"#,
        "",
    ),
    (
        "post",
        "/_jobs/{type}/_finish",
        "/_jobs/mail/_finish",
        r#"{"jobs":[{"zzz":1}]}"#,
        "/properties/jobs/items",
    ),
    (
        "post",
        "/_jobs/{type}/_retry",
        "/_jobs/mail/_retry",
        r#"{"zzz":1}"#,
        "",
    ),
    (
        "put",
        "/_schedules/{schedule}",
        "/_schedules/s",
        r#"{"zzz":1}"#,
        "",
    ),
    (
        "put",
        "/_schedules/{schedule}",
        "/_schedules/s",
        r#"{"job":{"zzz":1}}"#,
        "/properties/job",
    ),
    ("post", "/_tokens", "/_tokens", r#"{"zzz":1}"#, ""),
];

#[tokio::test]
async fn schemas_of_bodies_have_the_members_that_are_read() {
    let fixture = fixture().await;
    let root = fixture.root();
    let document = root.get("/_openapi.json").await.gives(200);
    let json = root.with("content-type", "application/json");
    for (method, path, example, body, at) in UNKNOWN {
        let sent: Method = method.to_uppercase().parse().unwrap();
        let refused = json.send(sent, example, *body).await.gives(400);
        // It names the unknown member, and then those that there are.
        let reason = refused["reason"].as_str().unwrap();
        let (_, known) = reason.split_once("; use ").unwrap();
        let known: BTreeSet<&str> = known.split('`').skip(1).step_by(2).collect();
        let body_schema = &document["paths"][path][method]["requestBody"]["content"];
        let schema = &body_schema["application/json"]["schema"];
        let properties = schema.pointer(at).unwrap()["properties"].as_object();
        let listed: BTreeSet<&str> = properties.unwrap().keys().map(String::as_str).collect();
        assert_eq!(listed, known, "{method} {path} {at}: {reason}");
    }
}

/// Checks a response against its schema, and notes the members that were there.
struct Checker<'a> {
    document: Value,
    root: User<'a>,
    seen: BTreeSet<String>,
}

impl Checker<'_> {
    async fn ask(&mut self, method: &str, path: &str, example: &str, body: Value) -> Value {
        let sent: Method = method.to_uppercase().parse().unwrap();
        let json = self.root.clone().with("content-type", "application/json");
        let answer = json.send(sent, example, body.to_string()).await;
        let status = answer.status.as_str();
        let responses = &self.document["paths"][path][method]["responses"];
        let schema = &responses[status]["content"]["application/json"]["schema"];
        assert!(
            schema.is_object(),
            "{method} {path} has no {status}: {}",
            answer.text
        );
        let (schema, at) = (schema.clone(), format!("{method} {path} {status}"));
        self.check(&schema, &answer.json(), &at)
            .unwrap_or_else(|why| panic!("{why}: {}", answer.text));
        answer.json()
    }

    fn check(&mut self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        if let Some(any) = schema["anyOf"].as_array() {
            let mut fits = any.iter().map(|one| self.check(one, value, at));
            return fits
                .find(Result::is_ok)
                .unwrap_or_else(|| Err(format!("{at} fits no alternative")));
        }
        let one = std::slice::from_ref(&schema["type"]);
        let types = schema["type"].as_array().map_or(one, Vec::as_slice);
        let fits = |ty: &Value| match ty.as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_u64(),
            Some("number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            Some("null") => value.is_null(),
            _ => true,
        };
        let listed = schema["enum"].as_array();
        let is_const = schema.get("const").is_none_or(|only| only == value);
        if !types.iter().any(fits) || !is_const || listed.is_some_and(|all| !all.contains(value)) {
            return Err(format!("{at} is {value}"));
        }
        for (nth, item) in value.as_array().into_iter().flatten().enumerate() {
            self.check(&schema["items"], item, &format!("{at}[{nth}]"))?;
        }
        let (Some(properties), Some(members)) =
            (schema["properties"].as_object(), value.as_object())
        else {
            return Ok(());
        };
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            if !members.contains_key(name) {
                return Err(format!("{at} lacks {name}"));
            }
        }
        for (name, member) in members {
            let Some(property) = properties.get(name) else {
                return Err(format!("{at} has {name}"));
            };
            self.seen.insert(name.clone());
            self.check(property, member, &format!("{at}.{name}"))?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn responses_are_as_their_schemas_say() {
    let fixture = fixture().await;
    let root = fixture.root();
    let document = root.get("/_openapi.json").await.gives(200);
    let seen = BTreeSet::new();
    let mut checker = Checker {
        document,
        root,
        seen,
    };
    let ty = "/_jobs/{type}";
    let settings = json!({
        "shares": {"a": 5}, "limits": {"x": 1, "y": {"max": 1, "per_sec": 2}}, "retry": {"limit": 0}, "max_pending": 9,
    });
    checker.ask("put", ty, "/_jobs/mail", settings).await;
    checker.ask("put", ty, "/_jobs/news", json!({})).await;
    let one = json!({"id": "a", "data": 1, "tenant": "a", "key": "x"});
    checker.ask("post", ty, "/_jobs/mail", one).await;
    let many = json!({"jobs": [{"id": "b", "data": 2, "key": "x"}, {"id": "_", "data": 2}]});
    checker.ask("post", ty, "/_jobs/mail", many).await;
    let claim = json!({"worker": "w", "count": 2});
    let path = "/_jobs/{type}/_claim";
    let claimed = checker.ask("post", path, "/_jobs/mail/_claim", claim).await;
    let job = &claimed["jobs"][0];
    let beat = json!({"jobs": [{"id": job["id"], "lock": job["lock"], "progress": 1}]});
    let path = "/_jobs/{type}/_beat";
    checker.ask("post", path, "/_jobs/mail/_beat", beat).await;
    let deep = (0..101).fold(Value::Null, |inner, _| json!([inner]));
    let beat = json!({"jobs": [{"id": job["id"], "lock": job["lock"], "progress": deep}]});
    checker.ask("post", path, "/_jobs/mail/_beat", beat).await;
    for path in [ty, "/_jobs/{type}/_type", "/_jobs"] {
        let example = path.replace("{type}", "mail");
        checker.ask("get", path, &example, Value::Null).await;
    }
    let end = json!({"id": job["id"], "lock": job["lock"], "outcome": "failed", "error": "no"});
    let end = json!({"jobs": [end], "claim": 1, "worker": "w"});
    let path = "/_jobs/{type}/_finish";
    checker.ask("post", path, "/_jobs/mail/_finish", end).await;
    let path = "/_jobs/{type}/_failures";
    let example = "/_jobs/mail/_failures";
    checker.ask("get", path, example, Value::Null).await;
    let id = job["id"].as_str().unwrap();
    reading_and_retrying(&mut checker, id).await;
    schedules_and_tokens(&mut checker).await;
    for name in [
        "progress",
        "waits_for",
        "settings",
        "attempts",
        "zone",
        "cron",
        "every_sec",
        "shares",
        "results",
    ] {
        assert!(checker.seen.contains(name), "{name} was in no response");
    }
}

async fn reading_and_retrying(checker: &mut Checker<'_>, id: &str) {
    let ty = "/_jobs/{type}";
    let example = format!("/_jobs/mail/{id}");
    let path = "/_jobs/{type}/{id}";
    checker.ask("get", path, &example, Value::Null).await;
    let wait = format!("{example}/_wait?timeout_sec=0");
    let path = "/_jobs/{type}/{id}/_wait";
    checker.ask("get", path, &wait, Value::Null).await;
    let listed = "/_jobs/mail?data=true";
    checker.ask("get", ty, listed, Value::Null).await;
    let path = "/_jobs/{type}/_retry";
    let dead = json!({"state": "dead"});
    checker.ask("post", path, "/_jobs/mail/_retry", dead).await;
    for part in ["_pause", "_resume"] {
        let path = format!("/_jobs/{{type}}/{part}");
        let example = format!("/_jobs/mail/{part}");
        checker.ask("post", &path, &example, Value::Null).await;
    }
    let path = "/_jobs/{type}/{id}/_retry";
    let retry = format!("{example}/_retry");
    checker.ask("post", path, &retry, Value::Null).await;
    let path = "/_jobs/{type}/{id}";
    checker.ask("delete", path, &example, Value::Null).await;
    checker.ask("delete", ty, "/_jobs/news", Value::Null).await;
}

async fn schedules_and_tokens(checker: &mut Checker<'_>) {
    let (path, example) = ("/_schedules/{schedule}", "/_schedules/s");
    let schedule = json!({"type": "mail", "job": {"data": 1}, "cron": "@daily", "zone": "UTC"});
    checker.ask("put", path, example, schedule).await;
    let schedule = json!({"type": "mail", "job": {"data": 1, "id": "c"}, "every_sec": 60});
    checker.ask("put", path, "/_schedules/t", schedule).await;
    checker.ask("get", path, example, Value::Null).await;
    checker
        .ask("get", "/_schedules", "/_schedules", Value::Null)
        .await;
    let run = "/_schedules/{schedule}/_run";
    checker
        .ask("post", run, "/_schedules/s/_run", Value::Null)
        .await;
    checker.ask("delete", path, example, Value::Null).await;
    for new in [
        json!({"name": "a", "rights": ["read"]}),
        json!({"name": "b", "rights": ["work"], "types": ["mail"], "expires_sec": 9}),
    ] {
        checker.ask("post", "/_tokens", "/_tokens", new).await;
    }
    checker
        .ask("get", "/_tokens", "/_tokens", Value::Null)
        .await;
    checker
        .ask("delete", "/_tokens/{token}", "/_tokens/a", Value::Null)
        .await;
}
