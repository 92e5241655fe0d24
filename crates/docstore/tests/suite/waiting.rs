//! Waiting for changes.

use std::time::Duration;

use docstore::{ChangesQuery, Error, Seq};
use futures::future::join_all;
use tokio::time::timeout;

use super::support::Fixture;

/// Long, because a test must not depend on how fast anything is.
const LONG: Duration = Duration::from_mins(1);

pub(crate) async fn waiters_share_one_watch(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let mut listeners: Vec<_> = (0..1000).map(|_| docstore.listen(db)).collect();
    let waiting = join_all(
        listeners
            .iter_mut()
            .map(|listener| listener.changed_since(Seq::ZERO)),
    );
    let write = async {
        // Not before the watch is there: what comes earlier would be seen without it.
        while docstore
            .store()
            .stats()
            .get("watch_changes")
            .is_none_or(|stats| stats.calls == 0)
        {
            tokio::task::yield_now().await;
        }
        fixture.put("a", None, "{}").await.unwrap();
    };
    let (woken, ()) = timeout(LONG, futures::future::join(waiting, write))
        .await
        .unwrap();
    assert!(woken.into_iter().all(|woken| woken.is_ok()));
    let looks = docstore.store().stats()["watch_changes"].calls;
    assert!(looks < 10, "{looks} looks for one change");
}

pub(crate) async fn a_waiter_sees_what_came_before(fixture: Fixture) {
    let mut listener = fixture.docstore.listen(&fixture.db);
    let mut seq = Seq::ZERO;
    for number in 0..20 {
        fixture
            .put(&format!("d{number}"), None, "{}")
            .await
            .unwrap();
        timeout(LONG, listener.changed_since(seq))
            .await
            .unwrap()
            .unwrap();
        let query = ChangesQuery {
            since: seq.into(),
            ..ChangesQuery::default()
        };
        let (rows, last_seq) = fixture.changes(query).await;
        assert_eq!(rows.len(), 1);
        seq = last_seq;
        // There are no further changes, and the feed gets no notification.
        let mut quiet = std::pin::pin!(listener.changed_since(seq));
        assert!(futures::poll!(&mut quiet).is_pending());
    }
}

pub(crate) async fn a_waiter_hears_of_the_deletion(fixture: Fixture) {
    let Fixture { docstore, db, .. } = &fixture;
    let mut listener = docstore.listen(db);
    let delete = docstore.delete_database(db);
    let (heard, deleted) = futures::future::join(listener.changed_since(Seq::ZERO), delete).await;
    deleted.unwrap();
    assert!(matches!(heard, Err(Error::NoDatabase)));
    let mut late = docstore.listen(db);
    assert!(matches!(
        late.changed_since(Seq::ZERO).await,
        Err(Error::NoDatabase)
    ));
}
