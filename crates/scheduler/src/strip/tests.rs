use docstore::{DocStore, InstanceId, Meta, Options, Rev, Revisions};

use super::*;

const BODY: &str = r#"{"source":"http://adm:pa:ss@host:5984/a?x=1","n":1.50,"target":{"url":"https://u:p@[::1]/b","headers":{"A":"secret1"},"auth":{"basic":{"username":"u","password":"secret2"}},"x":1},"source_proxy":"socks5://q:secret3@proxy","owner":"joe"}"#;
const STRIPPED: &str = r#"{"source":"http://host:5984/a","n":1.50,"target":{"url":"https://[::1]/b","x":1},"source_proxy":"socks5://proxy","owner":"joe"}"#;

async fn db() -> Db {
    let store = store::Store::open("memory:").await.unwrap();
    let docs = DocStore::new(store, Options::default());
    let name = docs.name("_replicator").unwrap();
    docs.create(&name, InstanceId([1; 16])).await.unwrap()
}

fn document(body: &str) -> Document {
    let rev: Rev = "2-0123456789abcdef0123456789abcdef".parse().unwrap();
    let older: Rev = "1-fedcba9876543210fedcba9876543210".parse().unwrap();
    let ids = vec![rev.id.clone(), older.id];
    Document {
        id: "d".to_owned(),
        rev,
        deleted: false,
        body: body.to_owned(),
        attachments: Vec::new(),
        meta: Meta {
            revisions: Some(Revisions { start: 2, ids }),
            ..Meta::default()
        },
    }
}

fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

fn reader(name: Option<&str>, is_admin: bool) -> Reader<'_> {
    Reader { name, is_admin }
}

#[tokio::test]
async fn other_readers_get_no_credentials_and_a_made_up_revision() {
    let db = db().await;
    let sealer = Sealer::new(vec![("k".to_owned(), [3; 32])]).unwrap();
    let sealed = seal_body(&sealer, &db, "d", &json(BODY), None).unwrap();
    for secret in ["pa:ss", "secret", "u:p@", "q:"] {
        assert!(!sealed.contains(secret), "{sealed}");
    }
    assert!(sealed.starts_with(STRIPPED.trim_end_matches('}')));
    for stored in [BODY, &sealed] {
        for (name, is_admin) in [(Some("joe"), false), (None, true)] {
            let shown = for_reader(&sealer, &db, document(stored), reader(name, is_admin)).unwrap();
            assert_eq!(shown, document(BODY));
        }
        for name in [None, Some("eve")] {
            let shown = for_reader(&sealer, &db, document(stored), reader(name, false)).unwrap();
            assert_eq!(shown.body, STRIPPED);
            assert_eq!(shown.rev.generation, 2);
            assert_ne!(shown.rev, document(BODY).rev);
            let revisions = shown.meta.revisions.unwrap();
            assert_eq!(revisions.ids[0], shown.rev.id);
            assert_eq!(
                revisions.ids[1],
                document(BODY).meta.revisions.unwrap().ids[1]
            );
        }
    }
    assert_eq!(
        open_body(&sealer, &db, "d", &sealed).unwrap().to_string(),
        BODY
    );
    assert!(open_body(&sealer, &db, "e", &sealed).is_err());
    assert!(for_reader(&Sealer::plain(), &db, document(&sealed), reader(None, true)).is_err());
    assert!(
        for_reader(
            &Sealer::plain(),
            &db,
            document(&sealed),
            reader(None, false)
        )
        .is_ok()
    );
}

#[tokio::test]
async fn grants_are_never_shown() {
    let db = db().await;
    let rights = serde_json::json!({"headers": {"Authorization": "Basic secret1"}});
    let grant = Grant::new("http://db", rights.as_object().unwrap().clone(), false);
    let plain = r#"{"source":"a","target":"b","owner":"joe"}"#;
    for sealer in [
        Sealer::new(vec![("k".to_owned(), [3; 32])]).unwrap(),
        Sealer::plain(),
    ] {
        for body in [plain, BODY] {
            let stored = seal_body(&sealer, &db, "d", &json(body), Some(&grant)).unwrap();
            assert_eq!(stored.contains("secret1"), !sealer.seals());
            for (name, is_admin) in [(Some("joe"), false), (None, true)] {
                let reader = reader(name, is_admin);
                let shown = for_reader(&sealer, &db, document(&stored), reader).unwrap();
                assert_eq!(shown, document(body));
            }
            let shown = for_reader(&sealer, &db, document(&stored), reader(None, false));
            let shown = shown.unwrap().body;
            assert_eq!(shown, if body == plain { plain } else { STRIPPED });
            let (opened, granted) = open_granted(&sealer, &db, "d", &stored).unwrap();
            assert_eq!(
                (opened.to_string().as_str(), granted),
                (body, Some(grant.clone()))
            );
        }
    }
}

#[tokio::test]
async fn documents_without_credentials_are_unchanged() {
    let db = db().await;
    let sealer = Sealer::new(vec![("k".to_owned(), [3; 32])]).unwrap();
    let plain =
        r#"{"source":"http://a/b@c","target":{"url":"http://a/x"},"note":"a@b","owner":"joe"}"#;
    assert_eq!(seal_body(&sealer, &db, "d", &json(plain), None), None);
    assert_eq!(
        seal_body(&Sealer::plain(), &db, "d", &json(BODY), None),
        None
    );
    let shown = for_reader(&sealer, &db, document(plain), reader(None, false)).unwrap();
    assert_eq!(shown, document(plain));
    let mut design = document(BODY);
    design.id = "_design/x".to_owned();
    assert_eq!(
        for_reader(&sealer, &db, design.clone(), reader(None, false)).unwrap(),
        design
    );
    // A document without an owner belongs to no user, and least of all to an anonymous reader.
    let orphan = document(&BODY.replace(r#""joe""#, "null"));
    let shown = for_reader(&sealer, &db, orphan, reader(None, false)).unwrap();
    assert!(!shown.body.contains("secret"));
}

#[test]
fn credentials_are_removed_from_valid_and_malformed_urls() {
    for (text, stripped) in [
        ("http://adm:pass@h/db", "http://h/db"),
        ("http://a:b@c@h:80", "http://h:80"),
        ("http://junk@h?x=a@b", "http://h"),
        ("http://h/db?token=t", "http://h/db"),
        ("http://h/db#t?u", "http://h/db"),
        ("http://adm:pa?ss@h/db", "http://h/db"),
        ("h/db?token=t", "h/db"),
        ("http://h/a@b", "http://h/a@b"),
        ("http://adm:pa/ss@h/db", "http://h/db"),
        ("adm:pass@h", "h"),
        ("https:///adm:pass@h/db", "https://h/db"),
        ("https://\\\\adm:pass@h/db", "https://h/db"),
        ("name", "name"),
    ] {
        assert_eq!(without_credentials(text), stripped, "{text}");
    }
}
