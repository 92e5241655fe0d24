//! The dashboard's files, and what they draw.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use http::Method;
use serde_json::json;
use url::Url;

use crate::fixture::Fixture;

/// All files below `src/dashboard`, by their path in it, with their text.
fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
    let mut sources = BTreeMap::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
                let text = fs::read_to_string(&path).unwrap();
                sources.insert(name.replace('\\', "/"), text);
            }
        }
    }
    sources
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// The files that a page or a module loads, as they are written in it.
fn loaded<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    let markers: &[_] = match extension(name) {
        "html" => &[
            " src=\"",
            "<link rel=\"stylesheet\" href=\"",
            "<link rel=\"icon\" href=\"",
        ],
        "js" => &[" from \"", "import \""],
        _ => &[],
    };
    let after = |marker: &&str| text.split(*marker).skip(1).collect::<Vec<_>>();
    let parts = markers.iter().flat_map(after);
    parts.map(|part| part.split('"').next().unwrap()).collect()
}

#[tokio::test]
async fn every_file_is_served_to_anonymous_clients_and_revalidated() {
    let fixture = Fixture::new().await;
    let page = fixture.anonymous().get("/_dashboard").await;
    assert_eq!(
        (page.status.as_u16(), page.header("location")),
        (302, "_dashboard/")
    );
    let mut sources = sources();
    sources.insert(String::new(), sources["index.html"].clone());
    for (name, text) in &sources {
        let path = format!("/_dashboard/{name}");
        let answer = fixture.anonymous().get(&path).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.text),
            (200, text),
            "{path}"
        );
        let content_type = match extension(name) {
            "" | "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => panic!("{path} has no content type"),
        };
        assert_eq!(answer.header("content-type"), content_type, "{path}");
        assert_eq!(answer.header("cache-control"), "no-cache");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'self'; script-src 'self';"));
        assert!(!policy.contains("unsafe"));
        let etag = answer.header("etag").to_owned();
        let again = fixture.anonymous().with("if-none-match", &etag);
        let again = again.get(&path).await;
        assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""));
        let other = fixture.anonymous().with("if-none-match", "\"old\"");
        assert_eq!(other.get(&path).await.status.as_u16(), 200);
        // Also with a wrong password: the login form is in them.
        let wrong = fixture.user("root", "wrong").get(&path).await;
        assert_eq!(wrong.status.as_u16(), 200);
    }
    for missing in ["app.rs", "lib", "lib/", "lib/none.js", "views/../app.js"] {
        let missing = fixture
            .anonymous()
            .get(&format!("/_dashboard/{missing}"))
            .await;
        missing.refuses(404, "not_found", "missing");
    }
    let put = (fixture.root())
        .send(Method::PUT, "/_dashboard/app.js", "alert()")
        .await;
    assert_eq!(
        (put.status.as_u16(), put.header("allow")),
        (405, "GET,HEAD")
    );
}

#[tokio::test]
async fn everything_that_the_page_loads_is_served_and_nothing_else_is() {
    let fixture = Fixture::new().await;
    let root = Url::parse("http://service/_dashboard/").unwrap();
    let mut found = BTreeSet::from(["index.html".to_owned()]);
    let mut unread = vec!["index.html".to_owned()];
    while let Some(name) = unread.pop() {
        let at = root.join(&name).unwrap();
        let text = fixture.anonymous().get(at.path()).await.text;
        for address in loaded(&name, &text) {
            // Relative, and for modules not bare: those need an import map.
            let file = at.join(address).unwrap();
            assert_eq!(file.origin(), root.origin(), "{name}: {address}");
            assert!(
                extension(&name) != "js" || address.starts_with('.'),
                "{name}: {address}"
            );
            let answer = fixture.anonymous().get(file.path()).await;
            assert_eq!(answer.status.as_u16(), 200, "{name}: {address}");
            let file = file.path().strip_prefix(root.path()).unwrap().to_owned();
            if found.insert(file.clone()) {
                unread.push(file);
            }
        }
    }
    assert_eq!(found, sources().into_keys().collect());
}

#[test]
fn the_files_do_what_their_policy_allows() {
    for (name, text) in sources() {
        let forbidden: &[_] = match extension(&name) {
            "html" => &["<style", " style=", "<script>", " onclick="],
            // A module that is imported later could be another version's.
            "js" => &[
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "import(",
            ],
            _ => &["@import", "url("],
        };
        for forbidden in forbidden {
            assert!(!text.contains(forbidden), "{name}: {forbidden}");
        }
    }
}

#[tokio::test]
async fn a_summary_is_for_administrators() {
    let fixture = Fixture::new().await;
    let refused = fixture.anonymous().get("/_scheduler/summary").await;
    refused.refuses(401, "unauthorized", "You are not a server admin.");
    let summary = fixture.root().get("/_scheduler/summary").await.gives(200);
    assert_eq!(
        (&summary["exact"], &summary["nodes"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(summary["jobs"]["running"], 0);
}
