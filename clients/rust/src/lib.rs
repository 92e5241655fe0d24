//! Client and worker for Davenport's job queue.
//!
//! A handler is written like one of `davenport-jobs`, the queue itself: it gets a [`Task`] with typed data, and returns a
//! [`Finish`] or a [`Failure`]. Start reading at [`Client`] and [`Worker`].

mod client;
mod types;
mod worker;

pub use client::{Client, Error, Result};
pub use types::{JobInfo, NewJob, Page};
pub use worker::{Failure, Finish, Task, Worker, WorkerOptions, stopped_by_signal};
