//! CouchDB's document model, pure: revision trees and ids, Mango selectors.

mod error;
pub mod rev;
pub mod revtree;

pub use error::Error;
