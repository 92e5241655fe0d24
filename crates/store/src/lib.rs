//! FoundationDB's contract on three backends.
