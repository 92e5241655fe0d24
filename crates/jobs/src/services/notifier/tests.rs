use bytes::Bytes;
use store::{CommitFate, FaultControl, Faults, Store};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::*;
use crate::{Add, Clock, Entropy, Finish, Holder, State, TypeConfig};

/// A notifier on a faulty store, and a handle of the same table on one without faults.
struct Scene {
    notifier: Notifier,
    handle: NotifierHandle,
    control: FaultControl,
    id: JobId,
}

impl Scene {
    /// One pending job and a running notifier.
    async fn new(faults: Faults) -> Self {
        let calm = Store::open("memory:").await.unwrap();
        let (faulty, control) = calm.with_faults(faults);
        let jobs = |store, seed| Jobs::new(store, Clock::simulated(1), Entropy::seeded(seed));
        let (jobs, ty) = ((jobs(faulty, 1), jobs(calm, 2)), JobType::new("t").unwrap());
        let id = JobId::try_from("j").unwrap();
        (jobs.1.set_type(&ty, TypeConfig::new(2_000)).await).unwrap();
        (jobs.1.add(&ty, Add::new(id.clone(), "")).await).unwrap();
        let (mut notifier, handle) = Notifier::new(jobs.0, ty, Options::default());
        notifier.pass().await.unwrap();
        let handle = NotifierHandle {
            jobs: jobs.1,
            ..handle
        };
        Self {
            notifier,
            handle,
            control,
            id,
        }
    }
}

/// Runs and finishes the job.
async fn run(handle: &NotifierHandle) {
    let me = Holder::new("me").unwrap();
    let claimed = handle.jobs.accept(&handle.ty, &me, 1).await.unwrap();
    let finish = Finish::done();
    let ended = handle.jobs.finish(&claimed.jobs[0].job, finish).await;
    assert!(!ended.unwrap().again);
}

/// The state that a subscriber gets at once.
async fn told(subscription: &mut Subscription) -> Option<State> {
    let told = timeout(Duration::from_millis(1), subscription.next()).await;
    told.expect("it is told").unwrap().state()
}

/// The notes are gone, and the notifier does not know the outcome of the commit that cleared them.
#[tokio::test(start_paused = true)]
async fn reads_with_unknown_outcome_are_retried() {
    let mut scene = Scene::new(Faults::default()).await;
    let (handle, control) = (&scene.handle, &scene.control);
    let mut subscription = handle.subscribe(&scene.id).await.unwrap();
    run(handle).await;
    control.set_next_commit(CommitFate::UnknownApplied);
    let keys = handle.jobs.keys();
    let notes = keys.notes(&handle.ty, handle.table.nonce);
    let cut_off = async {
        while !handle.jobs.rows(notes.clone()).await.is_empty() {
            yield_now().await;
        }
        control.set_outage(true);
    };
    let (passed, ()) = tokio::join!(scene.notifier.pass(), cut_off);
    assert!(passed.is_err());
    control.set_outage(false);
    scene.notifier.pass().await.unwrap();
    assert_eq!(told(&mut subscription).await, Some(State::Finished));
}

/// A job gets a subscriber and ends just after the notifier found that it has none.
#[tokio::test(start_paused = true)]
async fn a_concurrent_subscriber_is_notified() {
    let slow = Faults {
        delay: 1.0,
        delay_max: Duration::from_millis(100),
        ..Faults::default()
    };
    let mut scene = Scene::new(slow).await;
    let (handle, id) = (&scene.handle, &scene.id);
    scene.notifier.owed.insert(id.clone());
    let follow = async {
        let subscription = handle.subscribe(id).await.unwrap();
        run(handle).await;
        subscription
    };
    let (looked, mut subscription) = tokio::join!(scene.notifier.read_owed(), follow);
    looked.unwrap();
    scene.notifier.pass().await.unwrap();
    assert_eq!(told(&mut subscription).await, Some(State::Finished));
}

/// A process may follow many jobs with much data, so it compares their data by a hash.
#[tokio::test(start_paused = true)]
async fn data_is_freed_once_it_is_told() {
    let scene = Scene::new(Faults::default()).await;
    let (table, id) = (&scene.handle.table, &scene.id);
    let mut subscription = scene.handle.subscribe(id).await.unwrap();
    let Notice::Job(info, _) = subscription.now().clone() else {
        panic!("it is {:?}", subscription.now());
    };
    for (version, byte) in [(1 << 40, 1), (1 << 41, 2)] {
        let data = Bytes::from(vec![byte; 100]);
        let notice = Notice::Job(Arc::clone(&info), data.clone());
        table.deliver(id, version, &notice);
        assert_eq!(subscription.next().await, Some(notice));
        assert!(matches!(subscription.now(), Notice::Job(_, told) if *told == data));
        subscription.forget_data();
        assert!(matches!(subscription.now(), Notice::Job(_, told) if told.is_empty()));
        assert!(data.is_unique());
        let same = Bytes::from(vec![byte; 100]);
        table.deliver(id, version + 1, &Notice::Job(Arc::clone(&info), same));
        assert!(
            timeout(Duration::from_secs(1), subscription.next())
                .await
                .is_err()
        );
    }
}
