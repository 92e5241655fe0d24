//! Proof that the simulation bites: each known mistake is found, by few seeds.

use super::{report, simulate};
use crate::witness::Bug;

/// How many seeds a mistake may survive.
const SEEDS: u64 = 60;

/// Runs seeds until one finds the mistake.
fn is_found(bug: Bug) {
    for seed in 1..=SEEDS {
        let outcome = simulate(seed, Some(bug));
        if let Some(problem) = outcome.problems.first() {
            let problem: String = problem.chars().take(300).collect();
            println!("{bug:?}: found by seed {seed}: {problem}");
            if std::env::var_os("DAVENPORT_SHOW").is_some() {
                println!("{}", report(seed, &outcome));
            }
            return;
        }
    }
    panic!("{bug:?}: survived {SEEDS} seeds");
}

macro_rules! planted {
    ($($test:ident: $bug:ident,)*) => {
        $(#[test]
        fn $test() {
            is_found(Bug::$bug);
        })*
    };
}

planted! {
    ignores_lock: IgnoresLock,
    passes_unfinished: PassesUnfinished,
    forgets_revisions: ForgetsRevisions,
    deaf_when_parked: DeafWhenParked,
    end_without_document: EndWithoutDocument,
    done_stays_listed: DoneStaysListed,
    releases_nobody: ReleasesNobody,
    deleted_keeps_job: DeletedKeepsJob,
    crash_without_retry: CrashWithoutRetry,
    busy_tidying: BusyTidying,
}
