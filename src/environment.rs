// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process's environment, as far as it is to be believed: a set-uid, set-gid or file-capability program was given it
//! by a user with fewer rights, so it has no variables for this library (as secure_getenv() has it).

use std::ffi::OsString;

/// Whether the program has rights that whoever started it may lack.
pub fn is_untrusted() -> bool {
    // SAFETY: getauxval reads a vector that the kernel wrote for this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A variable; one that is set to nothing counts as not set.
pub fn get(name: &str) -> Option<OsString> {
    if is_untrusted() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The names of all variables that begin so, in capitals or not.
pub fn names(prefix: &str) -> Vec<String> {
    if is_untrusted() {
        return Vec::new();
    }
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
        .collect()
}
