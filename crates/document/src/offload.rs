//! Work that would hold up other tasks, done on threads where blocking is allowed.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Work on so many bytes of JSON is done at once: handing it to another thread would take longer.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Does work on so many bytes of JSON where it holds up no other task.
pub async fn offload<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    blocking(work).await
}

/// Does work on a thread where blocking is allowed. A panic goes on in the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The process is stopping, and the caller with it.
        Err(_) => pending().await,
    }
}
