//! Those who follow jobs.

use std::time::Duration;

use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep, timeout_at};

use super::node::{Node, some_time};
use crate::{Error, NotifierHandle, Types};

/// Follows one job after the other. The one that is followed when everything heals is followed to
/// its end.
pub(super) async fn follow(node: Node, ty: usize, notifier: NotifierHandle, mut rng: SmallRng) {
    let (world, history) = (&node.world, node.history());
    while !world.healing() {
        sleep(some_time(&mut rng, Duration::from_secs(3))).await;
        let Some(id) = world.known_id(ty, &mut rng) else {
            continue;
        };
        let mut subscription = match notifier.subscribe(&id).await {
            Ok(subscription) => subscription,
            Err(Error::Stopped) => return,
            Err(_) => continue,
        };
        let follower = history.follow(node.index, ty, &id, subscription.now());
        let patience = some_time(&mut rng, Duration::from_mins(1));
        let given_up = Instant::now() + patience;
        while !subscription.now().is_last() {
            let until = if world.healing() {
                Instant::now() + Duration::from_hours(1)
            } else {
                given_up.max(Instant::now() + Duration::from_secs(1))
            };
            match timeout_at(until, subscription.next()).await {
                Ok(Some(notice)) => history.told(follower, &notice),
                Ok(None) => break,
                Err(_) if world.healing() || Instant::now() < given_up => {}
                Err(_) => {
                    history.unfollow(follower);
                    break;
                }
            }
        }
    }
}

/// Sees to it that a type that was known stays known: nobody clears one.
pub(super) async fn watch_types(node: Node, mut types: Types) {
    let mut most = 0;
    while let Ok(known) = types.changed().await {
        if known.len() < most {
            let lost = format!("node {} has forgotten job types", node.index);
            node.history().problem(lost);
        }
        most = most.max(known.len());
    }
}
