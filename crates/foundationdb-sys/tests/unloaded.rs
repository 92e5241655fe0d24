//! A process that has not opened the client library.

#![allow(unsafe_code, reason = "the C API is called as it is")]

/// Calling before loading is a mistake of the program, told at once.
#[test]
#[should_panic(expected = "libfdb_c is not loaded")]
fn a_call_before_loading_panics() {
    // SAFETY: panics before anything is called.
    unsafe { foundationdb_sys::fdb_get_max_api_version() };
}
