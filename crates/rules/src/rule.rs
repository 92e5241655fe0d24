//! Documents of databases of kind `_rules`: what they may hold, what they match, and what they ask for.

pub mod call;
