//! The mistakes that tests plant, to show that the model, the simulation and the races find each:
//! bugs, and conflicting reads weakened to snapshot reads.
//!
//! A read is named by its transaction and table. [`conflicts`](super::conflicts) checks that the
//! lists are complete.

use store::{Faults, ReadLog, Weaken, Weakened};
use tokio::runtime::{Builder, Runtime};

use crate::model::keys::Table;
use crate::testing::planted::{Bug, Planted};

/// A mistake for a test to find.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mistake {
    pub(crate) planted: Planted,
    pub(crate) weaken: Option<Weaken>,
    /// No mistake: records all reads.
    pub(crate) log: Option<ReadLog>,
}

impl Mistake {
    pub(crate) fn bug(bug: Bug) -> Self {
        Self {
            planted: Planted::bug(bug),
            ..Self::default()
        }
    }

    pub(crate) fn weakened(weaken: Weaken) -> Self {
        Self {
            weaken: Some(weaken),
            ..Self::default()
        }
    }

    /// Store faults that implement the mistake.
    pub(crate) fn faults(&self) -> Faults {
        Faults {
            weaken: self.weaken,
            log: self.log.clone(),
            ..Faults::default()
        }
    }
}

/// A runtime whose clock advances only when all tasks are idle.
pub(crate) fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// The key prefix of each table.
pub(super) const PREFIXES: [[u8; 4]; 27] = {
    let mut prefixes = [[0x15, 51, 0x15, 0]; 27];
    let mut table = 1;
    while table < 27 {
        prefixes[table as usize][3] = table;
        table += 1;
    }
    prefixes
};

/// Reads of a table in one transaction: which of them, and whether only in retries that cannot know
/// whether an earlier try was committed.
pub(crate) const fn reads(
    transaction: &'static str,
    table: Table,
    reads: Weakened,
    unsure: bool,
) -> Weaken {
    Weaken {
        transaction,
        prefix: &PREFIXES[table as usize],
        unsure,
        reads,
    }
}

/// A test for each bug.
macro_rules! planted {
    ($($test:ident: $bug:ident,)*) => {
        mod bugs {
            $(#[test]
            fn $test() {
                let bug = $crate::testing::planted::Bug::$bug;
                super::is_found(stringify!($bug), &$crate::testing::mistake::Mistake::bug(bug));
            })*
        }
    };
}

/// A test for each weakened read, by transaction and table, and the list of them. `First` and
/// `Later` are for transactions on several jobs, `unsure` is for retries that cannot know whether
/// an earlier try was committed.
macro_rules! weakened {
    ($($test:ident: $transaction:ident $table:ident $reads:ident $($unsure:ident)?,)*) => {
        mod reads {
            use $crate::testing::mistake::{self, Mistake};
            use $crate::model::keys::Table;
            use store::{Weaken, Weakened};

            $(#[test]
            fn $test() {
                let weaken = mistake::reads(
                    stringify!($transaction),
                    Table::$table,
                    Weakened::$reads,
                    !stringify!($($unsure)?).is_empty(),
                );
                super::is_found(stringify!($test), &Mistake::weakened(weaken));
            })*

            pub(crate) const ALL: &[Weaken] = &[$(mistake::reads(
                stringify!($transaction),
                Table::$table,
                Weakened::$reads,
                !stringify!($($unsure)?).is_empty(),
            ),)*];
        }
    };
}

pub(crate) use planted;
pub(crate) use weakened;
