//! CouchDB's document model, pure: revision trees and ids, Mango selectors.
