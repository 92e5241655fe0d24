//! Subscriptions: 29 to 32 of the tests of `couch_jobs`, and the further cases about them.

use std::time::Duration;

use futures::future::join_all;
use jobs::{Accepted, Add, Error, Finish, JobType, Notice, NotifierHandle, State, Subscription};
use tokio::time::{Instant, sleep};

use crate::support::Queue;

/// State and data of a notice.
fn told(notice: Option<Notice>) -> (Option<State>, String) {
    match notice {
        Some(Notice::Job(info, data)) => {
            (Some(info.state), String::from_utf8(data.to_vec()).unwrap())
        }
        other => panic!("expected a notice of a job, got {other:?}"),
    }
}

fn any(_: &Notice) -> bool {
    true
}

/// Scenario 29: Subscribing twice gives two subscriptions here, with the same notices.
pub(crate) async fn subscribe_and_follow(mut queue: Queue) {
    let notifier = queue.notifier();
    let missing = notifier.subscribe(&queue.id("j")).await;
    assert!(matches!(missing, Err(Error::NotFound)), "{missing:?}");
    let unknown = JobType::new("unknown").unwrap();
    let (service, of_unknown) = jobs::Notifier::new(queue.jobs.clone(), unknown, queue.options());
    let token = queue.token();
    queue.spawn(service.run(token));
    let refused = of_unknown.subscribe(&queue.id("j")).await;
    assert!(
        matches!(refused, Err(Error::NoTypeTimeout(_))),
        "{refused:?}"
    );

    queue.add("j", "0", 0).await;
    let mut first = notifier.subscribe(&queue.id("j")).await.unwrap();
    let second = notifier.subscribe(&queue.id("j")).await.unwrap();
    assert_eq!(
        told(Some(first.now().clone())),
        (Some(State::Pending), "0".into())
    );
    drop(second);
    let mut second = notifier.subscribe(&queue.id("j")).await.unwrap();
    let job = queue.accept_one().await;
    assert_eq!(told(first.next().await), (Some(State::Running), "0".into()));
    assert_eq!(
        told(second.next().await),
        (Some(State::Running), "0".into())
    );
    assert!(
        !queue
            .jobs
            .update(&job, Some("1".into()))
            .await
            .unwrap()
            .again
    );
    assert_eq!(told(first.next().await), (Some(State::Running), "1".into()));
    let finish = Finish::done().data("2");
    assert!(!queue.jobs.finish(&job, finish).await.unwrap().again);
    assert_eq!(
        told(first.next().await),
        (Some(State::Finished), "2".into())
    );
    assert_eq!(first.next().await, None, "that was the last");

    let third = notifier.subscribe(&queue.id("j")).await.unwrap();
    assert_eq!(
        told(Some(third.now().clone())),
        (Some(State::Finished), "2".into())
    );
    assert!(third.now().is_last());
    queue.jobs.remove(&queue.ty, &queue.id("j")).await.unwrap();
    let missing = notifier.subscribe(&queue.id("j")).await;
    assert!(matches!(missing, Err(Error::NotFound)), "{missing:?}");
    queue.stop().await;
    queue.check().await;
}

/// 30.
pub(crate) async fn removed_while_pending(mut queue: Queue) {
    let notifier = queue.notifier();
    queue.add("j", "", 0).await;
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    queue.jobs.remove(&queue.ty, &queue.id("j")).await.unwrap();
    assert_eq!(subscription.next().await, Some(Notice::Removed));
    assert_eq!(subscription.next().await, None);
}

/// 31.
pub(crate) async fn removed_while_running(mut queue: Queue) {
    let notifier = queue.notifier();
    queue.add("j", "", 0).await;
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    queue.accept_one().await;
    assert_eq!(told(subscription.next().await).0, Some(State::Running));
    queue.jobs.remove(&queue.ty, &queue.id("j")).await.unwrap();
    assert_eq!(subscription.next().await, Some(Notice::Removed));
    assert_eq!(subscription.next().await, None);
}

/// 32.
pub(crate) async fn follow_several(mut queue: Queue) {
    let notifier = queue.notifier();
    queue.add("a", "", 0).await;
    queue.add("b", "", 0).await;
    let mut following = [
        notifier.subscribe(&queue.id("a")).await.unwrap(),
        notifier.subscribe(&queue.id("b")).await.unwrap(),
    ];
    let (long, short) = (queue.timeout() * 20, queue.timeout());
    let first = queue.accept_one().await;
    let (n, notice) = Subscription::wait_any(&mut following, long).await.unwrap();
    assert_eq!(following[n].id(), &first.id);
    assert_eq!(notice.state(), Some(State::Running));
    if queue.exact() {
        assert_eq!(Subscription::wait_any(&mut following, short).await, None);
    }
    let second = queue.accept_one().await;
    let (n, notice) = Subscription::wait_any(&mut following, long).await.unwrap();
    assert_eq!(following[n].id(), &second.id);
    assert_eq!(notice.state(), Some(State::Running));
    for (job, data) in [(&first, "1"), (&second, "2")] {
        assert!(
            !queue
                .jobs
                .update(job, Some(data.into()))
                .await
                .unwrap()
                .again
        );
        let (n, notice) = Subscription::wait_any(&mut following, long).await.unwrap();
        assert_eq!(following[n].id(), &job.id);
        assert_eq!(told(Some(notice)), (Some(State::Running), data.into()));
    }
    for (job, data) in [(&first, "3"), (&second, "4")] {
        let finish = Finish::done().data(data);
        assert!(!queue.jobs.finish(job, finish).await.unwrap().again);
        let (n, notice) = Subscription::wait_any(&mut following, long).await.unwrap();
        assert_eq!(following[n].id(), &job.id);
        assert_eq!(told(Some(notice)), (Some(State::Finished), data.into()));
    }
    assert_eq!(Subscription::wait_any(&mut following, long).await, None);
}

/// Further 16.
pub(crate) async fn clearing_a_type_ends_subscriptions(mut queue: Queue) {
    let notifier = queue.notifier();
    queue.add("j", "", 0).await;
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    queue.jobs.clear_type(&queue.ty).await.unwrap();
    assert_eq!(subscription.next().await, Some(Notice::TypeCleared));
    assert_eq!(subscription.next().await, None);
    let refused = notifier.subscribe(&queue.id("j")).await;
    assert!(matches!(refused, Err(Error::NoTypeTimeout(_))));
    // The type is registered again, and jobs can be followed again.
    queue
        .jobs
        .set_type(&queue.ty, queue.config())
        .await
        .unwrap();
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    queue.accept_one().await;
    assert_eq!(told(subscription.next().await).0, Some(State::Running));
}

/// Further 19. Dropping a subscription drops its queued notices.
pub(crate) async fn dropped_subscriptions_get_nothing(mut queue: Queue) {
    let notifier = queue.notifier();
    queue.add("j", "", 0).await;
    for _ in 0..3 {
        let mut kept = notifier.subscribe(&queue.id("j")).await.unwrap();
        let dropped = notifier.subscribe(&queue.id("j")).await.unwrap();
        let job = queue.accept_one().await;
        assert_eq!(told(kept.next().await).0, Some(State::Running));
        drop(dropped);
        assert!(
            queue
                .jobs
                .finish(&job, Finish::again(0))
                .await
                .unwrap()
                .again
        );
        let again = notifier.subscribe(&queue.id("j")).await.unwrap();
        assert_eq!(
            again.now().state(),
            Some(State::Pending),
            "it knows only what is"
        );
    }
    queue.stop().await;
    queue.check().await;
}

/// Further 24. One deadline covers all notices.
pub(crate) async fn waiting_has_a_deadline(mut queue: Queue) {
    let notifier = queue.notifier();
    queue.add("j", "", 0).await;
    let mut subscription = notifier.subscribe(&queue.id("j")).await.unwrap();
    let job = queue.accept_one().await;
    let started = Instant::now();
    let wait = queue.timeout() * 2;
    let finished = |notice: &Notice| notice.state() == Some(State::Finished);
    let progress = async {
        for n in 0.. {
            let data = Some(format!("{n}").into());
            assert!(!queue.jobs.update(&job, data).await.unwrap().again);
            sleep(queue.timeout() / 20).await;
        }
    };
    let told = tokio::select! {
        told = subscription.wait(wait, finished) => told,
        () = progress => None,
    };
    assert_eq!(told, None);
    assert!(started.elapsed() >= wait);
    assert!(started.elapsed() < wait * 2);
    assert!(!queue.jobs.finish(&job, Finish::done()).await.unwrap().again);
    let told = subscription.wait(wait * 5, any).await;
    assert!(told.is_some());
}

/// Further 17: ten thousand times a job finishes while a caller subscribes to it, and none waits
/// for an event in the past. A hundred at a time, so that one disk is enough.
pub(crate) async fn subscribing_races_with_finishing(mut queue: Queue) {
    let notifier = queue.notifier();
    for round in 0..100 {
        let adds: Vec<Add> = (0..100)
            .map(|n| Add::new(queue.id(&format!("{round}-{n}")), ""))
            .collect();
        queue.jobs.add_many(&queue.ty, &adds).await.unwrap();
        let claimed = queue.jobs.accept(&queue.ty, &queue.me, 100).await.unwrap();
        assert_eq!(claimed.jobs.len(), 100);
        let races = (round..).zip(&claimed.jobs);
        let races = races.map(|(n, accepted)| race(&queue, &notifier, accepted, n));
        tokio::time::timeout(queue.timeout() * 100, join_all(races))
            .await
            .expect("no subscription hangs");
    }
    queue.stop().await;
    queue.check().await;
}

/// Ends a run and follows its job, at slightly different times.
async fn race(queue: &Queue, notifier: &NotifierHandle, accepted: &Accepted, n: u64) {
    let finish = async {
        sleep(Duration::from_micros(n % 7 * 100)).await;
        let held = queue.jobs.finish(&accepted.job, Finish::done()).await;
        assert!(!held.unwrap().again);
    };
    let follow = async {
        sleep(Duration::from_micros(n % 5 * 100)).await;
        let mut subscription = notifier.subscribe(&accepted.job.id).await.unwrap();
        while !subscription.now().is_last() {
            subscription.next().await.unwrap();
        }
        assert_eq!(subscription.now().state(), Some(State::Finished));
    };
    tokio::join!(finish, follow);
}
