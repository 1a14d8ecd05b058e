// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log.

use super::boundary::control;
use crate::error::Error;
use crate::log::{self, Level, Sink};
use libc::{c_char, c_int, c_void};
use std::ffi::CString;

// == Log, faults ==

/// Receives a log line, without its end. May be called by any thread that is inside the library, with its
/// locks held: it must not call gdrfab, and a C++ exception must not leave it.
pub type gdrfab_log_fn = Option<unsafe extern "C" fn(arg: *mut c_void, level: c_int, message: *const c_char)>;

/// The caller's function and argument, in whichever thread logs.
struct Callback(unsafe extern "C" fn(*mut c_void, c_int, *const c_char), *mut c_void);

// SAFETY: the documentation tells the C caller that any thread may call the function with `arg`.
unsafe impl Send for Callback {}
// SAFETY: the documentation tells the C caller that any thread may call the function with `arg`.
unsafe impl Sync for Callback {}

impl Callback {
    fn call(&self, level: Level, line: &str) {
        let text = CString::new(line.replace('\0', "?")).unwrap_or_default();
        // SAFETY: the C caller gave the function for this purpose; the text outlives the call.
        unsafe { self.0(self.1, level as c_int, text.as_ptr()) };
    }
}

/// Sets which lines are logged, and where to; overrides GDRFAB_LOG. Mirrors fi_import_log.
///
/// Lines on stderr begin with the time (UTC), the process and the level. A line that cannot be written is
/// lost.
///
/// @param level 0 off, 1 error, 2 warn, 3 info, 4 debug
/// @param fn    receives the lines, without time, process and level; NULL: stderr
/// @param arg   passed to fn
/// @return 0, -EINVAL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_log_set(level: c_int, r#fn: gdrfab_log_fn, arg: *mut c_void) -> c_int {
    control(|| {
        let level = Level::from_raw(level).ok_or_else(|| Error::invalid(format!("level: {level}, must be 0 to 4")))?;
        let sink = r#fn.map(|f| -> Sink {
            let callback = Callback(f, arg);
            Box::new(move |level, line| callback.call(level, line))
        });
        log::set(level, sink);
        Ok(())
    })
}
