use base64::Engine as _;
use serde_json::json;

use super::*;

fn b64(pair: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(pair)
}

fn parse(value: &Value) -> Result<Endpoint, InvalidEndpoint> {
    Endpoint::parse(value, None, &Schemes::default())
}

fn check(value: &Value, url: &str, credentials: Option<(&str, &str)>) {
    let endpoint = parse(value).unwrap();
    assert_eq!(endpoint.url_text(), url, "{value}");
    let basic = endpoint
        .basic()
        .map(|b| (b.username.as_str(), b.password.expose()));
    assert_eq!(basic, credentials, "{value}");
}

#[test]
fn credentials_are_moved_out_of_urls() {
    for (given, url, credentials) in [
        ("http://u:p@x.y/db", "http://x.y/db/", Some(("u", "p"))),
        ("http://u:p@h:80/db/", "http://h:80/db/", Some(("u", "p"))),
        ("https://u:p@h/db", "https://h/db/", Some(("u", "p"))),
        (
            "http://u:p@[2001:db8:a1b:12f9::1]/db",
            "http://[2001:db8:a1b:12f9::1]/db/",
            Some(("u", "p")),
        ),
        (
            "http://u:p@[::1]:42/db?q=2",
            "http://[::1]:42/db",
            Some(("u", "p")),
        ),
        (
            "http://secretjunk@[::1]:42/db?q=2",
            "http://[::1]:42/db",
            None,
        ),
        (
            "http://u:p:p@[::1]:42/db?q=2",
            "http://[::1]:42/db",
            Some(("u", "p:p")),
        ),
        (
            "http://u:p@ss%40@h/db",
            "http://h/db/",
            Some(("u", "p@ss%40")),
        ),
        ("http://:@h/db", "http://h/db/", Some(("", ""))),
        ("http://host", "http://host/", None),
        (
            "http://Host.Example/DB%2Fx",
            "http://Host.Example/DB%2Fx/",
            None,
        ),
    ] {
        check(&json!(given), url, credentials);
        check(&json!({ "url": given }), url, credentials);
    }
}

#[test]
fn credentials_of_headers_and_auth() {
    let basic = |scheme: &str, pair: &str| format!("{scheme} {}", b64(pair));
    for (header, value, credentials) in [
        ("Authorization", basic("Basic", "u:p"), Some(("u", "p"))),
        ("Authorization", basic("Basic", "u:p@"), Some(("u", "p@"))),
        (
            "Authorization",
            basic("Basic", "u:p@%40"),
            Some(("u", "p@%40")),
        ),
        ("aUthoriZation", basic("bASIC", "U:p"), Some(("U", "p"))),
        ("Authorization", "basic X".to_owned(), None),
        ("Authorization", basic("Basic", "nocolon"), None),
    ] {
        let value = json!({ "url": "http://h/db", "headers": { header: value, "h": "v" } });
        check(&value, "http://h/db/", credentials);
        let headers: Vec<_> = parse(&value).unwrap().headers().to_vec();
        assert_eq!(headers, [("h".to_owned(), Secret::from("v"))]);
    }
    let junk =
        parse(&json!({ "url": "http://h", "headers": { "Authorization": "junk" } })).unwrap();
    assert_eq!(junk.headers().len(), 1);

    let all = json!({
        "url": "http://u1:p1@h/db",
        "auth": { "basic": { "username": "u3", "password": "p3" } },
        "headers": { "Authorization": basic("Basic", "u2:p2") },
    });
    check(&all, "http://h/db/", Some(("u3", "p3")));
    let two = json!({
        "url": "http://u1:p1@h/db",
        "auth": { "basic": { "username": "u3", "password": null } },
        "headers": { "Authorization": basic("Basic", "u2:p2") },
    });
    check(&two, "http://h/db/", Some(("u1", "p1")));
}

#[test]
fn what_ids_hash_keeps_the_users_spelling() {
    let endpoint = parse(&json!({
        "url": "http://u:p@HOST:80/a/b?q=1",
        "headers": { "h": "v", "Accept": "application/json", "B": "1", "User-Agent": "mine" },
    }))
    .unwrap();
    assert_eq!(endpoint.host(), "HOST");
    assert_eq!(endpoint.port(), Some(80));
    assert_eq!(endpoint.id_path(), "/a/b?q=1");
    assert_eq!(endpoint.username(), Some("u"));
    let headers: Vec<_> = endpoint
        .id_headers()
        .map(|(n, v)| (n, v.expose()))
        .collect();
    assert_eq!(headers, [("B", "1"), ("User-Agent", "mine"), ("h", "v")]);

    let v6 = Endpoint::from_url("http://[::1]?q").unwrap();
    assert_eq!((v6.host(), v6.port(), v6.id_path()), ("::1", None, "/?q"));
}

#[test]
fn unusable_urls() {
    for (value, reason) in [
        (json!(null), "Missing replication endpoint"),
        (json!("db"), "local_endpoints_not_supported"),
        (json!("ftp://h/db"), "local_endpoints_not_supported"),
        (json!({ "junk": 42 }), "endpoint has an invalid url"),
        (json!({ "url": 42 }), "endpoint has an invalid url"),
        (json!({ "url": "abc" }), "endpoint has an invalid url"),
        (json!({ "url": "httpx://a" }), "endpoint has an invalid url"),
        (json!("http://"), "endpoint has an invalid url"),
        (json!("http://adm:pass/bad"), "endpoint has an invalid url"),
        (json!("http://a:b:c"), "endpoint has an invalid url"),
        (json!("http://h:70000/db"), "endpoint has an invalid url"),
        (
            json!("http://exa\nmple.com/"),
            "endpoint has an invalid url",
        ),
        (
            json!("http://evil\\@good/db"),
            "endpoint has an invalid url",
        ),
        (json!("http://ho st/db"), "endpoint has an invalid url"),
    ] {
        assert_eq!(parse(&value).unwrap_err().to_string(), reason, "{value}");
    }
    let https_only = Schemes {
        endpoint: vec!["https".to_owned()],
        ..Schemes::default()
    };
    let refused = Endpoint::parse(&json!("http://h/db"), None, &https_only);
    assert_eq!(refused, Err(InvalidEndpoint::Url));
}

#[test]
fn unusable_members() {
    for (value, reason) in [
        (json!(42), "endpoint has an invalid url"),
        (
            json!({ "url": "http://h", "auth": 1 }),
            "if defined, `auth` must be an object",
        ),
        (
            json!({ "url": "http://h", "headers": [] }),
            "if defined `headers` must be an object",
        ),
        (
            json!({ "url": "http://h", "headers": { "a": 1 } }),
            "`headers` must have valid names and string values",
        ),
        (
            json!({ "url": "http://h", "headers": { "a": "x\r\ny: z" } }),
            "`headers` must have valid names and string values",
        ),
        (
            json!({ "url": "http://h", "auth": { "bearer": 1 } }),
            "`auth.bearer` is not valid",
        ),
        (
            json!({ "url": "http://h", "auth": { "jwt": { "file": "../etc/passwd" } } }),
            "`auth.jwt` is not valid",
        ),
        (
            json!({ "url": "http://h", "auth": { "jwt": { "file": "/etc/passwd" } } }),
            "`auth.jwt` is not valid",
        ),
        (
            json!({ "url": "http://h", "auth": { "bearer": "t", "jwt": { "file": "t" } } }),
            "`auth.jwt` is not valid",
        ),
        (
            json!({ "url": "http://h", "auth": { "iam": { "api_key": "k", "token_url": "file:///x" } } }),
            "`auth.iam` is not valid",
        ),
        (
            json!({ "url": "http://h", "tls": { "verfy": false } }),
            "`tls` must be an object of `verify`, `ca`, `cert` and `key`",
        ),
    ] {
        assert_eq!(parse(&value).unwrap_err().to_string(), reason, "{value}");
    }
}

#[test]
fn proxies() {
    let all = Schemes::default().proxy;
    for (text, scheme, host, port, user) in [
        ("http://foo.com", ProxyScheme::Http, "foo.com", 80, None),
        ("https://foo.com", ProxyScheme::Https, "foo.com", 443, None),
        (
            "socks5://foo.com",
            ProxyScheme::Socks5,
            "foo.com",
            1080,
            None,
        ),
        (
            "socks5://u:p@foo.com:99",
            ProxyScheme::Socks5,
            "foo.com",
            99,
            Some("u"),
        ),
        (
            "http://u:p@x@[::1]:8080",
            ProxyScheme::Http,
            "[::1]",
            8080,
            Some("u"),
        ),
    ] {
        let proxy = Proxy::parse(text, &all).unwrap();
        let found = (proxy.scheme(), proxy.host(), proxy.port());
        assert_eq!(found, (scheme, host, port), "{text}");
        assert_eq!(proxy.credentials().map(|b| b.username.as_str()), user);
    }
    assert_eq!(Proxy::parse("foo", &all), Err(InvalidEndpoint::ProxyUrl));
    assert_eq!(
        Proxy::parse("ftp://foo", &all),
        Err(InvalidEndpoint::ProxyScheme)
    );
    let socks = [ProxyScheme::Socks5];
    assert_eq!(
        Proxy::parse("http://foo", &socks),
        Err(InvalidEndpoint::ProxyScheme)
    );
}

#[test]
fn a_proxy_is_part_of_an_endpoint() {
    let value = json!({
        "url": "https://u:p@h:6984/db",
        "headers": { "X": "y" },
        "auth": { "bearer": { "token": "tok" }, "mine": { "any": [1] } },
        "tls": { "verify": false, "ca": "pem" },
    });
    let endpoint = Endpoint::parse(&value, Some("socks5://a:b@c:1"), &Schemes::default()).unwrap();
    assert!(endpoint.is_privileged());

    let other = Endpoint::parse(&value, None, &Schemes::default()).unwrap();
    assert_ne!(endpoint, other);
}

#[test]
fn secrets_are_resolved_by_name() {
    let endpoint = parse(&json!({ "url": "http://h/db", "auth": { "secret_ref": "s" } })).unwrap();
    assert_eq!(endpoint.secret_ref(), Some("s"));
    assert!(endpoint.is_privileged() && endpoint.has_credentials());
    let secret = json!({
        "basic": { "username": "u", "password": "p" }, "bearer": "t", "origins": ["http://h"],
    });
    let secret = NamedSecret::parse(secret.as_object().unwrap()).unwrap();
    let resolved = endpoint.with_secret(&secret).unwrap();
    assert_eq!(resolved.username(), Some("u"));
    assert_eq!(
        resolved.auth_method(),
        Some(&AuthMethod::Bearer("t".into()))
    );
    assert_eq!(resolved.secret_ref(), None);
}

#[test]
fn nothing_prints_credentials() {
    let value = json!({
        "url": "https://user:hunter22@h/db?token=querysecret#fragmentsecret",
        "headers": { "X-Key": "headersecret" },
        "auth": { "iam": { "api_key": "apikeysecret" } },
        "tls": { "cert": "certpem", "key": "keypemsecret" },
    });
    let endpoint = Endpoint::parse(
        &value,
        Some("http://a:proxysecret@c:1/?x=proxyquery"),
        &Schemes::default(),
    )
    .unwrap();
    let shown = format!(
        "{endpoint} {endpoint:?} {:?} {:?} {:?} {:?} {:?}",
        endpoint.basic(),
        endpoint.headers(),
        endpoint.auth_method(),
        endpoint.proxy().map(|proxy| format!("{proxy} {proxy:?}")),
        endpoint.tls(),
    );
    for secret in [
        "hunter22",
        "headersecret",
        "apikeysecret",
        "keypemsecret",
        "proxysecret",
        "proxyquery",
        "querysecret",
        "fragmentsecret",
    ] {
        assert!(!shown.contains(secret), "{shown}");
    }
    let wrong = parse(&json!("http://user:hunter22@h:x/db")).unwrap_err();
    assert!(!format!("{wrong} {wrong:?}").contains("hunter22"));
}

#[test]
fn a_query_is_part_of_what_an_endpoint_is() {
    let endpoint = |url: &str| Endpoint::from_url(url).unwrap();
    let (one, other) = (endpoint("http://h/db?t=1"), endpoint("http://h/db?t=2"));
    assert_eq!(one.to_string(), other.to_string());
    assert_ne!(one, other);
    assert_eq!(one.id_url(), "http://h/db?t=1");
}

#[test]
fn rights_are_added_by_the_service_alone() {
    let proofs = json!({"headers": {"X-Auth-CouchDB-UserName": "anna", "Cookie": "AuthSession=x"}});
    let value = json!({"url": "http://h/db", "headers": proofs["headers"]});
    let refused = parse(&value).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the header `x-auth-couchdb-username` cannot be set in `headers`: put credentials into `auth`"
    );
    let other = json!({"url": "http://h/db", "headers": {"x-AUTH-couchdb-else": "anna"}});
    assert!(parse(&other).is_err());
    let plain = parse(&json!({"url": "http://h/db", "headers": {"z": "1"}})).unwrap();
    assert!(!plain.has_credentials());
    let with = plain.with_rights(proofs.as_object().unwrap()).unwrap();
    assert!(with.has_credentials());
    let names: Vec<_> = with.headers().iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["Cookie", "X-Auth-CouchDB-UserName", "z"]);
    let basic = json!({"headers": {"Authorization": format!("Basic {}", b64("u:p"))}});
    let with = plain.with_rights(basic.as_object().unwrap()).unwrap();
    assert_eq!(with.username(), Some("u"));
    let bearer = json!({"auth": {"bearer": "t"}});
    let with = plain.with_rights(bearer.as_object().unwrap()).unwrap();
    assert_eq!(with.auth_method(), Some(&AuthMethod::Bearer("t".into())));
}

#[test]
fn a_database_has_a_server() {
    let server = |url: &str| {
        let (server, name) = Endpoint::from_url(url).unwrap().server()?;
        assert_eq!(server.username(), Some("adm"));
        Some((server.url_text().to_owned(), name))
    };
    let at = |url: &str, name: &str| Some((url.to_owned(), name.to_owned()));
    assert_eq!(server("http://adm:p@h:1/db"), at("http://h:1/", "db"));
    assert_eq!(
        server("https://adm:p@h/proxied/a%2Fb%20c/?x=y"),
        at("https://h/proxied/", "a/b c")
    );
    assert_eq!(server("http://adm:p@h/"), None);
}

#[test]
fn a_server_has_databases() {
    let database = |url: &str, name: &str| {
        let database = Endpoint::from_url(url).unwrap().database(name).unwrap();
        database.url_text().to_owned()
    };
    assert_eq!(database("http://h", "db"), "http://h/db/");
    assert_eq!(
        database("http://h/a+b/?x=y", "a/b+c$d"),
        "http://h/a+b/a%2Fb%2Bc$d/"
    );
}

#[test]
fn what_no_server_takes_is_refused() {
    let long = |bytes: usize| format!("http://h/?{}", "a".repeat(bytes - "http://h/?".len()));
    assert!(Endpoint::from_url(&long(URL_BYTES_MAX)).is_ok());
    let refused = Endpoint::from_url(&long(URL_BYTES_MAX + 1));
    assert_eq!(refused.unwrap_err(), InvalidEndpoint::LongUrl);
    let headers = |count: usize| {
        let headers: Map<_, _> = (0..count).map(|n| (format!("x{n}"), json!("v"))).collect();
        parse(&json!({"url": "http://h/", "headers": headers}))
    };
    assert!(headers(invalid::HEADERS_MAX).is_ok());
    // A header map panics at this many headers.
    for count in [invalid::HEADERS_MAX + 1, 40_000] {
        let refused = headers(count).unwrap_err();
        assert_eq!(refused, InvalidEndpoint::TooManyHeaders);
        assert_eq!(
            refused.to_string(),
            "`headers` must have at most 100 members"
        );
    }
}

#[test]
fn what_a_query_repeats_is_looked_for_once() {
    let endpoint = Endpoint::from_url(&format!("http://h/?{}", "k=same&".repeat(1000))).unwrap();
    let found = endpoint.query_secrets();
    let same = found.iter().filter(|found| found.expose() == "same");
    assert_eq!(same.count(), 1);
}

#[test]
fn any_url() {
    let seeds: [&[u8]; 4] = [
        b"https://user:p%40ss@example.org:6984/a%2Fb/?x=y#z",
        b"http://[::1]:5984/db",
        b"http://0x7f.1/a/../b/%2e%2e/",
        b"HTTP://\xc3\xa9.example/db",
    ];
    let words = [
        "http://", "@", ":", "/", "%2F", "%00", "?", "#", "[", "]", "..", "\\", "\u{e9}", " ",
        "65536",
    ];
    testkit::fuzz("endpoints", &seeds, &words, |url| {
        let Ok(url) = std::str::from_utf8(url) else {
            return false;
        };
        let Ok(endpoint) = Endpoint::from_url(url) else {
            return false;
        };
        assert!(!endpoint.host().is_empty());
        let shown = endpoint.to_string();
        assert!(
            !shown.split('/').nth(2).unwrap_or_default().contains('@'),
            "{shown}"
        );
        true
    });
}
