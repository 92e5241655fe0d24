//! A child that moves money between accounts until it is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use store::{Error, Store, Transaction};
use testkit::child_url;

pub(crate) const ACCOUNTS: u64 = 20;
pub(crate) const TOTAL: u64 = 20_000;

pub(crate) fn account(number: u64) -> Vec<u8> {
    format!("account/{number:02}").into_bytes()
}

pub(crate) fn done_key(id: &str) -> Vec<u8> {
    format!("done/{id}").into_bytes()
}

pub(crate) async fn run() {
    let store = Store::open(&child_url()).await.unwrap();
    let mut seeds = rand::rng();
    let number = Arc::new(AtomicU64::new(0));
    let mut tasks: Vec<_> = (0..4)
        .map(|_| {
            let rng = SmallRng::seed_from_u64(seeds.random());
            tokio::spawn(transfers(store.clone(), rng, Arc::clone(&number)))
        })
        .collect();
    tasks.push(tokio::spawn(check(store)));
    for task in tasks {
        if let Err(error) = task.await {
            println!("- {error}");
        }
    }
}

async fn transfers(store: Store, mut rng: SmallRng, number: Arc<AtomicU64>) {
    let process = std::process::id();
    loop {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let id = format!("{process}-{:08x}-{number}", rng.random::<u32>());
        let (from, to) = (rng.random_range(0..ACCOUNTS), rng.random_range(0..ACCOUNTS));
        let amount = rng.random_range(1..50);
        let id = &id;
        let body = |tx: Transaction| async move { transfer(&tx, from, to, amount, id).await };
        store.transact("transfer", body).await.unwrap();
        println!("- ack {id}");
    }
}

async fn transfer(
    tx: &Transaction,
    from: u64,
    to: u64,
    amount: u64,
    id: &str,
) -> Result<(), Error> {
    let done = done_key(id);
    if tx.get(&done).await?.is_some() {
        return Ok(());
    }
    let balance =
        |value: Option<bytes::Bytes>| u64::from_le_bytes(value.unwrap()[..].try_into().unwrap());
    let paid = balance(tx.get(&account(from)).await?).min(amount);
    tx.add(&account(from), -i64::try_from(paid).unwrap());
    tx.add(&account(to), i64::try_from(paid).unwrap());
    tx.set(&done, b"");
    Ok(())
}

/// Looks again and again whether money was lost.
async fn check(store: Store) {
    loop {
        let body = |tx: Transaction| async move {
            let mut sum = 0;
            for number in 0..ACCOUNTS {
                let balance = tx.get(&account(number)).await?.unwrap();
                sum += u64::from_le_bytes(balance[..].try_into().unwrap());
            }
            Ok::<_, Error>(sum)
        };
        let sum = store.transact("check", body).await.unwrap();
        assert_eq!(sum, TOTAL, "money was lost or made");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
