//! A frontend of a cluster that uses TLS with certificates of a private authority.

use std::path::Path;

use e2e::{Node, Start};
use peer::{Options, Peer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;

/// Creates an authority, and a certificate of it for this machine: `NAME.ca`, `NAME.cert` and `NAME.key`.
pub(crate) fn certify(directory: &Path, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let authority = CertifiedIssuer::self_signed(params, key).unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, &authority).unwrap();
    for (kind, pem) in [
        ("ca", authority.pem()),
        ("cert", cert.pem()),
        ("key", key.serialize_pem()),
    ] {
        std::fs::write(directory.join(format!("{name}.{kind}")), pem).unwrap();
    }
}

/// A frontend with its own store for a cluster; it trusts certificates of an authority.
async fn in_front(directory: &Path, cluster: &Node, authority: Option<&str>) -> Node {
    let name = authority.unwrap_or("nobody");
    let url = format!("upstream.url={}", cluster.url);
    let start = Start::node("davenport", &directory.join(format!("in-front-{name}")));
    let mut start = start.args(&["--set", &url]);
    if let Some(name) = authority {
        let file = directory.join(format!("{name}.ca"));
        let file = file.display();
        start = start.args(&["--set", &format!("upstream.ca_file={file}")]);
        let jobs = format!("network.ssl_trusted_certificates_file={file}");
        start = start.args(&["--set", &jobs]);
    }
    std::fs::create_dir_all(directory.join(format!("in-front-{name}"))).unwrap();
    start.start().await.unwrap()
}

#[tokio::test]
async fn a_cluster_is_believed_by_its_authority() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    certify(directory, "own");
    certify(directory, "other");
    let file = |name: &str| directory.join(name).display().to_string();
    let home = directory.join("cluster");
    std::fs::create_dir_all(&home).unwrap();
    // The cluster speaks CouchDB's API, and has users of its own.
    let cluster = Start::node("davenport", &home).admin().args(&[
        "--roles",
        "api_frontend",
        "--set",
        &format!("http.cert_file={}", file("own.cert")),
        "--set",
        &format!("http.key_file={}", file("own.key")),
    ]);
    let cluster = cluster.start().await.unwrap();
    assert!(cluster.url.starts_with("https://"), "{}", cluster.url);

    let front = in_front(directory, &cluster, Some("own")).await;
    let root = front.root();
    let (status, _) = root.get("/_scheduler/jobs").await.unwrap();
    assert_eq!(status, 200, "the cluster knows its administrator");
    let (status, _) = front
        .user("root", "guess")
        .get("/_scheduler/jobs")
        .await
        .unwrap();
    assert_eq!(status, 401);
    let (status, _) = root.put("/_users", &json!({})).await.unwrap();
    assert!(status == 201 || status == 412, "{status}");
    let joe = json!({"name": "joe", "type": "user", "roles": [], "password": "s3cr3t-of-joe"});
    let (status, made) = root
        .put("/_users/org.couchdb.user:joe", &joe)
        .await
        .unwrap();
    assert_eq!(status, 201, "{made}");
    let (status, session) = front
        .user("joe", "s3cr3t-of-joe")
        .get("/_session")
        .await
        .unwrap();
    assert_eq!(
        (status.as_u16(), &session["userCtx"]["name"]),
        (200, &json!("joe"))
    );
    // A plain name is a database of the cluster, read with the caller's rights.
    let peer = Peer::start(Options::default()).await.unwrap();
    let copy = json!({
        "source": "_users", "target": peer.database_url("copy"), "create_target": true,
    });
    let (status, result) = root.post("/_replicate", &copy).await.unwrap();
    assert_eq!(status, 200, "{result}");
    assert!(peer.get("copy", "org.couchdb.user:joe").unwrap().is_some());
    front.stop().await.unwrap();

    for authority in [Some("other"), None] {
        let front = in_front(directory, &cluster, authority).await;
        for path in ["/_scheduler/jobs", "/_users"] {
            let (status, answer) = front.root().get(path).await.unwrap();
            assert_eq!(status, 502, "{answer}");
        }
        let (_, log) = front.stop().await.unwrap();
        assert!(log.contains("certificate"), "{log}");
        assert!(!log.contains("s3cr3t"), "{log}");
    }
    cluster.stop().await.unwrap();
}
