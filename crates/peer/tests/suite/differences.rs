//! Where servers answer otherwise than CouchDB, and why.

use crate::servers::Kind;

/// Steps in which a server differs, for one reason.
pub(crate) struct Difference {
    pub(crate) server: Kind,
    #[expect(dead_code, reason = "it is for the reader")]
    pub(crate) why: &'static str,
    /// `script/step`
    pub(crate) steps: &'static [&'static str],
}

/// A script, or one step of it, that a server cannot take at all.
pub(crate) struct Spared {
    pub(crate) server: Kind,
    /// `script` or `script/step`
    pub(crate) step: &'static str,
    pub(crate) why: &'static str,
}

const fn spared(step: &'static str, why: &'static str) -> Spared {
    Spared {
        server: Kind::PouchDb,
        step,
        why,
    }
}

pub(crate) const SPARED: &[Spared] = &[
    spared(
        "security",
        "the process ends when a stranger creates a database",
    ),
    spared("sessions", "it has no administrator here"),
    spared(
        "bulk_get/a parameter of single documents",
        "it never answers",
    ),
    spared("open_revs/in order", "leaves come in any order"),
    spared("filters/selector", "the process ends"),
    spared("filters/limit counts what passes", "the process ends"),
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

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        server: Kind::CouchDb,
        why: "up to 3.5 it crashes; the next release says so politely",
        steps: &["changes/no limit"],
    },
    pouchdb(
        "other texts for the same refusal",
        &[
            "databases/create again",
            "databases/gone",
            "documents/no revision",
            "documents/wrong revision",
            "refusals/reserved id",
            "refusals/id is a number",
            "deletions/read",
            "bulk_docs/deleted",
            "conflicts/delete the rest",
            "bulk_docs/no documents",
            "bulk_docs/a reserved id",
            "attachments/missing",
            "attachments/wrong revision",
            "inline/a stub of nothing",
        ],
    ),
    pouchdb(
        "other statuses for the same refusal",
        &[
            "site/method of a database",
            "site/content type of a body",
            "site/bad encoding",
            "refusals/unknown member",
            "refusals/two revisions",
            "refusals/two revisions, one in a header",
            "refusals/no such method",
            "bulk_docs/documents are text",
            "bulk_docs/one is a number",
            "inline/no base64",
        ],
    ),
    pouchdb(
        "it takes what CouchDB refuses",
        &[
            "databases/bad name",
            "databases/delete again",
            "refusals/nothing",
            "refusals/id is empty",
            "revs_diff/no revision",
            "deletions/delete again",
            "deletions/delete without revision",
            "deletions/update a tombstone",
            "changes/malformed",
            "changes/no such feed",
            "changes/no limit",
            "filters/ids are text",
            "waiting/no heartbeat",
        ],
    ),
    pouchdb(
        "revision ids are the hash of something else",
        &[
            "documents/create",
            "deletions/the empty document",
            "deletions/the empty deletion",
            "bulk_docs/write",
            "attachments/create",
        ],
    ),
    pouchdb(
        "a tombstone is deleted again, and so a generation is added",
        &["deletions/make it again", "deletions/its history goes on"],
    ),
    pouchdb(
        "ids from the server have dashes",
        &[
            "site/uuids",
            "documents/id from the server",
            "bulk_docs/an id is made",
        ],
    ),
    pouchdb(
        "sequences are numbers, and nobody counts deletions or what is pending",
        &[
            "databases/info",
            "databases/info has a sequence and a creation time",
            "deletions/counts",
            "changes/nothing",
            "changes/limit",
            "changes/limit of nothing",
            "changes/to the byte",
        ],
    ),
    pouchdb(
        "it is another server, with another framework's headers",
        &[
            "site/welcome",
            "site/server",
            "site/cache control",
            "site/without JSON",
            "documents/etag",
            "documents/known already",
            "documents/no etag with more than the document",
            "documents/head",
            "documents/copy",
            "documents/revision in a header",
            "deletions/begin deleted",
            "attachments/ranges",
            "attachments/a range",
        ],
    ),
    pouchdb(
        "JavaScript knows no other numbers than floats, and members are put in another order",
        &[
            "odd_values/order, numbers and escapes",
            "odd_values/integers of any size",
            "all_docs/to the byte",
            "bulk_get/revisions",
        ],
    ),
    pouchdb(
        "slashes in names are lost",
        &["databases/name with a slash comes back"],
    ),
    pouchdb(
        "it does not have it",
        &[
            "databases/information of several",
            "site/up",
            "conflicts/deleted conflicts",
            "conflicts/meta",
            "stemming/the usual limit",
            "stemming/set it",
            "stemming/it is set",
            "stemming/history is cut",
            "stemming/histories that come are cut",
            "all_docs/from",
            "revs_diff/possible ancestors",
            "bulk_get/no revision",
            "filters/design documents",
            "waiting/events' type",
            "waiting/events",
            "inline/text is compressed",
        ],
    ),
    pouchdb(
        "it has no multipart",
        &[
            "open_revs/multipart",
            "open_revs/its parts",
            "bulk_get/multipart",
            "bulk_get/its parts",
            "multipart/create",
            "multipart/read",
            "multipart/a replica",
            "multipart/in parts",
            "multipart/its parts",
            "multipart/its length",
            "multipart/parts in parts",
            "multipart/known since",
            "multipart/in bulk",
            "multipart/the stub's digest",
        ],
    ),
    pouchdb(
        "`_local` documents have conflicts",
        &["locals/update without revision"],
    ),
    pouchdb("no revision is answered", &["conflicts/a replica by PUT"]),
    pouchdb(
        "`latest` finds one leaf only",
        &["open_revs/latest", "bulk_get/latest"],
    ),
    pouchdb(
        "revisions known by name only count as missing, and so do none of none",
        &["revs_diff/missing"],
    ),
    pouchdb(
        "a filter it does not know ends the process",
        &["filters/the server survives"],
    ),
    pouchdb(
        "attachments keep their places, and stubs need digests",
        &[
            "attachments/the new one is first",
            "attachments/keep one",
            "attachments/the other is gone",
            "attachments/delete",
            "attachments/none is left",
        ],
    ),
    pouchdb(
        "the generation of a replica's attachment is that of the document",
        &[
            "inline/replicas keep the generation",
            "inline/not known since",
            "inline/generation none is kept",
            "inline/generation none is new",
            "inline/generation none follows",
            "inline/generation zero is kept",
            "inline/generation zero is new",
            "inline/generation zero follows",
            "inline/generation low is kept",
            "inline/generation low is new",
            "inline/generation low follows",
            "inline/generation high is kept",
            "inline/generation high is new",
            "inline/generation high follows",
            "inline/generation text is kept",
            "inline/generation text is new",
            "inline/generation text follows",
        ],
    ),
    pouchdb("revisions in rows are its own", &["all_docs/keys"]),
];
