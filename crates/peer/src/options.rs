//! Options of a peer.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::faults::Faults;
use crate::functions::Functions;

/// Options of a peer. The default is what CouchDB does, on a free port of the loopback interface, without an administrator.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 chooses one.
    pub listen: SocketAddr,
    /// Name and password of the server administrator. Without one, every request has an administrator's rights.
    pub admin: Option<(String, String)>,
    /// Whether new databases are for administrators only, as in CouchDB 3, or open to all.
    pub admin_only: bool,
    /// Refuses anonymous requests.
    pub require_valid_user: bool,
    /// How long a session lasts without use.
    pub session: Duration,
    /// The version that the server claims.
    pub version: String,
    pub seqs: SeqForm,
    /// Compress attachments of types that compress well.
    pub compress: bool,
    pub limits: Limits,
    pub functions: Functions,
    pub faults: Faults,
    /// The seed of ids, secrets and multipart boundaries.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            admin: None,
            admin_only: true,
            require_valid_user: false,
            session: Duration::from_mins(10),
            version: "3.5.2".to_owned(),
            seqs: SeqForm::Opaque,
            compress: true,
            limits: Limits::default(),
            functions: Functions::default(),
            faults: Faults::none(),
            seed: 0,
        }
    }
}

/// The form of update sequences, which are opaque to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqForm {
    /// `"7-g1AAAA…"`, as CouchDB 2 and later.
    Opaque,
    /// `7`, as CouchDB 1 and PouchDB.
    Number,
    /// `[7,"g1AAAA…"]`, as CouchDB's ancestor for clusters.
    Array,
}

/// The sizes above which requests are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub document_bytes_max: usize,
    /// Of one attachment, as sent.
    pub attachment_bytes_max: usize,
    pub request_bytes_max: usize,
    pub id_bytes_max: Option<usize>,
    /// Of path and query in the request line.
    pub uri_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            document_bytes_max: 8_000_000,
            attachment_bytes_max: 1 << 30,
            request_bytes_max: u32::MAX as usize,
            id_bytes_max: None,
            uri_bytes_max: 8_000,
        }
    }
}
