//! No password, token or key shows up anywhere.

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};

use couch::{
    ChangesRequest, Database, Endpoint, NetworkOptions, RequestOptions, Schemes, WantedRev,
};
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::fake::{Fake, Seen, Step, answer, impatient, json, network_with};

/// Awkward passwords; no four characters of one occur in ordinary messages.
const PASSWORDS: [&str; 8] = [
    "zqX7@vK9:wJ/3%Y",
    "a@zqx@wvk@jyq",
    "zQ\"w\\'Xv`Kj",
    "%7A%71%58zqwx",
    "zqäöüxßé€jk",
    "+zq x&w=v?k#j",
    "::zqxw::vkjq:",
    "{\"zqx\":\"wvk\"}",
];

/// Everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A server that repeats all it was told, in every way there is.
fn reflect(seen: &Seen) -> Vec<Step> {
    let body = String::from_utf8_lossy(&seen.body);
    let told = format!("{body} {seen:?}");
    let decoded: Vec<_> = seen
        .headers
        .iter()
        .filter_map(|(_, value)| value.strip_prefix("Basic "))
        .filter_map(|value| {
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, value).ok()
        })
        .map(|pair| String::from_utf8_lossy(&pair).into_owned())
        .collect();
    let text = format!("{decoded:?} {} {told}", decoded.join(" "));
    let reply = match seen.path() {
        "/_session" if seen.body.starts_with(b"name=no") => json(404, "{}"),
        "/_session" if seen.body.starts_with(b"name=in") => {
            answer(200, &[("Set-Cookie", "AuthSession=zqckxwvkjy")], b"{}")
        }
        "/_session" => json(401, json!({ "error": told, "reason": text }).to_string()),
        "/token" => json(403, json!({ "error": text }).to_string()),
        "/db/" => json(
            400,
            json!({ "error": "bad_request", "reason": text }).to_string(),
        ),
        "/db/_changes" => json(
            200,
            json!({ "results": [{ "error": text, "reason": told }] }).to_string(),
        ),
        "/db/_bulk_docs" => json(
            201,
            json!([{ "id": "a", "error": text, "reason": told }]).to_string(),
        ),
        "/db/_revs_diff" => json(200, json!({ "a": text }).to_string()),
        "/db/_bulk_get" => {
            let refused = json!({ "error": text, "reason": told });
            let row = json!({ "id": "a", "docs": [{ "error": refused }] });
            json(200, json!({ "results": [row] }).to_string())
        }
        "/db/_ensure_full_commit" => json(500, json!({ "error": text }).to_string()),
        _ => answer(400, &[], text.as_bytes()),
    };
    vec![Step::Send(reply)]
}

fn check(output: &str, secrets: &[&str]) {
    for secret in secrets {
        let chars: Vec<char> = secret.chars().collect();
        for piece in chars.windows(4) {
            let piece: String = piece.iter().collect();
            assert!(
                !output.contains(&piece),
                "`{piece}` of `{secret}` in {output}"
            );
        }
    }
}

/// All errors that the server's responses cause.
async fn errors(db: &Database) -> String {
    let mut found = Vec::new();
    found.extend(db.info().await.err());
    found.extend(db.ensure_full_commit().await.err());
    let asked = ("a".into(), vec!["1-x".into()]);
    found.extend(db.revs_diff(&[asked]).await.err());
    found.extend(db.document(&"d".into()).await.err());
    match db.changes(&ChangesRequest::default()).await {
        Ok(mut changes) => found.extend(changes.next().await.err()),
        Err(error) => found.push(error),
    }
    assert_eq!(found.len(), 5);
    let shown = found.iter().map(|error| format!("{error}\n{error:?}\n"));
    let wanted = WantedRev {
        id: "a".into(),
        rev: Some("1-x".into()),
        atts_since: Vec::new(),
    };
    let fetched = match db.bulk_get(&[wanted], false).await {
        Ok(mut fetched) => fetched.next().await,
        Err(error) => Err(error),
    };
    let rejected = db.bulk_docs(&["{}".into()]).await;
    shown.collect::<String>() + &format!("{rejected:?}\n{fetched:?}\n")
}

fn quoted(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Endpoints with a secret in every place that can have one.
fn endpoints(fake: &Fake, password: &str) -> Vec<Endpoint> {
    let url = fake.url("/db");
    let basic = |name: &str| json!({ "basic": { "username": name, "password": password } });
    let client =
        json!({ "token_url": fake.url("/token"), "client_id": "c", "client_secret": password });
    // A proxy sees all that is plain, and what it answers is taken for the server's.
    let proxy = format!("http://u:{password}@{}", fake.address);
    let proxied = "http://db.invalid/db";
    let parse = |value: Value, proxy: Option<&str>| {
        let endpoint = Endpoint::parse(&value, proxy, &Schemes::default());
        assert!(
            endpoint.is_ok() || proxy.is_some(),
            "not all passwords can stand in the URL of a proxy"
        );
        endpoint.ok()
    };
    let found = [
        parse(json!({ "url": url, "auth": basic("no") }), None),
        parse(json!({ "url": url, "auth": basic("in") }), None),
        parse(json!({ "url": url, "auth": basic("yes") }), None),
        parse(
            json!({ "url": url, "auth": { "oauth2_client_credentials": client } }),
            None,
        ),
        parse(
            json!({ "url": url, "auth": { "bearer": "zqtknxwvkj" } }),
            None,
        ),
        parse(
            json!({ "url": url, "headers": { "X-Api-Key": "zqhdrxwvkj" } }),
            None,
        ),
        parse(
            json!(format!(
                "{url}?token=zqqryxwvkj&b={}#zqfrgxwvkj",
                quoted(password)
            )),
            None,
        ),
        parse(json!(format!("{url}?{}", quoted(password))), None),
        parse(json!(proxied), Some(&proxy)),
        parse(
            json!({ "url": proxied, "auth": basic("yes") }),
            Some(&proxy),
        ),
    ];
    found.into_iter().flatten().collect()
}

#[tokio::test]
async fn nothing_shows_a_secret() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut output = String::new();
    for password in PASSWORDS {
        let fake = Fake::new(reflect).await;
        for endpoint in endpoints(&fake, password) {
            writeln!(output, "{endpoint} {endpoint:?}").unwrap();
            let network = network_with(|options: &mut NetworkOptions| options.auth_session = true);
            let options = RequestOptions {
                retries: 0,
                ..impatient()
            };
            match network.database(endpoint, options).await {
                Ok(db) => output.push_str(&errors(&db).await),
                Err(error) => writeln!(output, "{error}\n{error:?}").unwrap(),
            }
        }
    }
    assert!(
        output.contains("***"),
        "the servers did repeat what they were told"
    );
    assert!(output.contains("session_request_unauthorized"));
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    for text in [&output, &logged] {
        check(text, &PASSWORDS);
        check(text, &["zqtknxwvkj", "zqhdrxwvkj", "zqckxwvkjy"]);
        check(text, &["zqqryxwvkj", "zqfrgxwvkj"]);
    }
}

/// A server may repeat one cookie, or a token without its scheme.
#[tokio::test]
async fn parts_of_headers_are_redacted() {
    let fake = Fake::new(|seen| {
        let value = seen.header("authorization").or(seen.header("cookie"));
        let parts = value.unwrap().split([' ', ';', '=', '"']);
        let parts: Vec<_> = parts.flat_map(|part| [part.into(), quoted(part)]).collect();
        let reason = parts.join(" ");
        vec![Step::Send(json(
            400,
            json!({ "reason": reason }).to_string(),
        ))]
    })
    .await;
    for (headers, secrets) in [
        (
            json!({ "Authorization": "Token zqat/+xwvkj" }),
            &["zqat/+xwvkj"][..],
        ),
        (
            json!({ "Cookie": "id=zqckaxwvkj; AuthSession=\"zqckaxwvkjzqck\"; n=ab" }),
            &["zqckaxwvkj", "zqckaxwvkjzqck"],
        ),
    ] {
        let value = json!({ "url": fake.url("/db"), "headers": headers });
        let endpoint = Endpoint::parse(&value, None, &Schemes::default()).unwrap();
        let network = network_with(|_| {});
        let db = network.database(endpoint, impatient()).await.unwrap();
        let error = db.info().await.unwrap_err().to_string();
        check(&error, secrets);
        assert!(error.contains("***"), "{error}");
        let is_cookie = headers.get("Cookie").is_some();
        assert_eq!(error.contains(" ab"), is_cookie, "too short: {error}");
    }
}

#[tokio::test]
async fn bad_endpoints_are_refused_without_being_repeated() {
    for password in PASSWORDS {
        for url in [
            format!("http://u:{password}@h:x/db"),
            format!("http://u:{password}@/db"),
            format!("ftp://u:{password}@h"),
        ] {
            for value in [json!(url), json!({ "url": url })] {
                if let Err(error) = Endpoint::parse(&value, None, &Schemes::default()) {
                    check(&format!("{error} {error:?}"), &[password]);
                }
            }
            if let Err(error) = Endpoint::parse(&json!("http://h"), Some(&url), &Schemes::default())
            {
                check(&format!("{error} {error:?}"), &[password]);
            }
        }
    }
}
