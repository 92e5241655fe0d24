//! Why an address is not reached.

use std::fmt;

/// Why the egress policy forbids an address, with what an operator can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// By a rule of `deny`.
    Denied(String),
    /// The service or its store listens there.
    Own,
    /// By its class, which server administrators may be able to reach.
    Class(&'static str, bool),
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(rule) => write!(f, "the rule `{rule}` in `network.egress.deny` denies it"),
            Self::Own => f.write_str(
                "this service or its store listens there; to allow it, add the address with its port to `network.egress.allow`",
            ),
            Self::Class(class, true) => write!(
                f,
                "its address is `{class}`, which only replications of server administrators may reach, at the host of their \
                 `source` or `target`; to allow it to all, add it to `network.egress.allow`"
            ),
            Self::Class(class, false) => write!(
                f,
                "its address is `{class}`; to allow it, add it to `network.egress.allow`"
            ),
        }
    }
}
