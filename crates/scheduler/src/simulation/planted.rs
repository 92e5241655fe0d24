//! Checks that the simulation finds each planted bug within few seeds.

use super::campaign;
use crate::testing::Bug;

/// How many seeds a bug may survive.
const SEEDS: u64 = 60;

macro_rules! planted {
    ($($test:ident: $bug:ident,)*) => {
        $(#[test]
        fn $test() {
            campaign(Some(Bug::$bug)).finds(stringify!($bug), SEEDS);
        })*
    };
}

planted! {
    ignores_lock: IgnoresLock,
    passes_unfinished: PassesUnfinished,
    forgets_revisions: ForgetsRevisions,
    misses_changes_when_idle: MissesChangesWhenIdle,
    end_without_document: EndWithoutDocument,
    finished_stays_listed: FinishedStaysListed,
    releases_no_duplicate: ReleasesNoDuplicate,
    deleted_keeps_job: DeletedKeepsJob,
    never_retries: NeverRetries,
    busy_tidying: BusyTidying,
}
