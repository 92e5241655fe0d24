//! Replicator databases: documents, revision trees and changes, in the same store as the jobs they make.
