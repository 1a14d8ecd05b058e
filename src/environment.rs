// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process's environment, if it can be trusted. A set-uid, set-gid or file-capability program got its environment
//! from a user with fewer rights, so the library ignores the environment of such a program (like secure_getenv()).

use std::ffi::OsString;

/// True if the program has rights that the user who started it may lack.
pub fn is_untrusted() -> bool {
    // SAFETY: getauxval reads a vector that the kernel wrote for this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable. An empty value counts as not set.
pub fn get(name: &str) -> Option<OsString> {
    if is_untrusted() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The names of all variables with this prefix, in upper or lower case.
pub fn names(prefix: &str) -> Vec<String> {
    if is_untrusted() {
        return Vec::new();
    }
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
        .collect()
}
