//! Mutations of what parsers read, from seeds: some in every run of the tests, and for as long as
//! `FUZZ_SECONDS` says (`just fuzz`).

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// Says which iteration has failed.
struct Iteration(u64);

impl Drop for Iteration {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz: failed in iteration {}", self.0);
        }
    }
}

/// Gives `check` mutations of the samples, `least` times and until the time is over.
pub(crate) fn mutate(least: u64, samples: &[Vec<u8>], mut check: impl FnMut(&mut SmallRng, &[u8])) {
    let seconds = std::env::var("FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let begun = Instant::now();
    for number in 0.. {
        if number >= least && begun.elapsed() >= Duration::from_secs(seconds) {
            println!("fuzz: {number} iterations");
            return;
        }
        let _iteration = Iteration(number);
        let mut rng = SmallRng::seed_from_u64(number);
        let mut bytes = samples[rng.random_range(0..samples.len())].clone();
        for _ in 0..rng.random_range(1..4) {
            mutate_once(&mut rng, &mut bytes, samples);
        }
        check(&mut rng, &bytes);
    }
}

fn mutate_once(rng: &mut SmallRng, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
    const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
    let at = rng.random_range(0..=bytes.len());
    let end = rng.random_range(at..=bytes.len().min(at + 64));
    match rng.random_range(0..6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => bytes[at..end].fill(EDGES[rng.random_range(0..EDGES.len())]),
        3 => {
            let other = &samples[rng.random_range(0..samples.len())];
            let from = rng.random_range(0..=other.len());
            let to = rng.random_range(from..=other.len().min(from + 64));
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        4 => rng.fill(&mut bytes[at..end]),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.random_range(0..8);
            }
        }
    }
}
