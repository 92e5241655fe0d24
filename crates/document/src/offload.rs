//! Runs work that would block other tasks on blocking threads.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// JSON up to this size is processed in place: moving to another thread would take longer.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Runs work on JSON of this size, on a blocking thread if it is large.
pub async fn offload<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    blocking(work).await
}

/// Runs work on a blocking thread. A panic is propagated to the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime is shutting down, and with it the caller.
        Err(_) => pending().await,
    }
}
