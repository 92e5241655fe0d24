//! Creators: they add, re-add, resubmit, remove and replace jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::try_join_all;
use rand::RngExt;
use rand::rngs::SmallRng;
use store::Transaction;
use testkit::some_time;
use tokio::time::sleep;

use super::history::{CallId, Entry, Glimpse, What};
use super::node::Node;
use crate::testing::rules::{Ask, Kept, data_of};
use crate::{Add, Added, Class, Error, JobId, LimitName, Op, Result, Retention, Signal, Tenant};

/// Creates work until all faults end.
pub(super) async fn create(node: Node, mut rng: SmallRng) {
    let rng = &mut rng;
    loop {
        sleep(some_time(rng, node.world.plan.creators_gap)).await;
        if node.world.healing() {
            return;
        }
        let ty = rng.random_range(0..node.world.types.len());
        let what = rng.random_range(0..100);
        let Some(id) = node.world.known_id(ty, rng).filter(|_| what >= 38) else {
            let id = node.world.fresh_id(ty, rng);
            let ask = draw_ask(&node, ty, rng);
            add(&node, ty, &[(id, ask)]).await;
            continue;
        };
        match what {
            0..55 => {
                let ask = draw_ask(&node, ty, rng);
                add(&node, ty, &[(id, ask)]).await;
            }
            55..63 => {
                let fresh = rng.random_range(1..20);
                let mut asks: Vec<_> = (0..fresh)
                    .map(|_| (node.world.fresh_id(ty, rng), draw_ask(&node, ty, rng)))
                    .collect();
                asks.push((id, draw_ask(&node, ty, rng)));
                add(&node, ty, &asks).await;
            }
            63..78 => {
                let ask = Ask {
                    create: None,
                    due_ms: rng.random_bool(0.5).then(|| draw_due_ms(&node, rng)),
                    data: rng.random_bool(0.5).then(|| node.world.token()),
                };
                resubmit(&node, ty, &id, &ask).await;
            }
            78..86 => remove(&node, ty, &id, None).await,
            86..90 => {
                let ask = draw_ask(&node, ty, rng);
                remove(&node, ty, &id, Some(&ask)).await;
            }
            90..95 => {
                // A job that is about to expire, possibly at this moment.
                let id = node.about_to_expire(ty, rng).await.unwrap_or(id);
                let ask = draw_ask(&node, ty, rng);
                add(&node, ty, &[(id, ask)]).await;
            }
            _ => look(&node, ty, &id).await,
        }
    }
}

fn draw_due_ms(node: &Node, rng: &mut SmallRng) -> i64 {
    let now_ms = node.jobs.clock().now_ms();
    match rng.random_range(0..100) {
        0..60 => 0,
        60..65 => -5,
        65..72 => now_ms - 60_000,
        72..92 => now_ms + rng.random_range(0..20_000),
        92..98 => now_ms + rng.random_range(0..7_200_000),
        _ => i64::MAX,
    }
}

fn draw_ask(node: &Node, ty: usize, rng: &mut SmallRng) -> Ask {
    Ask {
        create: Some(Kept(match rng.random_range(0..10) {
            0 => None,
            1 => Some(rng.random_range(0..90_000)),
            _ => node.world.plan.types[ty].config.retention_ms,
        })),
        due_ms: Some(draw_due_ms(node, rng)),
        data: Some(node.world.token()),
    }
}

impl Ask {
    /// Most jobs always have the same limits.
    fn limited(&self, add: Add, limited: bool) -> Add {
        let (token, shard) = (self.data.unwrap_or_default(), add.id.shard());
        if !limited || shard % 4 == 0 {
            return add;
        }
        let key = if token % 16 == 0 { 0 } else { shard % 12 };
        let key = LimitName::new(format!("key|{key}")).unwrap();
        let pool = LimitName::new("pool").unwrap();
        match shard % 4 {
            1 => add.key(key),
            2 => add.pool(pool),
            _ => add.key(key).pool(pool),
        }
    }

    fn add(&self, node: &Node, ty: usize, id: &JobId) -> Add {
        let kept_ms = self.create.and_then(|Kept(ms)| ms);
        let of_type = kept_ms == node.world.plan.types[ty].config.retention_ms;
        let data = data_of(self.data.unwrap_or_default());
        let add = Add::new(id.clone(), data);
        let add = self.limited(add, node.world.plan.types[ty].limits.is_some());
        let add = if node.world.plan.types[ty].classes {
            add.class(Class::ALL[usize::from(id.bucket() % 3)])
        } else {
            add
        };
        let add = match node.world.plan.types[ty].tenants {
            // Some change their tenant.
            Some(tenants) if !self.data.unwrap_or_default().is_multiple_of(8) => {
                let number = id.bucket() % tenants;
                add.tenant(Tenant::new(format!("tenant-{number}")).unwrap())
            }
            _ => add,
        };
        add.due_ms(self.due_ms.unwrap_or_default())
            .retention(match kept_ms {
                _ if of_type => Retention::OfType,
                None => Retention::Forever,
                Some(ms) => Retention::Ms(ms),
            })
    }
}

/// Records the effect of a creator's call, or that it has none.
async fn note(
    node: &Node,
    tx: &Transaction,
    call: CallId,
    ty: usize,
    id: &JobId,
    before: Option<Glimpse>,
    what: What,
) -> Result<()> {
    let (What::Ask(_, added) | What::Signal(.., added)) = what else {
        return Ok(());
    };
    let entry = Entry {
        call: Some(call),
        at: node.history().now(),
        ty,
        id: id.clone(),
        before,
        what,
    };
    match added {
        Added::Repeated => {}
        Added::Unchanged | Added::Ignored => node.history().saw(tx.read_version().await?, entry),
        _ => node.history().done(tx, entry),
    }
    Ok(())
}

async fn add(node: &Node, ty: usize, asks: &[(JobId, Ask)]) {
    let (history, jobs, op) = (node.history(), &node.jobs, &node.jobs.op());
    let adds: Vec<Add> = (asks.iter().map(|(id, ask)| ask.add(node, ty, id))).collect();
    let (adds, call) = (&adds, history.call("add", node.index));
    let result = (jobs.store())
        .transact("add", |tx| async move {
            history.attempt(call, &tx);
            let before = asks.iter().map(|(id, _)| node.glimpse(&tx, ty, id));
            let before = try_join_all(before).await?;
            let added = jobs.add_many_in(&tx, op, node.ty(ty), adds).await?;
            for (((id, ask), before), added) in asks.iter().zip(before).zip(&added) {
                let what = What::Ask(ask.clone(), *added);
                note(node, &tx, call, ty, id, Some(before), what).await?;
            }
            Ok(added)
        })
        .await;
    history.end(call, &result, |added: &Vec<Added>| {
        added.iter().any(|added| *added != Added::Unchanged)
    });
}

/// Signals jobs until all faults end, like a feed of changes.
pub(super) async fn signal(node: Node, mut rng: SmallRng) {
    let (rng, history, jobs) = (&mut rng, node.history(), &node.jobs);
    loop {
        sleep(some_time(rng, node.world.plan.creators_gap * 2)).await;
        if node.world.healing() {
            return;
        }
        let ty = rng.random_range(0..node.world.types.len());
        let ids: BTreeSet<JobId> = (0..rng.random_range(1..8))
            .filter_map(|_| node.world.known_id(ty, rng))
            .collect();
        let mut asks: Vec<(JobId, Ask)> = (ids.into_iter())
            .map(|id| (id, draw_ask(&node, ty, rng)))
            .collect();
        for (_, ask) in &mut asks {
            ask.create = ask.create.filter(|_| rng.random_bool(0.2));
        }
        let signals = asks.iter().map(|(id, ask)| Signal {
            create: ask.create.is_some(),
            ..ask.add(&node, ty, id).into()
        });
        let (signals, asks) = (&signals.collect::<Vec<_>>(), &asks);
        let (op, call, node) = (&jobs.op(), history.call("signal", node.index), &node);
        let result = (jobs.store())
            .transact("signal", |tx| async move {
                history.attempt(call, &tx);
                let before = asks.iter().map(|(id, _)| node.glimpse(&tx, ty, id));
                let before = try_join_all(before).await?;
                let added = jobs.signal_many_in(&tx, op, node.ty(ty), signals).await?;
                for (((id, ask), before), added) in asks.iter().zip(before).zip(&added) {
                    let what = What::Signal(ask.clone(), op.now_ms, *added);
                    note(node, &tx, call, ty, id, Some(before), what).await?;
                }
                Ok(added)
            })
            .await;
        history.end(call, &result, |added: &Vec<Added>| {
            let nothing = |added| matches!(added, &Added::Unchanged | &Added::Ignored);
            !added.iter().all(nothing)
        });
    }
}

async fn resubmit(node: &Node, ty: usize, id: &JobId, ask: &Ask) {
    let (history, jobs, op) = (node.history(), &node.jobs, &node.jobs.op());
    let call = history.call("resubmit", node.index);
    let result = (jobs.store())
        .transact("resubmit", |tx| async move {
            history.attempt(call, &tx);
            let before = Some(node.glimpse(&tx, ty, id).await?);
            let data = ask.data.map(data_of);
            let added = (jobs.resubmit_in(&tx, op, node.ty(ty), id, ask.due_ms, data)).await?;
            let what = What::Ask(ask.clone(), added);
            note(node, &tx, call, ty, id, before, what).await?;
            Ok(added)
        })
        .await;
    history.end(call, &result, |added| *added != Added::Unchanged);
}

/// Removes a job, and possibly creates another of the same id in the same transaction. A removal
/// leaves no trace to recognise it by, so the transaction writes its own mark.
async fn remove(node: &Node, ty: usize, id: &JobId, replace: Option<&Ask>) {
    let (history, jobs, op) = (node.history(), &node.jobs, &node.jobs.op());
    let call = history.call("remove", node.index);
    let result = (jobs.store())
        .transact("remove", |tx| async move {
            history.attempt(call, &tx);
            let mark = format!("mark/{call}");
            if tx.maybe_committed() && tx.get(mark.as_bytes()).await?.is_some() {
                return Ok(());
            }
            let before = node.glimpse(&tx, ty, id).await?;
            remove_once(node, &tx, op, ty, id).await?;
            tx.set(mark.as_bytes(), &[]);
            history.done(
                &tx,
                Entry {
                    call: Some(call),
                    at: history.now(),
                    ty,
                    id: id.clone(),
                    before: Some(before),
                    what: What::Remove,
                },
            );
            if let Some(ask) = replace {
                let add = ask.add(node, ty, id);
                let added = jobs.add_in(&tx, op, node.ty(ty), add).await?;
                let what = What::Ask(ask.clone(), added);
                note(node, &tx, call, ty, id, None, what).await?;
            }
            Ok(())
        })
        .await;
    history.end(call, &result, |()| true);
}

/// Removes a job; fails if it does not exist.
async fn remove_once(node: &Node, tx: &Transaction, op: &Op, ty: usize, id: &JobId) -> Result<()> {
    if (node.jobs.info_in(tx, node.ty(ty), id).await?).is_none() {
        return Err(Error::NotFound);
    }
    node.jobs.remove_in(tx, op, node.ty(ty), id).await
}

/// Reads a job and its history.
async fn look(node: &Node, ty: usize, id: &JobId) {
    let (history, jobs) = (node.history(), &node.jobs);
    let result: Result<()> = (jobs.store())
        .transact("look", |tx| async move {
            let before = node.glimpse(&tx, ty, id).await?;
            let entry = Entry {
                call: None,
                at: history.now(),
                ty,
                id: id.clone(),
                before: Some(before),
                what: What::Look,
            };
            history.saw(tx.read_version().await?, entry);
            Ok(())
        })
        .await;
    if result.is_err() || node.world.healing() {
        return;
    }
    if let Ok(attempts) = jobs.history(node.ty(ty), id).await {
        let numbers = attempts
            .windows(2)
            .all(|pair| pair[0].number + 1 == pair[1].number);
        let ends = attempts
            .iter()
            .rev()
            .skip(1)
            .all(|attempt| attempt.end.is_some());
        if !numbers || !ends || attempts.len() > 11 {
            history.problem(format!("the history of {id} has gaps: {attempts:?}"));
        }
    }
    sleep(Duration::from_millis(1)).await;
}
