// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Link flags that cargo has no key for: the SONAME, and NODELETE because a Rust library's
//! thread-local destructors must not be unmapped while a thread can still run them.
fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgdrfab.so.{major}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // src/sys/thread_end.rs
    if matches!(std::env::var("CARGO_CFG_TARGET_ARCH").as_deref(), Ok("x86_64" | "aarch64")) {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=__cxa_thread_atexit_impl=gdrfab_thread_end");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
