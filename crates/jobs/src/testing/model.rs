//! Tests the queue against the [rules](super::rules): random scripts of several actors with predicted
//! answers and effects. After every step the queue must look as predicted, on every store.
//!
//! `DAVENPORT_CASES` sets the number of scripts per store. A failing script is shrunk and shown line
//! by line. [`planted`] shows that bugs are found.

mod calls;
mod expected;
mod known;
pub(crate) mod planted;
mod play;
mod script;
mod shown;
mod words;

use std::cell::Cell;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use store::Store;
use testkit::Backend;
use tokio::runtime::{Builder, Runtime};

use super::mistake::{self, Mistake};
use crate::Entropy;
use script::Script;

/// Plays random scripts until one fails or the runner has played all its cases.
fn search(
    runner: &mut TestRunner,
    runtime: &Runtime,
    store: impl Fn() -> Store,
    number: &Cell<u128>,
    mistake: &Mistake,
) -> Result<(), TestError<Script>> {
    runner.run(&script::script(), |script| {
        number.set(number.get().wrapping_add(1));
        let (store, number) = (store(), number.get());
        let playing = play::play(&store, mistake, number, &script);
        runtime.block_on(playing).map_err(TestCaseError::fail)
    })
}

/// Plays the known scripts, then `cases` random ones unless the environment sets another number.
fn scripts(url: &str, cases: u32, runtime: &Runtime) {
    let cases = testkit::number("DAVENPORT_CASES", cases);
    let store = runtime.block_on(Store::open(url)).unwrap();
    let (number, none) = (Cell::new(Entropy::from_os().bits()), Mistake::default());
    for script in known::scripts() {
        number.set(number.get().wrapping_add(1));
        let playing = play::play(&store, &none, number.get(), &script);
        if let Err(problem) = runtime.block_on(playing) {
            panic!("{problem}");
        }
    }
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    });
    if let Err(error) = search(&mut runner, runtime, || store.clone(), &number, &none) {
        panic!("{error}");
    }
}

#[test]
fn memory() {
    scripts("memory:", 60, &mistake::paused());
}

#[test]
fn lmdb() {
    let place = Backend::Lmdb.place().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build();
    scripts(&place.url, 8, &runtime.unwrap());
}

#[test]
fn fdb() {
    let Some(url) = testkit::fdb_url() else {
        return;
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    scripts(&url, 4, &runtime.unwrap());
}
