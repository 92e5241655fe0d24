//! Configuration, roles and wiring of a Davenport process: what the binaries run.

mod addresses;
pub mod admins;
mod argv;
pub mod cli;
pub mod config;
pub mod keys;
pub mod logs;
pub mod metrics;
pub mod running;
pub mod systemd;
pub mod tls;
mod traces;

/// Rows are allocated by one thread and freed by another, many thousands per second, in a heap that lives for weeks:
/// jemalloc returns free memory to the system and avoids contention between threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::Rng::fill_bytes(&mut rand::rng(), &mut bytes);
    bytes
}
