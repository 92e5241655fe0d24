//! What tests of several crates share. Only dev-dependencies name it, and it knows none of our crates.
//!
//! [`fuzz`] is all there is so far.

mod fuzz;

pub use fuzz::{fuzz, fuzz_more};
