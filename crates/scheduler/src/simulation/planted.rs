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
    deaf_when_parked: DeafWhenParked,
    end_without_document: EndWithoutDocument,
    done_stays_listed: DoneStaysListed,
    releases_nobody: ReleasesNobody,
    deleted_keeps_job: DeletedKeepsJob,
    crash_without_retry: CrashWithoutRetry,
    busy_tidying: BusyTidying,
}
