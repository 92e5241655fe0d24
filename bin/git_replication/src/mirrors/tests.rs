//! Events, what a push takes, and how it ends.

use jobs::Holder;

use super::*;
use crate::config::tests::read;

#[tokio::test]
async fn a_target_that_no_configuration_has_is_dropped_in_the_end() {
    let config = read("[remote \"a\"]\nurl = /m/${name}\n").unwrap();
    let project = crate::project::Project::new("app").unwrap();
    let targets: Vec<Target> = config.targets(&project).collect();
    let mirrors = Mirrors::open("memory:").await.unwrap();
    mirrors.register(None).await.unwrap();
    let refs = Refs::of(["refs/heads/a"]);
    mirrors.notify(&targets, &refs, When::Now).await.unwrap();
    let holder = Holder::new("node").unwrap();
    let accepted = mirrors.jobs.accept(&mirrors.ty, &holder, 1).await.unwrap();
    let accepted = &accepted.jobs[0];
    let mut mirror: Mirror = decode(&accepted.data).unwrap();
    for failures in 1..=11 {
        mirror.refs = refs.clone();
        let outcome = Outcome::failed(Class::Unknown, "unknown", &refs);
        let remote = config.remote("a");
        let end = mirrors.end(&accepted.job, mirror, outcome, remote).await;
        let finish = end.unwrap();
        assert_eq!(finish.again_ms.is_some(), failures <= 10, "{failures}");
        assert!(finish.failed && !finish.dead);
        mirror = decode(&finish.data.unwrap()).unwrap();
        assert_eq!(mirror.refs.is_empty(), failures > 10);
    }
}

#[tokio::test]
async fn events_after_a_dead_letter_get_all_retries() {
    let config = read("[remote \"a\"]\nurl = /m/${name}\nreplicationMaxRetries = 2\n").unwrap();
    let project = crate::project::Project::new("app").unwrap();
    let targets: Vec<Target> = config.targets(&project).collect();
    let mirrors = Mirrors::open("memory:").await.unwrap();
    mirrors.register(None).await.unwrap();
    let refs = Refs::of(["refs/heads/a"]);
    let holder = Holder::new("node").unwrap();
    for round in 0..2 {
        for failures in 1..=3 {
            mirrors.notify(&targets, &refs, When::Now).await.unwrap();
            let accepted = mirrors.jobs.accept(&mirrors.ty, &holder, 1).await.unwrap();
            let accepted = &accepted.jobs[0];
            let mirror = mirrors.take(&accepted.job).await.unwrap();
            let outcome = Outcome::failed(Class::Offline, "down", &refs);
            let remote = config.remote("a");
            let end = mirrors.end(&accepted.job, mirror, outcome, remote).await;
            let finish = end.unwrap();
            assert_eq!(finish.dead, failures == 3, "{round} {failures}");
            let _ = mirrors.jobs.finish(&accepted.job, finish).await;
        }
    }
}

#[tokio::test]
async fn refs_that_arrive_while_a_take_is_repeated_stay() {
    let config = read("[remote \"a\"]\nurl = /m/${name}\n").unwrap();
    let project = crate::project::Project::new("app").unwrap();
    let targets: Vec<Target> = config.targets(&project).collect();
    let mirrors = Mirrors::open("memory:").await.unwrap();
    mirrors.register(None).await.unwrap();
    let [first, second] = ["refs/heads/a", "refs/heads/b"].map(|name| Refs::of([name]));
    mirrors.notify(&targets, &first, When::Now).await.unwrap();
    let holder = Holder::new("node").unwrap();
    let accepted = mirrors.jobs.accept(&mirrors.ty, &holder, 1).await.unwrap();
    let accepted = &accepted.jobs[0];
    let (store, faults) = mirrors.jobs.store().with_faults(store::Faults::default());
    let unsure = Mirrors::new(store).unwrap();
    faults.set_next_commit(store::CommitFate::UnknownApplied);
    let listed = async || mirrors.list(true).await.unwrap().remove(0);
    let (taken, ()) = tokio::join!(unsure.take(&accepted.job), async {
        while !listed().await.arrived.is_empty() {
            tokio::task::yield_now().await;
        }
        mirrors.notify(&targets, &second, When::Now).await.unwrap();
    });
    let mut stored = listed().await;
    assert_eq!(stored.mirror.refs, taken.unwrap().refs);
    stored.arrived.merge(&stored.mirror.refs);
    assert_eq!(stored.arrived, Refs::of(["refs/heads/a", "refs/heads/b"]));
}

/// Another node may have created the ref, and this one does not see it yet.
#[tokio::test]
async fn an_event_for_an_absent_ref_makes_its_deletion_wait_again() {
    let config = read("[remote \"a\"]\nurl = /m/${name}\n").unwrap();
    let project = crate::project::Project::new("app").unwrap();
    let targets: Vec<Target> = config.targets(&project).collect();
    let mirrors = Mirrors::open("memory:").await.unwrap();
    mirrors.register(None).await.unwrap();
    let holder = Holder::new("node").unwrap();
    let names = ["refs/heads/a", "refs/heads/b"];
    let taken = async |refs| {
        mirrors.notify(&targets, &refs, When::Now).await.unwrap();
        let accepted = mirrors.jobs.accept(&mirrors.ty, &holder, 1).await.unwrap();
        let accepted = accepted.jobs.into_iter().next().unwrap();
        let mirror = mirrors.take(&accepted.job).await.unwrap();
        (accepted.job, mirror)
    };
    let (job, mut mirror) = taken(Refs::of(names)).await;
    mirror.absent = names.map(|name| (name.to_owned(), 1)).into();
    let outcome = Outcome::failed(Class::Rejected, "refused", &mirror.refs);
    let finish = mirrors.end(&job, mirror, outcome, config.remote("a"));
    let _ = mirrors.jobs.finish(&job, finish.await.unwrap()).await;
    let (_, mirror) = taken(Refs::of([names[0]])).await;
    assert_eq!(mirror.refs, Refs::of(names));
    assert!(mirror.absent.keys().eq([names[1]]));
}

#[tokio::test]
async fn limits_are_those_of_the_configuration() {
    let mirrors = Mirrors::open("memory:").await.unwrap();
    mirrors.register(None).await.unwrap();
    // More than there may be, together.
    let many = |first| (first..first + 600).map(|nth: u32| format!("r{nth:04}"));
    let some = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    for names in [
        some(&["a", "b"]),
        some(&["b"]),
        some(&["a"]),
        many(0).collect(),
        many(600).collect::<Vec<_>>(),
    ] {
        let remotes = names
            .iter()
            .map(|name| format!("[remote \"{name}\"]\nurl = /{name}/${{name}}\n"));
        let text: String = remotes.collect();
        mirrors.limit(&read(&text).unwrap()).await.unwrap();
        let limits = mirrors.jobs.limits(&mirrors.ty).await.unwrap();
        let expected = names.iter().map(|name| pool(name).unwrap());
        assert!(limits.into_keys().eq(expected));
    }
}
