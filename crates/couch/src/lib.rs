//! One CouchDB-compatible server seen over HTTP.
