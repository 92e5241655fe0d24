//! Servers that give no response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use couch::{Endpoint, ProbeTimes, RequestOptions};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

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
            ..ProbeTimes::default()
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

fn up(recorder: &PrometheusRecorder, server: &str) -> Option<String> {
    let text = recorder.handle().render();
    let series = format!("davenport_endpoint_up{{server=\"{server}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.map(str::to_owned)
}

#[tokio::test]
async fn a_server_is_forgotten_once_nothing_uses_it() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (probed, mut was_probed) = tokio::sync::mpsc::unbounded_channel();
    let fake = Fake::new(move |_| {
        probed.send(()).unwrap();
        vec![Step::Close]
    });
    let fake = fake.await;
    let network = network_with(|options| {
        options.probes = ProbeTimes {
            pause: Duration::from_millis(10),
            timeout: Duration::from_millis(200),
            linger: Duration::ZERO,
        };
    });
    let endpoint = Endpoint::from_url(&fake.url("/db")).unwrap();
    let server = fake.url("").trim_end_matches('/').to_owned();
    let db = network.database(endpoint.clone(), hasty()).await.unwrap();
    db.info().await.unwrap_err();
    for _ in 0..10 {
        was_probed.recv().await.unwrap();
    }
    assert_eq!(up(&recorder, &server).unwrap(), "0", "a handle uses it");
    network.need_server(&endpoint, Duration::from_hours(9));
    drop(db);
    for _ in 0..10 {
        was_probed.recv().await.unwrap();
    }
    assert_eq!(
        up(&recorder, &server).unwrap(),
        "0",
        "it will be used again"
    );

    let endpoint = Endpoint::from_url("http://127.0.0.1:1/db").unwrap();
    let mut held = network.reachability(&endpoint);
    let db = network.database(endpoint.clone(), hasty()).await.unwrap();
    db.info().await.unwrap_err();
    drop(db);
    held.changed().await;
    assert_eq!(up(&recorder, held.server()).unwrap(), "0");
    let server = held.server().to_owned();
    drop(held);
    let forgotten = async {
        while up(&recorder, &server).unwrap() != "NaN" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), forgotten)
        .await
        .unwrap();
    assert_eq!(network.reachability(&endpoint).outage(), None);
}

/// Their servers are healthy, or their addresses are refused: nothing probes them.
#[tokio::test]
async fn unused_servers_make_room_for_others() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let network = network_with(|_| {});
    let server = |n: usize| {
        let url = format!("http://host{n}.invalid/db");
        network.reachability(&Endpoint::from_url(&url).unwrap())
    };
    let used = server(0);
    for n in 1..=100 {
        server(n);
    }
    assert_eq!(up(&recorder, used.server()).unwrap(), "1");
    assert_eq!(up(&recorder, "http://host1.invalid").unwrap(), "NaN");
    assert_eq!(up(&recorder, "http://host100.invalid").unwrap(), "1");
}
