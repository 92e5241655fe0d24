//! Servers that give no response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use couch::{Endpoint, ProbeTimes, RequestOptions};

use crate::fake::{Fake, Step, impatient, json, network_with};

const INFO: &str = r#"{"update_seq":1,"instance_start_time":"0"}"#;

fn hasty() -> RequestOptions {
    RequestOptions {
        inactivity_ms: 200,
        ..impatient()
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_unreachable_until_it_responds() {
    let hangs = Arc::new(AtomicBool::new(true));
    let hanging = Arc::clone(&hangs);
    let fake = Fake::new(move |_| {
        if hanging.load(Ordering::SeqCst) {
            vec![Step::Stall]
        } else {
            vec![Step::Send(json(200, INFO))]
        }
    });
    let fake = fake.await;
    let network = network_with(|options| {
        options.probes = ProbeTimes {
            pause: Duration::from_millis(10),
            timeout: Duration::from_millis(200),
        };
    });
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let mut server = network.reachability(&endpoint);
    assert_eq!(server.server(), fake.url("").trim_end_matches('/'));
    assert_eq!(server.outage(), None);
    let db = network.database(endpoint, hasty()).await.unwrap();
    db.info().await.unwrap_err();
    server.changed().await;
    let outage = server.outage().unwrap();
    assert!(
        outage.contains("nothing received") || outage.contains("not done"),
        "{outage}"
    );
    let seen = fake.seen();
    let probes = seen.iter().filter(|seen| seen.path() == "/");
    assert!(probes.clone().count() >= 2);
    assert!(
        probes
            .clone()
            .all(|seen| seen.header("authorization").is_none())
    );
    hangs.store(false, Ordering::SeqCst);
    server.changed().await;
    assert_eq!(server.outage(), None);
    db.info().await.unwrap();
}

#[tokio::test]
async fn a_database_that_hangs_does_not_make_its_server_unreachable() {
    let (probed, mut was_probed) = tokio::sync::mpsc::unbounded_channel();
    let fake = Fake::new(move |seen| match seen.path() {
        "/db/" | "/db" => vec![Step::Stall],
        _ => {
            probed.send(()).unwrap();
            vec![Step::Send(json(401, "{}"))]
        }
    });
    let fake = fake.await;
    let network = network_with(|options| options.probes.pause = Duration::from_millis(10));
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let server = network.reachability(&endpoint);
    let db = network.database(endpoint, hasty()).await.unwrap();
    db.info().await.unwrap_err();
    was_probed.recv().await.unwrap();
    db.info().await.unwrap_err();
    was_probed.recv().await.unwrap();
    assert_eq!(server.outage(), None);
}
