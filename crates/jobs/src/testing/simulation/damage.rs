//! Undecodable rows in every table that claims and maintenance read: each affects only its own job.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::seq::IndexedRandom;
use store::Store;
use testkit::actor_rng;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::model::keys::Position;
use crate::testing::mistake::{self, Mistake};
use crate::{
    Add, Clock, Entropy, Error, Finish, Holder, JobId, JobType, Jobs, Maintenance, Options, Query,
    Retention, State, TypeConfig,
};

pub(super) const SEEDS: u64 = 8;
const TIMEOUT: Duration = Duration::from_secs(12);
/// Jobs per state.
const JOBS: usize = 20;
const GARBAGE: &[u8] = b"\xffgarbage";

struct World {
    jobs: Jobs,
    ty: JobType,
    me: Holder,
    /// The initially pending, running and finished jobs.
    ids: [Vec<JobId>; 3],
    /// One job of each state with a damaged header.
    damaged: BTreeSet<JobId>,
    /// A job with a damaged heartbeat.
    silenced: JobId,
}

impl World {
    async fn open(seed: u64, mistake: &Mistake) -> Self {
        let store = Store::open("memory:").await.unwrap();
        let (clock, entropy) = (Clock::simulated(1_700_000_000_000), Entropy::seeded(seed));
        let jobs = Jobs::planted_with(store, clock, entropy, mistake.planted);
        let (ty, me) = (JobType::new("mail").unwrap(), Holder::new("me").unwrap());
        let config = TypeConfig::new(u64::try_from(TIMEOUT.as_millis()).unwrap());
        jobs.set_type(&ty, config).await.unwrap();
        let mut ids = [(); 3].map(|()| Vec::new());
        for (n, name) in [(2, "finished"), (1, "running"), (0, "pending")] {
            let named = (0..JOBS).map(|n| JobId::try_from(&*format!("{name}-{n}")).unwrap());
            ids[n] = named.collect();
            let add = |id: &JobId| Add::new(id.clone(), "").retention(Retention::Ms(1));
            let adds: Vec<Add> = ids[n].iter().map(add).collect();
            jobs.add_many(&ty, &adds).await.unwrap();
            if n > 0 {
                let claimed = jobs.accept(&ty, &me, JOBS).await.unwrap().jobs;
                assert_eq!(claimed.len(), JOBS);
                let ends = claimed.into_iter().map(|held| (held.job, Finish::done()));
                let ends: Vec<_> = ends.filter(|_| n == 2).collect();
                for answer in jobs.finish_many(&ends).await.unwrap() {
                    assert!(!answer.unwrap().again);
                }
            }
        }
        let rng = &mut actor_rng(seed, &[0]);
        let damaged = ids.iter().map(|ids| ids.choose(rng).unwrap().clone());
        let damaged: BTreeSet<_> = damaged.collect();
        let mut running = ids[1].iter().filter(|id| !damaged.contains(id));
        let silenced = running.next().unwrap().clone();
        Self {
            jobs,
            ty,
            me,
            ids,
            damaged,
            silenced,
        }
    }

    /// Damages the rows; returns one original header.
    async fn damage(&self) -> (Vec<u8>, Vec<u8>) {
        let (keys, ty) = (self.jobs.keys(), &self.ty);
        let pending = self.ids[0].iter().find(|id| self.damaged.contains(id));
        let whole = keys.job(ty, pending.unwrap());
        let odd = |range: store::KeyRange| [&*range.begin, b"\x02odd\x00"].concat();
        let mut rows = vec![
            keys.index(ty, &self.silenced, &Position::Active),
            keys.sleeper(ty, 1),
            keys.notifier(ty, 1),
            keys.lease(ty, 3),
            odd(keys.leases(ty)),
            odd(keys.counts(ty)),
            keys.type_row(&JobType::new("odd").unwrap()),
        ];
        rows.extend(self.damaged.iter().map(|id| keys.job(ty, id)));
        let (rows, key) = (&rows, &whole);
        let damaged = self.jobs.store().transact("damage", |tx| async move {
            let whole = tx.get(key).await?;
            for row in rows {
                tx.set(row, GARBAGE);
            }
            Ok::<_, Error>(whole)
        });
        let value = damaged.await.unwrap().unwrap().to_vec();
        (whole, value)
    }

    async fn claimed(&self) -> Result<BTreeSet<JobId>, Error> {
        let mut claimed = BTreeSet::new();
        for _ in 0..40 {
            let jobs = self.jobs.accept(&self.ty, &self.me, 7).await?.jobs;
            claimed.extend(jobs.into_iter().map(|accepted| accepted.job.id));
        }
        Ok(claimed)
    }

    /// Listings show all other jobs.
    async fn lists(&self) -> Result<(), String> {
        let good = 3 * (JOBS - 1);
        let mut listed = 0;
        for state in State::ALL.into_iter().map(Some).chain([None]) {
            let query = Query {
                state,
                data: true,
                ..Query::default()
            };
            let page = self.jobs.list(&self.ty, &query, None, 1_000).await;
            listed += page.map_err(|error| error.chain().to_string())?.jobs.len();
        }
        (listed == 2 * good)
            .then_some(())
            .ok_or_else(|| format!("{listed} jobs were listed and not {good}, twice"))
    }

    async fn run(&self) -> Result<(), String> {
        let failed = |error: Error| error.chain().to_string();
        let (whole, value) = self.damage().await;
        self.lists().await?;
        let service = Maintenance::new(self.jobs.clone(), Options::default());
        let stop = CancellationToken::new();
        let running = tokio::spawn(service.serve(self.ty.clone()).run(stop.clone()));
        sleep((TIMEOUT + TIMEOUT / 6) * 2).await;
        let claimed = self.claimed().await.map_err(failed)?;
        let good = |id: &&JobId| !self.damaged.contains(id) && **id != self.silenced;
        let [pending, silent, finished] = &self.ids;
        let lost: Vec<_> = (pending.iter().chain(silent))
            .filter(good)
            .filter(|id| !claimed.contains(id))
            .collect();
        if !lost.is_empty() {
            return Err(format!("{lost:?} were not claimed"));
        }
        for id in finished.iter().filter(good) {
            if self
                .jobs
                .info(&self.ty, id)
                .await
                .map_err(failed)?
                .is_some()
            {
                return Err(format!("job {id} was not forgotten"));
            }
        }
        let quarantined = self.jobs.quarantined(&self.ty).await.map_err(failed)?;
        if BTreeSet::from_iter(quarantined) != self.damaged {
            return Err("not all damaged jobs are in quarantine".into());
        }
        // One is repaired, another removed.
        let (key, value) = (&whole, &value);
        let repair = self.jobs.store().transact("repair", |tx| async move {
            tx.set(key, value);
            Ok::<_, Error>(())
        });
        repair.await.map_err(failed)?;
        sleep(Duration::from_mins(25)).await;
        stop.cancel();
        running.await.unwrap();
        let left = self.jobs.quarantined(&self.ty).await.map_err(failed)?;
        for id in &left {
            self.jobs.remove(&self.ty, id).await.map_err(failed)?;
        }
        let repaired = self.damaged.iter().filter(|id| !left.contains(id));
        let repaired: Vec<_> = repaired.collect();
        let claimed = self.claimed().await.map_err(failed)?;
        if repaired.len() != 1 || !claimed.contains(repaired[0]) {
            return Err(format!("{repaired:?} came back from quarantine"));
        }
        let recovered = claimed.contains(&self.silenced).then_some(());
        recovered.ok_or_else(|| "a job with a damaged heartbeat was not recovered".into())
    }
}

pub(super) fn simulate(seed: u64, mistake: &Mistake) -> Option<String> {
    mistake::paused().block_on(async { World::open(seed, mistake).await.run().await.err() })
}

#[test]
fn damage_is_contained() {
    for seed in 1..=SEEDS {
        assert_eq!(simulate(seed, &Mistake::default()), None, "seed {seed}");
    }
}
