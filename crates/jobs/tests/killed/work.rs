//! The jobs and their expected effects, all derived from their ids.

use std::time::Duration;

use bytes::Bytes;
use jobs::{JobType, Jobs, TypeConfig};
use store::Error;

/// A killed holder loses its jobs soon after this time.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(800);

pub(crate) fn mail() -> JobType {
    JobType::new("mail").unwrap()
}

pub(crate) fn config() -> TypeConfig {
    TypeConfig::new(u64::try_from(TIMEOUT.as_millis()).unwrap())
}

/// The number at the end of an id.
pub(crate) fn number(id: &str) -> usize {
    id.rsplit('-').next().unwrap().parse().unwrap()
}

/// The holder of one job in seven requests a second run.
pub(crate) fn runs_wanted(id: &str) -> u64 {
    if number(id).is_multiple_of(7) { 2 } else { 1 }
}

/// One job in five has data that does not fit into its header.
pub(crate) fn expected_data(id: &str) -> Bytes {
    let times = if number(id).is_multiple_of(5) { 200 } else { 1 };
    id.repeat(times).into()
}

/// The row that each run writes in the transaction that ends it.
pub(crate) fn effect_key(id: &str) -> Vec<u8> {
    format!("effect/{id}").into_bytes()
}

pub(crate) fn runs(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

/// The number of runs of a job that took effect.
pub(crate) async fn runs_of(jobs: &Jobs, id: &str) -> u64 {
    let key = &effect_key(id);
    let read = jobs.store().transact("read_effect", |tx| async move {
        Ok::<_, Error>(runs(tx.get(key).await?.as_deref()))
    });
    read.await.unwrap()
}
