//! Davenport.

fn main() {}
