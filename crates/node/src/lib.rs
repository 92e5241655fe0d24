//! Configuration, roles and wiring of a Davenport process: what the binaries run.

pub mod admins;
pub mod cli;
pub mod config;
pub mod keys;
pub mod logs;
pub mod metrics;
pub mod running;
pub mod systemd;
pub mod tls;
mod traces;

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::Rng::fill_bytes(&mut rand::rng(), &mut bytes);
    bytes
}
