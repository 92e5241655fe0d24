//! The state machine against a plain model: random scripts of several actors, played on a queue and
//! on the model of it, which have to look the same after every step, on every store.
//!
//! `DAVENPORT_CASES` says how many scripts are played on each. One that fails is cut down to what
//! matters and shown line by line. That the model finds mistakes is shown by `src/model_bites.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail, and says what it skips"
)]

mod calls;
mod known;
mod plain;
mod play;
mod script;
mod shown;
mod words;

use std::cell::Cell;

use jobs as queue;
use jobs::{Entropy, Jobs};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use store::{Faults, Store};
use testkit::Backend;
use tokio::runtime::{Builder, Runtime};

/// Plays so many scripts, or as many as the environment says.
fn scripts(url: &str, cases: u32, runtime: &Runtime) {
    let cases = std::env::var("DAVENPORT_CASES").map_or(cases, |cases| cases.parse().unwrap());
    let store = runtime.block_on(Store::open(url)).unwrap();
    let number = Cell::new(Entropy::from_os().bits());
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    });
    for script in known::scripts() {
        number.set(number.get().wrapping_add(1));
        let playing = play::play(&store, &Jobs::new, Faults::default(), number.get(), &script);
        let played = runtime.block_on(playing);
        if let Err(problem) = played {
            panic!("{problem}");
        }
    }
    let played = runner.run(&script::script(), |script| {
        number.set(number.get().wrapping_add(1));
        let playing = play::play(&store, &Jobs::new, Faults::default(), number.get(), &script);
        runtime.block_on(playing).map_err(TestCaseError::fail)
    });
    if let Err(error) = played {
        panic!("{error}");
    }
}

#[test]
fn memory() {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    scripts("memory:", 60, &runtime.unwrap());
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
