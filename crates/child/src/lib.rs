//! Runs programs for jobs, and ends them when their worker dies, hangs or drops them.
//!
//! A program must have ended before another worker may run the same job. A worker that loses a job ends its program at
//! once. One that is killed or hangs cannot, and the program would go on. So a program runs below a guard, in a process
//! group of its own. The worker writes to the guard's standard input as long as it lives; when that ends, or there is
//! silence, the guard ends the group: with SIGTERM, so that programs can remove their locks, and soon with SIGKILL.
//!
//! The guard is the executable of the worker, started again: its `main` calls [`guard`] before anything else.
//!
//! This crate knows nothing of jobs, nor of what programs do. Start reading in `program.rs`, then `guard.rs`.

mod guard;
mod output;
mod program;

pub use guard::guard;
pub use program::{Ended, Program};
