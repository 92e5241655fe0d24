//! Databases whose sequences the server does not tell together with those of others.

use jobs::Query;
use peer::{Fault, Faults, On};
use serde_json::json;

use crate::created::{called, calls, copies, create, put};
use crate::fixture::{LOSES_ALL, World, answers, quick, without_feed};

/// `_dbs_info` answers so whatever keeps it from reading a database.
fn unreadable() -> Fault {
    Fault::Answer {
        status: 200,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: r#"[{"key":"a","error":"not_found"}]"#.to_owned(),
    }
}

#[tokio::test]
async fn a_database_that_the_first_look_cannot_read_is_not_new() {
    let mut world = World::new().await;
    world.change("old");
    let faults = [
        (On::post("/_dbs_info").first(2), unreadable()),
        (On::get("/a").first(1), answers(403)),
    ];
    world.peer.set_faults(Faults::script(faults));
    let only = json!({"database": "^a$"});
    world.rule("x", Some(&calls("x", &only))).await;
    let _node = world.node(quick()).await;
    world.until_seeded(1).await;
    world.until(async || world.peer.injected().len() == 3).await;
    let looks = world.peer.count("POST", "/_dbs_info");
    let looked = async || world.peer.count("POST", "/_dbs_info") >= looks + 4;
    world.until(looked).await;
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}

/// The look is not repeated for the others.
#[tokio::test]
async fn a_database_that_cannot_be_read_holds_up_nothing_else() {
    let mut world = World::new().await;
    world.change("old");
    put(&world, "b", "old");
    let faults = [
        (On::post("/_dbs_info"), unreadable()),
        (On::get("/a"), answers(403)),
    ];
    world.peer.set_faults(Faults::script(faults));
    let _node = world.node(quick()).await;
    world.rule("x", Some(&calls("x", &json!({})))).await;
    world.until_seeded(1).await;
    world.until_listening(1).await;
    world.rule("y", Some(&calls("y", &json!({})))).await;
    world.until_seeded(2).await;
    world.until_listening(2).await;
    put(&world, "b", "new");
    called(&mut world, &["x/b/new", "y/b/new"]).await;
    // Each look asks for this one, which is not listed either.
    let several_looks = async || {
        let looks = || world.peer.count("GET", "/b");
        let before = looks();
        world.until(async || looks() >= before + 3).await;
    };
    let read = || world.peer.count("GET", "/b/_changes");
    several_looks().await;
    let reads = read();
    several_looks().await;
    assert_eq!(read(), reads);
    world.peer.set_faults(Faults::none());
    world.until_listening(4).await;
    world.change("new");
    called(&mut world, &["x/a/new", "y/a/new"]).await;
}

/// It is asked for by itself at once.
#[tokio::test]
async fn a_database_that_hangs_holds_up_nothing_else() {
    let mut world = World::new().await;
    world.change("old");
    let faults = [
        (On::post("/_dbs_info"), unreadable()),
        (On::get("/a"), Fault::Hang),
    ];
    world.peer.set_faults(Faults::script(faults));
    let only = |name: &str| json!({"database": format!("^{name}$")});
    world.rule("x", Some(&calls("x", &only("a")))).await;
    let _node = world.node(quick()).await;
    world
        .until(async || world.peer.count("GET", "/a") > 0)
        .await;
    world.rule("y", Some(&calls("y", &only("b")))).await;
    world.until_listening(1).await;
    put(&world, "b", "new");
    called(&mut world, &["y/b/new"]).await;
    // Events are not held up either.
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}

/// Then each database is asked for by itself.
#[tokio::test]
async fn a_server_may_refuse_to_tell_sequences_together() {
    for status in [403, 404] {
        let mut world = World::new().await;
        world.change("old");
        let faults = [(On::post("/_dbs_info"), answers(status))];
        world.peer.set_faults(Faults::script(faults));
        let _node = world.node(quick()).await;
        world.until_followed("db_updates").await;
        world.rule("x", Some(&calls("x", &json!({})))).await;
        let missing = calls("y", &json!({"database": "^missing$"}));
        world.rule("y", Some(&missing)).await;
        world.until_seeded(2).await;
        world.until_listening(2).await;
        world.change("new");
        called(&mut world, &["x/a/new"]).await;
        world.peer.set_feed_faults(1, LOSES_ALL);
        create(&world, "missing");
        called(&mut world, &["x/missing/first", "y/missing/first"]).await;
    }
}

/// A rule that was looked for has its replications, also of databases that were asked for one by one.
#[tokio::test]
async fn databases_that_answer_by_themselves_are_part_of_the_look() {
    let world = World::new().await;
    create(&world, "c");
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let slow = Fault::Latency { ms: 1_000 };
    let faults = [
        (On::post("/_dbs_info"), answers(404)),
        (On::get("/c").first(1), slow),
    ];
    world.peer.set_faults(Faults::script(faults));
    let mut all = copies(&world);
    all["match"] = json!({"database": "^(?<name>a|c)$"});
    world.rule("copy", Some(&all)).await;
    world.until_seeded(1).await;
    let (jobs, ty) = (world.replications.jobs(), world.replications.job_type());
    let found = jobs.list(ty, &Query::default(), None, 10).await.unwrap();
    assert_eq!(found.jobs.len(), 2);
}

/// A database that was new to an earlier revision of a rule is so to the next ones, though it cannot be read meanwhile.
#[tokio::test]
async fn an_edit_keeps_the_replications_of_databases_that_cannot_be_read() {
    let world = World::new().await;
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let all = calls("all", &json!({"database": "^c$"}));
    world.rule("all", Some(&all)).await;
    world.rule("copy", Some(&copies(&world))).await;
    world.until_seeded(2).await;
    create(&world, "c");
    let is_copied = |id: &str| matches!(world.peer.get("copy_c", id), Ok(Some(_)));
    world.until(async || is_copied("first")).await;
    let faults = [
        (On::post("/_dbs_info"), answers(404)),
        (On::get("/c"), answers(403)),
    ];
    world.peer.set_faults(Faults::script(faults));
    let asked = || world.peer.count("GET", "/c");
    let before = asked();
    let mut edited = copies(&world);
    edited["worker_batch_size"] = json!(10);
    world.rule("copy", Some(&edited)).await;
    world.until(async || asked() > before).await;
    let rules = rules::rule::Rules::new(world.replications.clone());
    let found = rules.named("_rules", "copy").await.unwrap();
    let seeded = format!("{}|", found.unwrap().unwrap().rev);
    world.until(async || world.stores(&seeded).await).await;
    world.peer.set_faults(Faults::none());
    put(&world, "c", "second");
    world.until(async || is_copied("second")).await;
}

#[tokio::test]
async fn a_database_that_a_later_look_cannot_read_is_not_new() {
    let mut world = World::new().await;
    world.change("old");
    let _node = world.node(quick()).await;
    world.until_followed("db_updates").await;
    let created = json!({"database": "^(a|c)$", "events": ["created"]});
    world.rule("new", Some(&calls("new", &created))).await;
    let copies = copies(&world);
    world.rule("copy", Some(&copies)).await;
    world.until_seeded(2).await;
    for answer in [None, Some(403), Some(404)] {
        let faults = [(On::post("/_dbs_info"), unreadable())].into_iter();
        let faults = faults.chain(answer.map(|status| (On::get("/a"), answers(status))));
        world.peer.set_faults(Faults::script(faults));
        let looks = world.peer.count("POST", "/_dbs_info");
        let looked = async || world.peer.count("POST", "/_dbs_info") >= looks + 2;
        world.until(looked).await;
        world.peer.set_faults(Faults::none());
    }
    create(&world, "c");
    let is_copied = |name: &str, id: &str| matches!(world.peer.get(name, id), Ok(Some(_)));
    world.until(async || is_copied("copy_c", "first")).await;
    assert!(!is_copied("copy_a", "old"));
    called(&mut world, &["new/c/first"]).await;
}

/// The next look comes across the database, which no feed reports.
#[tokio::test]
async fn a_database_created_while_another_cannot_be_read_is_new() {
    let mut world = World::new().await;
    world.change("old");
    let faults = [
        (On::post("/_dbs_info"), unreadable()),
        (On::get("/a"), answers(403)),
    ];
    world.peer.set_faults(Faults::script(faults));
    let some = json!({"database": "^(a|c)$"});
    world.rule("x", Some(&calls("x", &some))).await;
    let _node = world.node(without_feed()).await;
    let looked = async || world.peer.count("GET", "/a") > 0;
    world.until(looked).await;
    create(&world, "c");
    world.peer.set_faults(Faults::none());
    called(&mut world, &["x/c/first"]).await;
    world.until_listening(2).await;
    world.change("new");
    called(&mut world, &["x/a/new"]).await;
}
