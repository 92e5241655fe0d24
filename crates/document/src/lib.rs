//! CouchDB's document model, pure: revision trees and ids, collation, Mango selectors. No I/O, no clock, no store; only
//! [`matching`] and [`offload`] know the runtime, to keep long work off its threads.

pub mod collate;
pub mod doc;
mod error;
pub mod etf;
pub mod json;
pub mod mango;
pub mod matching;
pub mod offload;
pub mod rev;
pub mod revid;
pub mod revtree;

pub use error::Error;
