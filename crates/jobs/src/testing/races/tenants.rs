//! Races for the turns of tenants: a transaction that makes a job of one ready, and one that removes its turn.

use std::time::Duration;

use tokio::time::sleep;

use super::World;
use crate::model::keys::vtime_in;
use crate::operations::leases::{Leases, buckets};
use crate::operations::tenants::tidy::{Turn, Untidy, turn_of};
use crate::services::monitor::TypeMonitor;
use crate::{
    Add, ByPolicy, Class, Finish, Holder, Job, JobId, Limit, LimitName, Options, Sharing, Signal,
    Tenant, TypeConfig,
};

/// How a job becomes ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readying {
    Add,
    Accept,
    Finish,
    Resubmit,
    Retry,
    Signal,
    Stall,
    /// Another job gives it the slot of a limit.
    Remove,
    Release,
}

const READYING: [Readying; 9] = [
    Readying::Add,
    Readying::Accept,
    Readying::Finish,
    Readying::Resubmit,
    Readying::Retry,
    Readying::Signal,
    Readying::Stall,
    Readying::Remove,
    Readying::Release,
];

const NAMES: [&str; 2] = ["anna", "bert"];
/// So many that claims do not take everything, and leave no turns to tidy up.
const CROWD: usize = 20;
/// More than turns may lag behind.
const LONG_MS: i64 = 3_600_000;

fn job(name: &str) -> JobId {
    JobId::new(format!("{name}'s")).unwrap()
}

fn add(name: &str) -> Add {
    Add::new(job(name), "").tenant(Tenant::try_from(name).unwrap())
}

/// Turns whose tenants were served for long.
fn late(turns: &[Turn]) -> Untidy {
    let mut untidy = Untidy::default();
    for turn in turns {
        untidy.served(turn, turn.vtime + LONG_MS);
    }
    untidy
}

impl World {
    async fn shared(&self) -> Self {
        let world = self.again().await;
        let config = TypeConfig {
            sharing: Sharing::On,
            ..TypeConfig::new(60_000)
        };
        world.calm.set_type(&world.ty, config).await.unwrap();
        world
    }

    /// The turns of all tenants.
    async fn turns(&self) -> Vec<Turn> {
        let all = self.calm.keys().turns(&self.ty, None);
        let rows = self.calm.rows(all.clone()).await;
        let turns = rows.iter().map(|row| turn_of(&self.ty, &all, row).unwrap());
        turns.collect()
    }

    /// All tenants have turns, and no ready jobs; returns their running jobs.
    async fn idle_tenants(&self) -> Vec<Job> {
        for name in NAMES {
            self.calm.add(&self.ty, add(name)).await.unwrap();
        }
        let runs = self.accept_all().await;
        assert_eq!((runs.len(), self.turns().await.len()), (2, 2));
        runs
    }

    /// Removes these turns as if their tenants had had no ready jobs for long.
    async fn remove_turns(&self, turns: Vec<Turn>) {
        let mut untidy = Untidy::default();
        for turn in turns {
            untidy.idle(&Turn { idle_ms: 1, ..turn });
        }
        self.calm.tidy(&self.ty, untidy).await;
    }

    /// Prepares jobs so that [`Self::make_ready`] makes them ready.
    async fn prepare(&self, readying: Readying) -> Vec<Job> {
        let runs = self.idle_tenants().await;
        match readying {
            Readying::Add | Readying::Resubmit | Readying::Signal => {
                for run in &runs {
                    let _ = self.calm.finish(run, Finish::done()).await.unwrap();
                }
            }
            Readying::Retry => {
                for run in &runs {
                    let dead = Finish::dead("it cannot work");
                    let _ = self.calm.finish(run, dead).await.unwrap();
                }
            }
            Readying::Accept => {
                let due_ms = self.calm.clock().now_ms();
                for (name, n) in NAMES.into_iter().flat_map(|name| [(name, 1), (name, 2)]) {
                    let id = JobId::new(format!("{name}-{n}")).unwrap();
                    let add = Add { id, ..add(name) }.due_ms(due_ms);
                    self.calm.add(&self.ty, add).await.unwrap();
                }
            }
            Readying::Remove | Readying::Release => {
                let key = LimitName::new("k").unwrap();
                let limit = Some(Limit::at_once(1));
                self.calm.set_limit(&self.ty, &key, limit).await.unwrap();
                let holder = JobId::new("holder").unwrap();
                let holder = Add {
                    id: holder,
                    ..add(NAMES[0])
                }
                .key(key.clone());
                self.calm.add(&self.ty, holder).await.unwrap();
                let runs = self.accept_all().await;
                let id = JobId::new("waits").unwrap();
                let waits = Add {
                    id,
                    ..add(NAMES[1])
                }
                .key(key);
                self.calm.add(&self.ty, waits).await.unwrap();
                assert!(self.accept_all().await.is_empty());
                return runs;
            }
            Readying::Finish | Readying::Stall => {}
        }
        runs
    }

    async fn make_ready(&self, readying: Readying, runs: &[Job]) {
        let (jobs, ty, id) = (&self.jobs, &self.ty, &job(NAMES[self.either]));
        match readying {
            Readying::Add => {
                jobs.add_many(ty, &NAMES.map(add)).await.unwrap();
            }
            Readying::Accept => {
                let me = Holder::new("me").unwrap();
                jobs.accept(ty, &me, 1).await.unwrap();
            }
            Readying::Finish => {
                let ends = runs.iter().map(|run| (run.clone(), Finish::again(0)));
                let ends: Vec<_> = ends.collect();
                drop(jobs.finish_many(&ends).await.unwrap());
            }
            Readying::Resubmit => {
                jobs.resubmit(ty, id, Some(0), None).await.unwrap();
            }
            Readying::Retry => {
                jobs.retry(ty, id).await.unwrap();
            }
            Readying::Signal => {
                jobs.signal(ty, Signal::new(id.clone())).await.unwrap();
            }
            Readying::Stall => {
                let mut leases = Leases::new(1);
                let before = leases.turn(jobs, ty, Duration::from_secs(20));
                let before = before.await.unwrap();
                let (options, config) = (Options::default(), TypeConfig::new(60_000));
                let monitor = TypeMonitor::new(jobs, ty, &ByPolicy, &options);
                let all = leases.held();
                let lease = all
                    .iter()
                    .find(|lease| buckets(lease.partition).any(|bucket| bucket == id.bucket()));
                let ids = [id.clone()];
                let stalled = monitor.stall(lease.unwrap(), &ids, before, &config);
                assert!(stalled.await.unwrap(), "the lease is held");
            }
            Readying::Remove => jobs.remove(ty, &runs[0].id).await.unwrap(),
            Readying::Release => drop(jobs.release_limits(&runs[0]).await.unwrap()),
        }
    }

    /// A job that becomes ready just as its tenant loses its turn is found.
    async fn return_while_leaving(&self) -> Option<String> {
        for readying in READYING {
            let world = self.shared().await;
            let runs = world.prepare(readying).await;
            let name = match readying {
                Readying::Remove | Readying::Release => NAMES[1],
                _ => NAMES[world.either],
            };
            let mut turns = world.turns().await;
            turns.retain(|turn| *turn.tenant.1 == *name.as_bytes());
            let leave = async {
                sleep(world.late).await;
                world.remove_turns(turns).await;
            };
            tokio::join!(world.make_ready(readying, &runs), leave);
            let problem = world.problems().await;
            if problem.is_some() {
                return problem.map(|problem| format!("{readying:?}: {problem}"));
            }
        }
        None
    }

    /// A tenant that loses its turn just as a job of it is added gets another one.
    async fn leave_while_returning(&self) -> Option<String> {
        let world = self.shared().await;
        for run in world.idle_tenants().await {
            let _ = world.calm.finish(&run, Finish::done()).await.unwrap();
        }
        let mut untidy = Untidy::default();
        for turn in world.turns().await {
            untidy.idle(&Turn { idle_ms: 1, ..turn });
        }
        let add = async {
            sleep(world.late).await;
            let add = add(NAMES[world.either]);
            world.calm.add(&world.ty, add).await.unwrap();
        };
        tokio::join!(world.jobs.tidy(&world.ty, untidy), add);
        world.problems().await
    }

    /// A claim that empties many tenants removes their turns, except that of one whose turn another transaction needs.
    async fn empty_meanwhile<F>(&self, other: impl FnOnce(Self, String) -> F) -> Option<String>
    where
        F: Future<Output = Self>,
    {
        let world = self.shared().await;
        let names: Vec<String> = (0..CROWD).map(|n| format!("t{n}")).collect();
        let adds: Vec<Add> = names.iter().map(|name| add(name)).collect();
        world.calm.add_many(&world.ty, &adds).await.unwrap();
        let (jobs, ty, late) = (world.jobs.clone(), world.ty.clone(), world.late);
        let name = names[world.either * (CROWD - 1)].clone();
        let other = async {
            sleep(late).await;
            other(world, name).await
        };
        let holder = Holder::new("me").unwrap();
        let (claimed, world) = tokio::join!(jobs.accept(&ty, &holder, CROWD), other);
        claimed.unwrap();
        world.problems().await
    }

    async fn empty_while_adding(&self) -> Option<String> {
        let adding = |world: Self, name: String| async move {
            let id = JobId::new(format!("{name}'s second")).unwrap();
            let add = Add { id, ..add(&name) };
            world.calm.add(&world.ty, add).await.unwrap();
            world
        };
        self.empty_meanwhile(adding).await
    }

    async fn empty_while_putting_back(&self) -> Option<String> {
        let putting_back = |world: Self, name: String| async move {
            world.charge(&[&name]).await;
            let mut turns = world.turns().await;
            turns.retain(|turn| *turn.tenant.1 == *name.as_bytes());
            world.calm.tidy(&world.ty, late(&turns)).await;
            world
        };
        self.empty_meanwhile(putting_back).await
    }

    /// These tenants are served for long.
    async fn charge(&self, names: &[&str]) {
        let (calm, ty) = (&self.calm, &self.ty);
        let charged = calm.store().transact("charge", |tx| async move {
            for name in names {
                tx.add(&calm.keys().vtime(ty, name.as_bytes()), LONG_MS);
            }
            Ok::<_, crate::Error>(())
        });
        charged.await.unwrap();
    }

    /// Of two nodes that put back the same turn, one does.
    async fn put_back_twice(&self) -> Option<String> {
        let world = self.shared().await;
        world.idle_tenants().await;
        let turns = world.turns().await;
        world.charge(&NAMES).await;
        let other = async {
            sleep(world.late).await;
            world.charge(&NAMES).await;
            let other = late(&turns[world.either..=world.either]);
            world.calm.tidy(&world.ty, other).await;
        };
        tokio::join!(world.jobs.tidy(&world.ty, late(&turns)), other);
        world.problems().await
    }

    /// A tenant that returns just as it is forgotten has not gained by it.
    async fn forget(&self) -> Option<String> {
        let world = self.shared().await;
        let (calm, ty, name) = (&world.calm, &world.ty, NAMES[world.either]);
        for run in world.idle_tenants().await {
            let _ = calm.finish(&run, Finish::done()).await.unwrap();
        }
        world.remove_turns(world.turns().await).await;
        let late = calm.store().transact("serve", |tx| async move {
            calm.set_last_vtime(&tx, ty, 100 * LONG_MS);
            Ok::<_, crate::Error>(())
        });
        late.await.unwrap();
        let back = async {
            sleep(world.late).await;
            calm.add(ty, add(name)).await.unwrap();
        };
        let (forgotten, ()) = tokio::join!(world.jobs.forget_tenants(ty, None), back);
        forgotten.unwrap();
        let vtime = world.value(&calm.keys().vtime(ty, name.as_bytes())).await;
        let vtime = vtime_in(vtime.as_ref()).unwrap();
        let gained = (vtime < 100 * LONG_MS).then(|| format!("{name} returned at {vtime}"));
        gained.or(world.problems().await)
    }

    /// A tenant that returns to two classes at once is put behind the others once.
    async fn return_to_two_classes(&self) -> Option<String> {
        let world = self.shared().await;
        let (calm, ty, [other, name]) = (&world.calm, &world.ty, NAMES);
        calm.add(ty, add(other)).await.unwrap();
        world.charge(&[other]).await;
        let mut classes = [Class::Urgent, Class::Normal];
        classes.rotate_left(world.either);
        let [first, second] = classes.map(|class| {
            let id = JobId::new(format!("{name}, {class:?}")).unwrap();
            Add { id, ..add(name) }.class(class)
        });
        let meanwhile = async {
            sleep(world.late).await;
            calm.add(ty, second).await.unwrap();
        };
        let (added, ()) = tokio::join!(world.jobs.add(ty, first), meanwhile);
        added.unwrap();
        let vtime = world.value(&calm.keys().vtime(ty, name.as_bytes())).await;
        let vtime = vtime_in(vtime.as_ref()).unwrap();
        let lost = (vtime > LONG_MS).then(|| format!("{name} returned at {vtime}"));
        lost.or(world.problems().await)
    }

    pub(super) async fn tenants(&self) -> Option<String> {
        None.or(self.return_while_leaving().await)
            .or(self.leave_while_returning().await)
            .or(self.empty_while_adding().await)
            .or(self.empty_while_putting_back().await)
            .or(self.put_back_twice().await)
            .or(self.forget().await)
            .or(self.return_to_two_classes().await)
    }
}
