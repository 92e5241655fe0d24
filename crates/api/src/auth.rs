//! Authentication: name and password, the `AuthSession` cookie, a JWT, or headers of a trusted proxy, as in `CouchDB`.
//! Each produces an [`Identity`]; `access` decides what it may do.

pub mod authenticator;
pub mod cookie;
pub mod hashing;
pub mod jwt;
pub mod password;
pub mod proxy;
pub mod throttle;
pub mod verifier;

/// The role of server administrators.
pub const ADMIN_ROLE: &str = "_admin";

/// Shorter signing secrets can be guessed.
pub const SECRET_BYTES_MIN: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `None` for anonymous callers.
    pub name: Option<String>,
    pub roles: Vec<String>,
}

impl Identity {
    pub fn is_admin(&self) -> bool {
        self.roles.iter().any(|role| role == ADMIN_ROLE)
    }
}

/// Why authentication failed. The messages are sent to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("{0}")]
    Unauthorized(&'static str),
    /// 400: malformed credentials.
    #[error("{0}")]
    BadRequest(&'static str),
    /// 429
    #[error("Too many failed logins. Try again in {seconds} s.")]
    Throttled {
        /// When to try again.
        seconds: u64,
    },
    /// 503: too many passwords are being hashed.
    #[error("Too many logins at a time; try again.")]
    Busy,
}

/// Used for wrong names and wrong passwords alike.
pub const WRONG: AuthError = AuthError::Unauthorized("Name or password is incorrect.");

/// Compares in constant time.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}
