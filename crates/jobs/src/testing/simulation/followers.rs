//! Subscribers of jobs.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use testkit::some_time;
use tokio::time::{Instant, sleep};

use super::node::Node;
use crate::{Error, NotifierHandle, Subscription, Types};

/// Jobs that one follower follows.
const JOBS: usize = 25;

/// Follows more and more jobs. Those followed when all faults end are followed to their end.
pub(super) async fn follow(node: Node, ty: usize, notifier: NotifierHandle, mut rng: SmallRng) {
    let (world, history) = (&node.world, node.history());
    let (mut followed, mut numbers): (Vec<Subscription>, Vec<usize>) = (Vec::new(), Vec::new());
    loop {
        let time_limit = some_time(&mut rng, Duration::from_secs(2));
        let until = Instant::now() + time_limit;
        if let Some((n, notice)) = Subscription::wait_any(&mut followed, time_limit).await {
            history.told(numbers[n], &notice);
            if notice.is_last() {
                followed.swap_remove(n);
                numbers.swap_remove(n);
            }
            continue;
        }
        // Without subscriptions there is nothing to wait for.
        tokio::time::sleep_until(until).await;
        if world.healing() {
            continue;
        }
        if followed.len() >= JOBS {
            let n = rng.random_range(0..followed.len());
            followed.swap_remove(n);
            history.unfollow(numbers.swap_remove(n));
        }
        let Some(id) = world.known_id(ty, &mut rng) else {
            continue;
        };
        match notifier.subscribe(&id).await {
            Ok(subscription) => {
                let number = history.follow(node.index, ty, &id, subscription.now());
                if !subscription.now().is_last() {
                    followed.push(subscription);
                    numbers.push(number);
                }
            }
            Err(Error::Stopped) => return,
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Checks that the types of the plan stay known: no node clears one of those.
pub(super) async fn watch_types(node: Node, mut types: Types) {
    let mut most = 0;
    while let Ok(known) = types.changed().await {
        let kept = &node.world.types;
        let known = kept.iter().filter(|ty| known.contains_key(*ty)).count();
        if known < most {
            let lost = format!("node {} has forgotten job types", node.index);
            node.history().problem(lost);
        }
        most = most.max(known);
    }
}
