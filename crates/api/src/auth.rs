//! Who is asking.
//!
//! Four ways in, as in `CouchDB`: name and password, the `AuthSession` cookie, a JWT, and headers of
//! a trusted proxy. What each proves is an [`Identity`]; what that may do is decided elsewhere.

pub mod authenticator;
pub mod cookie;
pub mod hashing;
pub mod jwt;
pub mod password;
pub mod proxy;
pub mod throttle;
pub mod verifier;

/// Role of those who may do everything.
pub const ADMIN_ROLE: &str = "_admin";

/// Shorter secrets that sign can be guessed.
pub const SECRET_BYTES_MIN: usize = 16;

/// A caller, proven or anonymous.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `None` is anonymous.
    pub name: Option<String>,
    /// What the caller may be admitted for.
    pub roles: Vec<String>,
}

impl Identity {
    /// True for a server administrator.
    pub fn is_admin(&self) -> bool {
        self.roles.iter().any(|role| role == ADMIN_ROLE)
    }
}

/// Why a caller was not believed. The texts are for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// 401.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// 400: what was sent is not of its form.
    #[error("{0}")]
    BadRequest(&'static str),
    /// 429: too many wrong passwords.
    #[error("Too many failed logins. Try again in {seconds} s.")]
    Throttled {
        /// When another try may be made.
        seconds: u64,
    },
    /// 503: too many passwords are being hashed.
    #[error("Too many logins at a time; try again.")]
    Busy,
}

/// The one text for a wrong name and for a wrong password.
pub const WRONG: AuthError = AuthError::Unauthorized("Name or password is incorrect.");

/// Compares what must not be told apart by how long it takes.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}
