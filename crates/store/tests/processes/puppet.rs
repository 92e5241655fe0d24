//! A child that does what it is told, line by line.

use std::sync::Arc;

use store::{Call, Error, Store, Transaction};
use testkit::child_url;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::{Notify, oneshot};

pub(crate) async fn run() {
    let store = Store::open(&child_url()).await.unwrap();
    println!("- ready");
    let mut orders = BufReader::new(stdin()).lines();
    let end = Arc::new(Notify::new());
    while let Ok(Some(order)) = orders.next_line().await {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["get", key] => say(get(&store, key).await),
            ["set", key, value] => say(set(&store, key, value.as_bytes()).await),
            ["fill", key, bytes] => {
                let value = vec![b'v'; bytes.parse().unwrap()];
                say(set(&store, key, &value).await);
            }
            ["watch", key] => watch(&store, key).await,
            ["begin", key] => begin(&store, key, &end).await,
            ["end"] => end.notify_one(),
            _ => panic!("an unknown order: {order}"),
        }
    }
}

fn say(told: Result<String, Error>) {
    match told {
        Ok(told) => println!("- {told}"),
        Err(error) => println!("- {error}"),
    }
}

fn once(name: &'static str) -> Call {
    Call::new(name).retries_max(0)
}

async fn get(store: &Store, key: &str) -> Result<String, Error> {
    let body = |tx: Transaction| async move { tx.get(key.as_bytes()).await };
    let value = store.transact(once("get"), body).await?;
    Ok(value.map_or("none".to_owned(), |value| {
        String::from_utf8(value.to_vec()).unwrap()
    }))
}

async fn set(store: &Store, key: &str, value: &[u8]) -> Result<String, Error> {
    let body = |tx: Transaction| async move {
        tx.set(key.as_bytes(), value);
        Ok::<_, Error>("done".to_owned())
    };
    store.transact(once("set"), body).await
}

async fn watch(store: &Store, key: &str) {
    let body = |tx: Transaction| async move { tx.watch(key.as_bytes()).await };
    let watch = store.transact("watch", body).await.unwrap();
    println!("- armed");
    tokio::spawn(async move {
        watch.changed().await.unwrap();
        println!("- fired");
    });
}

/// A transaction that reads a key, waits for its end, and writes another.
async fn begin(store: &Store, key: &str, end: &Arc<Notify>) {
    let (store, key, end) = (store.clone(), key.to_owned(), Arc::clone(end));
    let (began, has_begun) = oneshot::channel();
    let began = std::sync::Mutex::new(Some(began));
    tokio::spawn(async move {
        let (key, end, began) = (&key, &end, &began);
        let body = |tx: Transaction| async move {
            tx.get(key.as_bytes()).await?;
            if let Some(began) = began.lock().unwrap().take() {
                began.send(()).unwrap();
            }
            end.notified().await;
            tx.set(b"written by the transaction", b"");
            Ok::<_, Error>("committed".to_owned())
        };
        say(store.transact(once("begin"), body).await);
    });
    has_begun.await.unwrap();
    println!("- began");
}
