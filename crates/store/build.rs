//! Finds out which foundationdb-sys this is built on: upstream's links the client library, ours has to load it.

#![allow(clippy::print_stdout, reason = "that is how a build script speaks")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(fdb_loaded)");
    if std::env::var_os("DEP_FDB_C_LOADED").is_some() {
        println!("cargo::rustc-cfg=fdb_loaded");
    }
}
