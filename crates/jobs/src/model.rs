//! The pure model: rows, headers, and the state machine of operations. No clocks, and no I/O except through a
//! transaction passed in.

pub(crate) mod class;
pub(crate) mod clock;
pub(crate) mod codec;
pub(crate) mod header;
pub(crate) mod ids;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod machine;
pub(crate) mod run;
pub(crate) mod turns;
pub(crate) mod types;
