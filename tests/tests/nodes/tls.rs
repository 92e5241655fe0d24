//! A frontend with a certificate of a private authority, and commands that trust it.

use std::path::Path;

use e2e::{ADMIN, Node, Signal, Start, until};

use crate::upstream::certify;

/// Writes `own.cert` and `own.key`, signed by the authority `NAME.ca`.
fn renew(directory: &Path, name: &str) {
    certify(directory, name);
    for kind in ["cert", "key"] {
        let [from, to] = [name, "own"].map(|name| directory.join(format!("{name}.{kind}")));
        std::fs::copy(from, to).unwrap();
    }
}

/// Runs a command that trusts an authority; returns its exit code and errors.
async fn trusting(node: &Node, authority: &Path) -> (Option<i32>, String) {
    let authority = authority.display().to_string();
    let args = ["jobs", "types", "--url", &node.url, "--cacert", &authority];
    let user = format!("{}:{}", ADMIN.0, ADMIN.1);
    let command = Start::new("davenport", &args).variable("DAVENPORT_USER", &user);
    let (code, _, error) = command.output().await.unwrap();
    (code, error)
}

#[tokio::test]
async fn sighup_reads_the_certificate_again() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    renew(directory, "old");
    let file = |name: &str| directory.join(name);
    let start = Start::node("davenport", directory).admin().args(&[
        "--set",
        &format!("http.cert_file={}", file("own.cert").display()),
        "--set",
        &format!("http.key_file={}", file("own.key").display()),
    ]);
    let node = start.start().await.unwrap();
    let (code, error) = trusting(&node, &file("old.ca")).await;
    assert_eq!(code, Some(0), "{error}");
    let (code, error) = trusting(&node, &file("none.ca")).await;
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("none.ca"), "{error}");

    renew(directory, "new");
    node.signal(Signal::HUP).unwrap();
    until("the log reports it", || {
        node.log().contains("configuration reloaded")
    })
    .await
    .unwrap();
    let (code, error) = trusting(&node, &file("new.ca")).await;
    assert_eq!(code, Some(0), "{error}");
    let (code, error) = trusting(&node, &file("old.ca")).await;
    assert_eq!(code, Some(1), "{error}");

    std::fs::copy(file("old.key"), file("own.key")).unwrap();
    node.signal(Signal::HUP).unwrap();
    until("the log reports it", || {
        node.log().contains("configuration not reloaded")
    })
    .await
    .unwrap();
    assert!(node.log().contains("own.key"), "{}", node.log());
    let (code, error) = trusting(&node, &file("new.ca")).await;
    assert_eq!(code, Some(0), "{error}");
    node.stop().await.unwrap();
}
