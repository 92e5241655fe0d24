//! CouchDB's document model, pure: revision trees and ids, collation, Mango selectors.

pub mod collate;
pub mod doc;
mod error;
pub mod etf;
pub mod json;
pub mod mango;
pub mod rev;
pub mod revid;
pub mod revtree;

pub use error::Error;
