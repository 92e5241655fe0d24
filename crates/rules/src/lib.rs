//! Work that follows changes: servers whose databases are watched, rules about them, and webhooks.
//!
//! A [`source`] is a CouchDB server whose databases are followed. Documents in databases of kind `_rules` say what is to
//! happen when one of them changes ([`rule`]), and [`deliver`] calls webhooks.

pub mod deliver;
mod keys;
mod picked;
pub mod rule;
pub mod source;
