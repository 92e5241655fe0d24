//! Fuzzing with plain loops: seeded mutations of known inputs, so that a failure can be repeated.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

/// The number of inputs of a run, unless `FUZZ_SECONDS` sets its duration.
const ITERATIONS: u64 = 3_000;
const BYTES_MAX: usize = 16 * 1024;
/// Bytes at which signs, lengths and counts change their meaning.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
/// Inputs that are mutated further.
const CORPUS_MAX: usize = 256;

/// Checks many inputs, made from `seeds` by changing bytes, moving pieces and inserting words of the `dictionary`. The
/// check panics when it finds a bug, and returns whether to mutate the input further. `FUZZ_SECONDS` extends the run,
/// `FUZZ_SEED` sets the first seed. A failure prints the input and its seed.
/// finds it first.
pub fn fuzz(name: &str, seeds: &[&[u8]], dictionary: &[&str], check: impl Fn(&[u8]) -> bool) {
    fuzz_more(name, ITERATIONS, seeds, dictionary, |_, input| check(input));
}

/// With another number of inputs, for a check that draws random numbers itself.
pub fn fuzz_more(
    name: &str,
    iterations: u64,
    seeds: &[&[u8]],
    dictionary: &[&str],
    mut check: impl FnMut(&mut SmallRng, &[u8]) -> bool,
) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("FUZZ_SEED").unwrap_or(0);
    let seconds: Option<u64> = number("FUZZ_SECONDS");
    #[expect(clippy::disallowed_methods, reason = "real work is given real time")]
    let began = Instant::now();
    let goes_on = |done: u64| match seconds {
        Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
        None => done < iterations,
    };
    let mut corpus: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    let mut done = 0;
    while goes_on(done) {
        let seed = first + done;
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut input = corpus[rng.random_range(0..corpus.len())].clone();
        for _ in 0..rng.random_range(1..=4) {
            mutate(&mut input, &corpus, dictionary, &mut rng);
        }
        input.truncate(BYTES_MAX);
        let told = Told {
            name,
            first,
            seed,
            input: &input,
        };
        let is_good = check(&mut rng, &input);
        drop(told);
        if is_good {
            if corpus.len() < CORPUS_MAX {
                corpus.push(input);
            } else {
                // The given seeds stay.
                let place = rng.random_range(seeds.len()..CORPUS_MAX);
                corpus[place] = input;
            }
        }
        done += 1;
    }
    report(&format!("{name}: {done} inputs from seed {first}"));
}

/// Prints the input on which a check panicked.
struct Told<'a> {
    name: &'a str,
    first: u64,
    seed: u64,
    input: &'a [u8],
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self {
                name,
                first,
                seed,
                input,
            } = self;
            let input = input.escape_ascii();
            report(&format!(
                "{name}: input {seed}, begun with FUZZ_SEED={first}, fails: b\"{input}\""
            ));
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test tells what it did")]
fn report(text: &str) {
    eprintln!("{text}");
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], dictionary: &[&str], rng: &mut SmallRng) {
    let at = rng.random_range(0..=input.len());
    let end = rng.random_range(at..=input.len().min(at + 64));
    match rng.random_range(0..9) {
        0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
        1 => input.insert(at, rng.next_u32().to_le_bytes()[0]),
        2 => drop(input.drain(at..end)),
        // Nested and repeated input grows from this.
        3 => {
            let piece = input[at..end].to_vec();
            let times = rng.random_range(1..=8);
            input.splice(at..at, piece.repeat(times));
        }
        4 => {
            let other = &corpus[rng.random_range(0..corpus.len())];
            let from = rng.random_range(0..=other.len());
            let until = rng.random_range(from..=other.len());
            input.splice(at..end, other[from..until].iter().copied());
        }
        5 => input.truncate(at),
        6 => input[at..end].fill(EDGES[rng.random_range(0..EDGES.len())]),
        _ if dictionary.is_empty() => {}
        7 => {
            let word = dictionary[rng.random_range(0..dictionary.len())];
            input.splice(at..at, word.bytes());
        }
        _ => {
            let word = dictionary[rng.random_range(0..dictionary.len())];
            input.splice(at..end, word.bytes());
        }
    }
}
