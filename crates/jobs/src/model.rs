//! The pure model: rows, headers, and the state machine that says what an operation does to them. No clocks, no I/O but
//! through a transaction handed in.

pub(crate) mod clock;
pub(crate) mod codec;
pub(crate) mod header;
pub(crate) mod ids;
pub(crate) mod keys;
pub(crate) mod machine;
pub(crate) mod run;
pub(crate) mod turns;
pub(crate) mod types;
