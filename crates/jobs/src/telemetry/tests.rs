use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::{
    Add, Clock, Entropy, Finish, Holder, JobId, JobType, Jobs, Maintenance, Options, TypeConfig,
};

/// Recorded numbers by name and labels.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, f64>>>);

struct Number(Seen, String);

impl Seen {
    fn number(&self, key: &Key) -> Arc<Number> {
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        let labels: Vec<_> = labels.collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::new(Number(self.clone(), name))
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.0.lock().unwrap().get(name).copied()
    }

    fn expect(&self, numbers: &[(&str, f64)]) {
        for (name, number) in numbers {
            assert_eq!(self.get(name), Some(*number), "{name}: {:?}", self.0);
        }
    }
}

impl Number {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut seen = self.0.0.lock().unwrap();
        let number = seen.entry(self.1.clone()).or_default();
        *number = change(*number);
    }
}

impl CounterFn for Number {
    fn increment(&self, by: u64) {
        self.change(|number| number + super::float(by));
    }

    fn absolute(&self, to: u64) {
        self.change(|number| number.max(super::float(to)));
    }
}

impl GaugeFn for Number {
    fn increment(&self, by: f64) {
        self.change(|number| number + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|number| number - by);
    }

    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

/// Keeps the sum.
impl HistogramFn for Number {
    fn record(&self, value: f64) {
        self.change(|number| number + value);
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.number(key))
    }
}

async fn life(seen: &Seen) {
    let store = Store::open("memory:").await.unwrap();
    let jobs = Jobs::new(store, Clock::simulated(1_000_000), Entropy::seeded(1));
    let (ty, me) = (JobType::new("mail").unwrap(), Holder::new("me").unwrap());
    jobs.set_type(&ty, TypeConfig::new(3_000)).await.unwrap();
    for id in ["a", "b", "c"] {
        let add = Add::new(JobId::try_from(id).unwrap(), "");
        jobs.add(&ty, add).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let accepted = jobs.accept(&ty, &me, 2).await.unwrap().jobs;
    let held = jobs.finish(&accepted[0].job, Finish::done()).await.unwrap();
    assert!(!held.again);
    jobs.observe(&ty).await.unwrap();
    seen.expect(&[
        ("davenport_jobs{type=mail,state=pending}", 1.0),
        ("davenport_jobs{type=mail,state=running}", 1.0),
        ("davenport_jobs{type=mail,state=finished}", 1.0),
        ("davenport_jobs_created_total{type=mail}", 3.0),
        ("davenport_jobs_accepted_total{type=mail}", 2.0),
        ("davenport_jobs_finished_total{type=mail}", 1.0),
        ("davenport_jobs_again_total{type=mail}", 0.0),
        ("davenport_jobs_revived_total{type=mail}", 0.0),
        ("davenport_jobs_removed_total{type=mail}", 0.0),
        ("davenport_jobs_due{type=mail}", 1.0),
        ("davenport_jobs_oldest_due_seconds{type=mail}", 2.0),
        ("davenport_jobs_wait_seconds{type=mail}", 4.0),
    ]);
    // The other holder is silent, and the monitor reports it.
    let stop = CancellationToken::new();
    let service = Maintenance::new(jobs.clone(), Options::default()).serve(ty.clone());
    let service = tokio::spawn(service.run(stop.clone()));
    while jobs.counts(&ty).await.unwrap().running > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let observed = crate::services::duties::OBSERVE_EVERY * 5 / 2;
    tokio::time::sleep(observed).await;
    seen.expect(&[
        ("davenport_jobs_stalled_total{type=mail,outcome=rerun}", 1.0),
        ("davenport_jobs_again_total{type=mail}", 1.0),
        ("davenport_jobs{type=mail,state=pending}", 2.0),
        ("davenport_jobs{type=mail,state=running}", 0.0),
    ]);
    // Nothing counts the jobs of a type that is gone.
    for id in ["a", "b", "c"] {
        jobs.remove(&ty, &JobId::try_from(id).unwrap())
            .await
            .unwrap();
    }
    jobs.clear_type(&ty).await.unwrap();
    tokio::time::sleep(observed).await;
    stop.cancel();
    service.await.unwrap();
    seen.expect(&[
        ("davenport_jobs{type=mail,state=pending}", 0.0),
        ("davenport_jobs{type=mail,state=finished}", 0.0),
        ("davenport_jobs_due{type=mail}", 0.0),
        ("davenport_jobs_quarantined{type=mail}", 0.0),
    ]);
}

#[test]
fn metrics_are_recorded() {
    let seen = Seen::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&seen, || runtime.block_on(life(&seen)));
}
