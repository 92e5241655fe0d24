//! A child that adds jobs and says so, as fast as it can.

use jobs::{Add, Added, JobId, Jobs};

use crate::work::{expected_data, mail, number};

pub(crate) async fn run(jobs: &Jobs) {
    // No two processes make the same ids.
    let name = format!("{:016x}", jobs.entropy().bits() >> 64);
    for number in 0.. {
        let first = number * 3;
        let ids: Vec<String> = (first..first + 3).map(|n| format!("{name}-{n}")).collect();
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
        // Processors keep up.
        let pending = jobs.counts(&mail()).await.unwrap().pending;
        if pending > 200 {
            tokio::time::sleep(std::time::Duration::from_millis(pending / 10)).await;
        }
    }
}

/// Every fourth job is due a little later.
fn add(jobs: &Jobs, id: &str) -> Add {
    let data = expected_data(id);
    let later = number(id).is_multiple_of(4);
    let due_ms = if later { jobs.clock().now_ms() + 30 } else { 0 };
    Add::new(JobId::new(id.to_owned()).unwrap(), data).due_ms(due_ms)
}
