//! What the commands print. A closed pipe is no error: whoever read has read enough.

use std::io::Write;

/// One line on standard output.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// One line on standard error.
pub(crate) fn error(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
