//! Nodes compete for the leases of a type under faults: a generation of a lease has one owner, and
//! after the faults have ended each lease has a holder.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use rand::RngExt;
use store::{FaultControl, Faults, Store};
use testkit::actor_rng;
use tokio::time::{Instant, sleep};

use crate::operations::leases::{Leases, PARTITIONS};
use crate::testing::mistake::{self, Mistake};
use crate::{Clock, Entropy, JobType, Jobs};

pub(super) const SEEDS: u64 = 40;
/// How long faults last.
const TROUBLED: Duration = Duration::from_mins(2);
const EXPIRY: Duration = Duration::from_secs(5);
/// After this time every node has its share.
const HEALED: Duration = Duration::from_mins(1);

struct Member {
    jobs: Jobs,
    control: FaultControl,
    leases: Leases,
    /// Its view of owners at each turn: partition, generation and owner.
    thought: Vec<(u16, u64, u128)>,
}

fn members(store: &Store, seed: u64, mistake: &Mistake) -> Vec<Member> {
    let count = actor_rng(seed, &[0]).random_range(2..=6);
    let member = |number| {
        let mut rng = actor_rng(seed, &[1, number]);
        let (store, control) = store.with_faults(Faults {
            seed: rng.random(),
            conflict: 0.05,
            unknown_applied: 0.1,
            unknown_lost: 0.1,
            unavailable: 0.02,
            delay: 0.3,
            delay_max: Duration::from_millis(1_500),
            ..mistake.faults()
        });
        let jobs = Jobs::new(store, Clock::simulated(0), Entropy::seeded(rng.random()));
        Member {
            leases: Leases::new(jobs.entropy().bits()),
            jobs,
            control,
            thought: Vec::new(),
        }
    };
    (0..count).map(member).collect()
}

/// Takes turns, some of them later than its leases last.
async fn take_turns(member: &mut Member, ty: &JobType, begin: Instant) {
    while begin.elapsed() < TROUBLED + HEALED {
        let troubled = begin.elapsed() < TROUBLED;
        member.control.set_quiet(!troubled);
        // A failed turn is retried at the next one.
        if (member.leases.turn(&member.jobs, ty, EXPIRY).await).is_ok() {
            let held = member.leases.held().iter();
            let thought = held.map(|lease| (lease.partition, lease.generation, lease.owner));
            member.thought.extend(thought);
        }
        let pause = member.jobs.entropy().up_to(Duration::from_secs(4));
        let late = troubled && pause > Duration::from_millis(3_800);
        sleep(if late { pause * 5 } else { pause }).await;
    }
}

/// The first violation, if any.
pub(super) fn simulate(seed: u64, mistake: &Mistake) -> Option<String> {
    mistake::paused().block_on(async {
        let store = Store::open("memory:").await.unwrap();
        let ty = JobType::new("mail").unwrap();
        let mut members = members(&store, seed, mistake);
        let begin = Instant::now();
        join_all((members.iter_mut()).map(|member| take_turns(member, &ty, begin))).await;
        let mut owners = BTreeMap::new();
        for (partition, generation, owner) in members.iter().flat_map(|member| &member.thought) {
            let known = *owners.entry((partition, generation)).or_insert(owner);
            if known != owner {
                return Some(format!(
                    "generation {generation} of partition {partition} had two owners"
                ));
            }
        }
        let mut held: Vec<u16> = (members.iter())
            .flat_map(|member| member.leases.held())
            .map(|lease| lease.partition)
            .collect();
        held.sort_unstable();
        let all: Vec<u16> = (0..PARTITIONS).collect();
        (held != all).then(|| format!("in the end {held:?} are held"))
    })
}

#[test]
fn a_generation_has_one_owner() {
    for seed in 1..=SEEDS {
        let problem = simulate(seed, &Mistake::default());
        assert_eq!(problem, None, "seed {seed}");
    }
}
