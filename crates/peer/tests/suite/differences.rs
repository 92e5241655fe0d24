//! Where servers answer otherwise than CouchDB, and why.

use crate::servers::Kind;

/// Steps in which a server differs, for one reason.
pub struct Difference {
    pub server: Kind,
    #[expect(dead_code, reason = "it is for the reader")]
    pub why: &'static str,
    /// `script/step`
    pub steps: &'static [&'static str],
}

/// A script, or one step of it, that a server cannot take at all.
pub struct Spared {
    pub server: Kind,
    /// `script` or `script/step`
    pub step: &'static str,
    pub why: &'static str,
}

const fn spared(step: &'static str, why: &'static str) -> Spared {
    Spared {
        server: Kind::PouchDb,
        step,
        why,
    }
}

pub const SPARED: &[Spared] = &[
    spared(
        "security",
        "the process ends when a stranger creates a database",
    ),
    spared("sessions", "it has no administrator here"),
    spared(
        "bulk_get/a parameter of single documents",
        "it never answers",
    ),
    spared("filters/bad selector", "the process ends"),
    spared("filters/selector without body", "the process ends"),
    spared("filters/unknown", "the process ends"),
    spared("filters/view without a name", "the process ends"),
    spared("filters/no such function", "the process ends"),
    spared("filters/no such design document", "the process ends"),
    spared("waiting/continuous ends", "it never ends"),
    spared(
        "waiting/continuous with a limit ends at once",
        "it never ends",
    ),
];

const fn pouchdb(why: &'static str, steps: &'static [&'static str]) -> Difference {
    Difference {
        server: Kind::PouchDb,
        why,
        steps,
    }
}

pub const DIFFERENCES: &[Difference] = &[Difference {
    server: Kind::CouchDb,
    why: "up to 3.5 it crashes; the next release says so politely",
    steps: &["changes/no limit"],
}];
