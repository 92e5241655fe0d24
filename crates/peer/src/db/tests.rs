use document::doc::Doc;

use super::*;
use crate::attachment::Sent;
use crate::functions::{UserContext, sources};
use crate::options::Options;
use crate::refusal::Refusal;
use crate::server::Server;

struct World {
    server: Server,
    db: Arc<Database>,
}

impl World {
    fn new() -> Self {
        let server = Server::new(Options::default(), 1);
        let db = server.create_database("db").unwrap();
        Self { server, db }
    }

    fn incoming(&self, json: &str, edit: bool) -> Incoming {
        let doc = Doc::parse(json).unwrap();
        let sent = Sent::parse_all(&doc).unwrap();
        self.server.prepare(&self.db, doc, &sent, edit).unwrap()
    }

    fn edit(&self, json: &str) -> Result<Rev, Refusal> {
        let edit = self.incoming(json, true);
        let mut written = self.db.edit(vec![edit], &UserContext::admin()).unwrap();
        written.pop().unwrap()
    }

    /// Adds revisions; returns how many were refused.
    fn replicate(&self, docs: &[&str]) -> usize {
        let docs = docs.iter().map(|json| self.incoming(json, false)).collect();
        let refused = self.db.replicate(docs, &UserContext::admin()).unwrap();
        refused.len()
    }

    fn winner(&self, id: &str) -> String {
        self.db
            .read()
            .document(id)
            .unwrap()
            .winner()
            .rev
            .to_string()
    }

    fn changes(&self, since: u64) -> Vec<(u64, String)> {
        let state = self.db.read();
        let changes = state.changes(since, u64::MAX);
        changes.map(|(seq, id, _)| (seq, id.to_string())).collect()
    }
}

#[test]
fn edits_continue_leaves() {
    let world = World::new();
    let first = world.edit(r#"{"_id":"a","n":1}"#).unwrap();
    assert_eq!(first.generation, 1);
    let conflict = world.edit(r#"{"_id":"a","n":2}"#).unwrap_err();
    assert_eq!(
        (conflict.status.as_u16(), &*conflict.error),
        (409, "conflict")
    );
    let second = world
        .edit(&format!(r#"{{"_id":"a","_rev":"{first}","n":2}}"#))
        .unwrap();
    assert_eq!(second.generation, 2);
    let deleted = world.edit(&format!(
        r#"{{"_id":"a","_rev":"{second}","_deleted":true}}"#
    ));
    assert_eq!(world.winner("a"), deleted.unwrap().to_string());
    assert_eq!(world.db.read().live_docs(), 0);
    // A deleted document may be created again, and continues its history.
    assert_eq!(world.edit(r#"{"_id":"a","n":3}"#).unwrap().generation, 4);
    assert_eq!(world.db.read().live_docs(), 1);
}

#[test]
fn revisions_depend_on_contents_alone() {
    let made = |json: &str| World::new().edit(json).unwrap().to_string();
    assert_eq!(made(r#"{"_id":"a","n":1}"#), made(r#"{"_id":"b","n":1}"#));
    assert_ne!(made(r#"{"_id":"a","n":1}"#), made(r#"{"_id":"a","n":2}"#));
}

#[test]
fn winners_are_the_same_in_any_order() {
    let leaves = [
        r#"{"_id":"a","_revisions":{"start":2,"ids":["b","r"]}}"#,
        r#"{"_id":"a","_revisions":{"start":2,"ids":["c","r"]}}"#,
        r#"{"_id":"a","_deleted":true,"_revisions":{"start":3,"ids":["d","x","r"]}}"#,
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let world = World::new();
        for place in order {
            assert_eq!(world.replicate(&[leaves[place]]), 0);
        }
        // A live leaf wins against a longer deleted one, the greater hash among equals.
        assert_eq!(world.winner("a"), "2-c");
        assert_eq!(
            world.db.read().document("a").unwrap().tree.leaves().len(),
            3
        );
    }
}

#[test]
fn a_document_changes_once_and_last() {
    let world = World::new();
    for id in ["a", "b", "c"] {
        world.edit(&format!(r#"{{"_id":"{id}"}}"#)).unwrap();
    }
    world.replicate(&[r#"{"_id":"a","_revisions":{"start":2,"ids":["y","x"]}}"#]);
    let named = |seq, id: &str| (seq, id.to_owned());
    assert_eq!(
        world.changes(0),
        [named(2, "b"), named(3, "c"), named(4, "a")]
    );
    assert_eq!(world.changes(3), [named(4, "a")]);
    assert_eq!(world.db.read().count_changes(2, 3), 1);
    // A known revision is not a change.
    world.replicate(&[r#"{"_id":"a","_revisions":{"start":2,"ids":["y","x"]}}"#]);
    assert_eq!(world.db.read().seq, 4);
}

#[test]
fn histories_are_stemmed() {
    let world = World::new();
    world.db.write().revs_limit = 3;
    let long = r#"{"_id":"a","_revisions":{"start":6,"ids":["f","e","d","c","b","a"]}}"#;
    world.replicate(&[long]);
    let state = world.db.read();
    let tree = &state.document("a").unwrap().tree;
    let rev: Rev = "6-f".parse().unwrap();
    let path: Vec<String> = tree.path(&rev).map(|node| node.rev.to_string()).collect();
    assert_eq!(path, ["6-f", "5-e", "4-d"]);
}

#[test]
fn stubs_need_what_they_stand_for() {
    let world = World::new();
    let with = r#"{"_id":"a","_attachments":{"x":{"content_type":"text/plain","data":"eHg="}}}"#;
    let first = world.edit(with).unwrap();
    let stub = format!(
        r#"{{"_id":"a","_revisions":{{"start":2,"ids":["n","{}"]}},"_attachments":{{"x":{{"stub":true,"revpos":1}}}}}}"#,
        first.to_string().trim_start_matches("1-")
    );
    assert_eq!(world.replicate(&[&stub]), 0);
    let unknown = r#"{"_id":"b","_rev":"2-n","_attachments":{"x":{"stub":true,"revpos":1}}}"#;
    let docs = vec![world.incoming(unknown, false)];
    let refusal = world.db.replicate(docs, &UserContext::admin()).unwrap_err();
    assert_eq!(refusal.status.as_u16(), 412);
    assert!(world.db.read().document("b").is_none());
}

#[test]
fn validations_judge_both_ways_of_writing() {
    let world = World::new();
    let design = serde_json::json!({
        "_id": "_design/v", "validate_doc_update": sources::VALIDATE_EVEN,
    });
    world.edit(&design.to_string()).unwrap();
    assert!(world.edit(r#"{"_id":"a","integer":2}"#).is_ok());
    let refusal = world.edit(r#"{"_id":"b","integer":3}"#).unwrap_err();
    assert_eq!(
        (refusal.status.as_u16(), &*refusal.reason),
        (403, "only even")
    );
    assert_eq!(
        world.replicate(&[
            r#"{"_id":"c","_rev":"1-a","integer":5}"#,
            r#"{"_id":"d","_rev":"1-a","integer":6}"#,
        ]),
        1
    );
    assert!(world.db.read().document("d").is_some());
}

#[test]
fn compaction_keeps_leaves() {
    let world = World::new();
    let first = world.edit(r#"{"_id":"a","n":1}"#).unwrap();
    world
        .edit(&format!(r#"{{"_id":"a","_rev":"{first}","n":2}}"#))
        .unwrap();
    let has_body = || {
        let state = world.db.read();
        let tree = &state.document("a").unwrap().tree;
        tree.get(&first).unwrap().value.is_some()
    };
    assert!(has_body());
    world.db.compact();
    assert!(!has_body());
}
