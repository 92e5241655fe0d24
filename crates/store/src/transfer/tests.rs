use tempfile::TempDir;

use super::*;
use crate::nodes::{Node, Registration};

fn node(store: &Store) -> Registration {
    let node = Node {
        name: "n1".to_owned(),
        roles: "replication".to_owned(),
        version: "0.1.0".to_owned(),
        started_ms: 5,
    };
    Registration::new(store.clone(), 1, node)
}

/// Runs `write` after the first row was exported.
async fn export_beside(store: &Store, write: impl AsyncFnOnce()) -> String {
    let (mut output, input) = tokio::io::duplex(1);
    let read = async {
        let mut input = input;
        let mut header = [0; MAGIC.len() + 10];
        input.read_exact(&mut header).await.unwrap();
        write().await;
        let mut rest = Vec::new();
        input.read_to_end(&mut rest).await.unwrap();
    };
    let export = async {
        let exported = store.export(&mut output).await;
        drop(output);
        exported
    };
    let (exported, ()) = tokio::join!(export, read);
    exported.unwrap_err().to_string()
}

async fn set(store: &Store, key: &str) {
    let body = |tx: Transaction| async move {
        tx.set(key.as_bytes(), b"value");
        Ok::<_, Error>(())
    };
    store.transact("set", body).await.unwrap();
}

#[tokio::test]
async fn an_export_of_a_store_in_use_fails() {
    let directory = TempDir::new().unwrap();
    for url in ["memory:", &format!("lmdb:{}", directory.path().display())] {
        let store = Store::open(url).await.unwrap();
        set(&store, "a").await;
        let error = export_beside(&store, async || set(&store, "b").await).await;
        assert!(
            error.starts_with("the store was written to while"),
            "{error}"
        );
        let mut node = node(&store);
        node.beat(1).await.unwrap();
        let error = export_beside(&store, async || node.beat(2).await.unwrap()).await;
        assert!(error.starts_with("node n1 used the store while"), "{error}");
        // It was killed, or shows no sign of life in the meantime.
        store.export(&mut Vec::new()).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_follows_the_end_of_an_export() {
    let store = Store::open("memory:").await.unwrap();
    set(&store, "a").await;
    let mut export = Vec::new();
    store.export(&mut export).await.unwrap();
    export.push(b'\n');
    let error = Store::import("memory:", &mut &export[..])
        .await
        .unwrap_err();
    assert!(
        error.to_string().ends_with("more follows its end"),
        "{error}"
    );
}
