//! Jobs from their documents and requests to their ends, between in-memory databases over real connections.

mod documents;
mod fixture;
mod nodes;
mod requests;
