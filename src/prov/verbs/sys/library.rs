// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens libibverbs and librdmacm at first use. Neither library is linked, so on a host without them the caller gets an
//! error with a text.

use super::entry_points::{Cm, Newer, Verbs};
use crate::config;
use crate::error::Result;
use crate::sys::dl::Library;
use std::sync::OnceLock;

/// Opens the library that the configuration names, or that of the distribution.
fn open(configured: &Option<String>, usual: &'static str) -> Result<Library> {
    match configured {
        // The name is leaked once per process: errors contain the name, so it must live as long as the process.
        Some(path) => Library::open(&[String::leak(path.clone())], false),
        None => Library::open(&[usual], false),
    }
}

struct Opened {
    verbs: Verbs,
    newer: Newer,
}

fn opened() -> Result<&'static Opened> {
    static OPENED: OnceLock<Result<Opened>> = OnceLock::new();
    let open = || {
        let variable = &config::get().debug.ibverbs;
        let usual = "libibverbs.so.1";
        // Each table owns its library, so the library is opened twice. The second time only counts a reference.
        Ok(Opened { verbs: Verbs::load(open(variable, usual)?), newer: Newer::load(open(variable, usual)?) })
    };
    OPENED.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// libibverbs.
pub fn verbs() -> Result<&'static Verbs> {
    opened().map(|o| &o.verbs)
}

/// Functions of libibverbs that older versions lack.
pub fn newer() -> Result<&'static Newer> {
    opened().map(|o| &o.newer)
}

/// librdmacm.
pub fn cm() -> Result<&'static Cm> {
    static CM: OnceLock<Result<Cm>> = OnceLock::new();
    CM.get_or_init(|| Ok(Cm::load(open(&config::get().debug.rdmacm, "librdmacm.so.1")?))).as_ref().map_err(Clone::clone)
}

/// The errno of the preceding call of this thread.
pub fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
