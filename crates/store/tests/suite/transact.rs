//! The retry loop, as its caller sees it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use store::{AsStoreError, Call, Error, Transaction};

use crate::support::{Fixture, all, get, once, put};

#[derive(Debug, PartialEq)]
enum Layer {
    Refused,
    Store(String),
}

impl From<Error> for Layer {
    fn from(error: Error) -> Self {
        Self::Store(error.to_string())
    }
}

impl AsStoreError for Layer {
    fn as_store_error(&self) -> Option<&Error> {
        None
    }
}

pub(crate) async fn a_conflict_is_retried(f: Fixture) {
    let store = &f.store;
    let body = |tx: Transaction| async move {
        tx.get(b"a").await?;
        if tx.attempt() < 4 {
            put(store, &[(b"a", b"")]).await;
        }
        tx.set(b"b", b"");
        assert!(!tx.maybe_committed());
        Ok::<_, Error>(tx.attempt())
    };
    assert_eq!(store.transact("busy", body).await.unwrap(), 4);
}

pub(crate) async fn retries_end(f: Fixture) {
    let store = &f.store;
    let attempts = &AtomicU32::new(0);
    let body = |tx: Transaction| async move {
        attempts.fetch_add(1, Ordering::Relaxed);
        tx.get(b"a").await?;
        put(store, &[(b"a", b"")]).await;
        tx.set(b"b", b"");
        Ok::<_, Error>(())
    };
    let call = Call::new("hopeless").retries_max(3);
    assert!(matches!(
        store.transact(call, body).await,
        Err(Error::Conflict)
    ));
    assert_eq!(attempts.load(Ordering::Relaxed), 4);
    assert_eq!(get(store, b"b").await, None);
}

pub(crate) async fn a_deadline_ends_the_call(f: Fixture) {
    let body = |tx: Transaction| async move {
        tx.set(b"a", b"");
        std::future::pending::<Result<(), Error>>().await
    };
    let call = Call::new("hangs").deadline(Duration::from_millis(50));
    let error = f.store.transact(call, body).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        error.to_string().contains("hangs did not end within 50ms"),
        "{error}"
    );
    assert_eq!(all(&f.store).await, []);
}

pub(crate) async fn the_callers_error_comes_through(f: Fixture) {
    let body = |tx: Transaction| async move {
        tx.set(b"a", b"");
        Err::<(), _>(Layer::Refused)
    };
    assert_eq!(f.store.transact("refuse", body).await, Err(Layer::Refused));
    assert_eq!(all(&f.store).await, []);
}

pub(crate) async fn a_kept_handle_is_refused(f: Fixture) {
    let kept = &Mutex::new(None);
    let body = |tx: Transaction| async move {
        tx.get(b"a").await?;
        *kept.lock().unwrap() = Some(tx);
        Err::<(), _>(Error::Misuse("over"))
    };
    assert!(f.store.transact(once("keep"), body).await.is_err());
    let body = |tx: Transaction| async move {
        tx.set(b"a", b"");
        *kept.lock().unwrap() = Some(tx);
        Ok::<_, Error>(())
    };
    // Whether such a commit is refused or done, the handle is of no more use.
    let done = f.store.transact(once("keep"), body).await;
    let tx = kept.lock().unwrap().take().unwrap();
    assert!(matches!(tx.get(b"a").await, Err(Error::Misuse(_))));
    assert_eq!(all(&f.store).await.len(), usize::from(done.is_ok()));
}

pub(crate) async fn a_dropped_call_leaves_all_or_nothing(f: Fixture) {
    for polls in 1..12_u8 {
        let body = |tx: Transaction| async move {
            tx.get(b"x").await?;
            tx.set(&[polls, 0], b"");
            tx.get(b"y").await?;
            tx.set(&[polls, 1], b"");
            Ok::<_, Error>(())
        };
        let mut call = Box::pin(f.store.transact("dropped", body));
        for _ in 0..polls {
            if futures::poll!(&mut call).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // A write that waits for everything before it.
    put(&f.store, &[(b"end", b"")]).await;
    let rows = all(&f.store).await;
    for polls in 1..12 {
        let written = rows.iter().filter(|(key, _)| key[0] == polls).count();
        assert!(
            written == 0 || written == 2,
            "half a transaction after {polls} polls"
        );
    }
}

pub(crate) async fn what_it_cost_is_counted(f: Fixture) {
    let store = &f.store;
    let body = |tx: Transaction| async move {
        tx.get(b"a").await?;
        if tx.attempt() == 1 {
            put(store, &[(b"a", b"")]).await;
        }
        tx.set(b"b", b"");
        Ok::<_, Error>(())
    };
    store.transact("counted", body).await.unwrap();
    let stats = store.stats()["counted"];
    assert_eq!(
        (stats.calls, stats.attempts, stats.conflicts, stats.errors),
        (1, 2, 1, 0)
    );
    assert!(stats.bytes > 0);
}

pub(crate) async fn handles_share_rows(f: Fixture) {
    let other = if f.place.url == "memory:" {
        f.store.clone()
    } else {
        store::Store::open(&f.place.url).await.unwrap()
    };
    put(&f.store, &[(b"a", b"1")]).await;
    assert_eq!(get(&other, b"a").await, Some(b"1".to_vec()));
    assert_eq!(other.incarnation(), f.store.incarnation());
}
