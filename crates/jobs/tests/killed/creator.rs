//! A child process that adds jobs and reports each, as fast as it can.

use jobs::{Add, Added, JobId, Jobs};

use crate::work::{expected_data, mail, number};

pub(crate) async fn run(jobs: &Jobs) {
    for (number, ids) in batches(jobs).enumerate() {
        let adds: Vec<Add> = ids.iter().map(|id| add(jobs, id)).collect();
        let added = if number % 2 == 0 {
            jobs.add_many(&mail(), &adds).await.unwrap()
        } else {
            let mut added = Vec::new();
            for add in adds {
                added.push(jobs.add(&mail(), add).await.unwrap());
            }
            added
        };
        for (id, added) in ids.iter().zip(added) {
            assert!(
                matches!(added, Added::Created | Added::Repeated),
                "{added:?}"
            );
            println!("- added {id}");
        }
        wait_for_processors(jobs).await;
    }
}

/// The ids of one creator, of which no other has any.
pub(crate) fn batches(jobs: &Jobs) -> impl Iterator<Item = Vec<String>> + Send + use<> {
    let name = format!("{:016x}", jobs.entropy().bits() >> 64);
    let batch = move |number| {
        let first = number * 3;
        let ids = first..first + 3;
        ids.map(|n| format!("{name}-{n}")).collect()
    };
    (0_usize..).map(batch)
}

/// Waits for a while when they do not keep up.
pub(crate) async fn wait_for_processors(jobs: &Jobs) {
    let pending = jobs
        .counts(&mail())
        .await
        .map_or(0, |counts| counts.pending);
    if pending > 200 {
        tokio::time::sleep(std::time::Duration::from_millis(pending / 10)).await;
    }
}

/// Every fourth job is due a little later.
pub(crate) fn add(jobs: &Jobs, id: &str) -> Add {
    let data = expected_data(id);
    let later = number(id).is_multiple_of(4);
    let due_ms = if later { jobs.clock().now_ms() + 30 } else { 0 };
    Add::new(JobId::new(id.to_owned()).unwrap(), data).due_ms(due_ms)
}
