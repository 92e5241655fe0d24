//! Configuration, roles and wiring of a Davenport process.
