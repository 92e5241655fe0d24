//! CouchDB's document model, pure: revision trees and ids, collation, Mango selectors.

pub mod collate;
pub mod json;
pub mod mango;
