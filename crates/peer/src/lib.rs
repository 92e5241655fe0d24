//! An in-memory CouchDB-compatible server with fault injection, for tests, the demo and benchmarks.
