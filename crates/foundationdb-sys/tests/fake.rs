//! Calls, arguments and callbacks across the border, against a stand-in for `libfdb_c`.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "the C API is called as it is"
)]

use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::mpsc;
use std::time::Duration;

use foundationdb_sys::{
    FDBFuture, FDBKeyValue, FDBMappedKeyValue, LoadError, fdb_create_database,
    fdb_database_create_transaction, fdb_database_destroy, fdb_future_destroy,
    fdb_future_get_value, fdb_future_is_ready, fdb_future_set_callback, fdb_get_error,
    fdb_get_max_api_version, fdb_run_network, fdb_select_api_version_impl, fdb_setup_network,
    fdb_stop_network, fdb_transaction_destroy, fdb_transaction_get, load_from,
};
use tempfile::TempDir;

/// Compiles the stand-in, in the variant that `flags` make.
fn fake(directory: &TempDir, flags: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_libfdb_c.c");
    let library = directory.path().join(format!("fake{}.so", flags.concat()));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-pthread", "-o"])
        .arg(&library)
        .args(flags)
        .arg(source)
        .status()
        .expect("a C compiler, which LMDB needs too");
    assert!(status.success());
    library
}

/// One test, because a process has one client library.
#[test]
fn calls_and_callbacks_cross_the_border() {
    let directory = TempDir::new().unwrap();

    let missing = load_from(directory.path().join("missing.so"));
    assert!(matches!(missing, Err(LoadError::Open(_))), "{missing:?}");
    let text = directory.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    assert!(matches!(load_from(&text), Err(LoadError::Open(_))));
    let old = load_from(fake(&directory, &["-DAPI_VERSION_MAX=710"])).unwrap_err();
    assert!(matches!(
        old,
        LoadError::TooOld {
            api_version_max: 710
        }
    ));
    assert_eq!(
        old.to_string(),
        "the client library knows API versions up to 710 and not 730"
    );
    let foreign = load_from(fake(&directory, &["-Dfdb_get_max_api_version=other"]));
    assert!(matches!(foreign, Err(LoadError::Foreign(_))), "{foreign:?}");
    // Failing has not spoilt the process for the right library.
    load_from(fake(&directory, &[])).unwrap();
    load_from(directory.path().join("never looked at")).unwrap();

    // SAFETY: in the order of the C API's manual; every pointer is the library's own.
    unsafe {
        assert_eq!(fdb_get_max_api_version(), 740);
        assert_eq!(fdb_select_api_version_impl(730, 730), 0);
        assert_eq!(CStr::from_ptr(fdb_get_error(0)), c"Success");
        assert_eq!(fdb_setup_network(), 0);
        let network = std::thread::spawn(|| fdb_run_network());
        let mut database = null_mut();
        assert_eq!(fdb_create_database(null(), &raw mut database), 0);
        let mut transaction = null_mut();
        let made = fdb_database_create_transaction(database, &raw mut transaction);
        assert_eq!(made, 0);
        let key = b"a key";
        let future = fdb_transaction_get(transaction, key.as_ptr(), 5, 1);
        assert_eq!(fdb_future_is_ready(future), 0);
        wait(future);
        let (mut present, mut value, mut length) = (0, null(), 0);
        let got = fdb_future_get_value(future, &raw mut present, &raw mut value, &raw mut length);
        assert_eq!((got, present), (0, 1));
        let length = usize::try_from(length).unwrap();
        assert_eq!(std::slice::from_raw_parts(value, length), b"snapshot a key");
        fdb_future_destroy(future);
        fdb_transaction_destroy(transaction);
        fdb_database_destroy(database);
        assert_eq!(fdb_stop_network(), 0);
        assert_eq!(network.join().unwrap(), 0);
    }
}

/// Waits for the library's thread to call back.
fn wait(future: *mut FDBFuture) {
    extern "C" fn call_back(_: *mut FDBFuture, sender: *mut c_void) {
        // SAFETY: made by `into_raw` below, and called once.
        let sender = unsafe { Box::from_raw(sender.cast::<mpsc::Sender<()>>()) };
        sender.send(()).unwrap();
    }
    let (sender, receiver) = mpsc::channel::<()>();
    let sender = Box::into_raw(Box::new(sender)).cast();
    // SAFETY: the future is alive and has no callback yet.
    let set = unsafe { fdb_future_set_callback(future, Some(call_back), sender) };
    assert_eq!(set, 0);
    receiver.recv_timeout(Duration::from_secs(20)).unwrap();
}

/// `fdb_c_types.h` packs key and value to four bytes; bindgen gives these sizes on 64 bits.
#[test]
fn what_crosses_has_the_layout_of_c() {
    assert_eq!(
        (size_of::<FDBKeyValue>(), align_of::<FDBKeyValue>()),
        (24, 4)
    );
    assert_eq!(
        (
            size_of::<FDBMappedKeyValue>(),
            align_of::<FDBMappedKeyValue>()
        ),
        (112, 8)
    );
}
