//! Encryption at rest: credentials in documents and jobs, and the data of users' jobs.
//!
//! It must not know what it seals, nor where the keys come from. Start reading at `sealer.rs`, `data.rs` and `in_use.rs`.

mod data;
mod error;
mod in_use;
mod keys;
mod sealer;
pub mod values;

pub use data::{is_sealed, job_context, key_of_data};
pub use error::{Error, Result};
pub use in_use::{KeysInUse, Place, Resealing, check_keys_in, keys_in_use, sealing_in};
pub use sealer::{InvalidRing, Sealer, Unreadable, key_of};
