// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every entry of the library runs in: a panic goes no further than here, and a failure leaves its words with the
//! thread. Below the providers, because the entries of their operation tables are called from C as much as an exported
//! function.

use crate::error::{Error, Result, errno};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the words of a failure for `gdrfab_last_error`, and gives the negative errno.
#[cold]
pub fn failed(e: &Error) -> c_int {
    if !e.is_back_pressure() {
        crate::log!(Debug, "{e}");
        let text = CString::new(e.to_string().replace('\0', "?")).unwrap_or_default();
        // A thread that is ending has no storage left; its words are lost, its errno is not.
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    }
    -e.errno
}

pub fn last_words() -> *const c_char {
    hold(|_| c"".as_ptr(), || LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}

/// Runs what an exported function does. A panic of it goes no further: unwinding out of an `extern "C"` function ends the
/// process. `otherwise` makes the function's result then, from -ENOTRECOVERABLE. Costs no instruction while nothing panics.
#[inline(always)]
pub fn hold<T>(otherwise: impl FnOnce(c_int) -> T, f: impl FnOnce() -> T) -> T {
    #[cfg(gdrfab_panic)]
    let f = || {
        panic_on_demand();
        f()
    };
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => value,
        Err(panic) => otherwise(panicked(panic)),
    }
}

/// Of a build for c-tests/panics.c alone. GDRFAB_PANIC=n: the n-th `hold` of this thread since the variable was set panics.
#[cfg(gdrfab_panic)]
fn panic_on_demand() {
    thread_local! {
        static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
    let asked = crate::environment::get("GDRFAB_PANIC").and_then(|n| n.to_str()?.parse().ok()).unwrap_or(0);
    HELD.set(if asked == 0 { 0 } else { HELD.get() + 1 });
    if asked != 0 && HELD.get() == asked {
        panic!("on demand");
    }
}

/// Keeps the words of a panic. `extern "C"`, because such a function does not unwind.
#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions)] // called by Rust alone
extern "C" fn panicked(panic: Box<dyn Any + Send>) -> c_int {
    let told = catch_unwind(AssertUnwindSafe(|| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
        failed(&Error::new(errno::ENOTRECOVERABLE, format!("an internal error of gdrfab (a panic: {text}); the object is unusable")))
    }));
    // What a panic carries may panic again when it is dropped.
    std::mem::forget(panic);
    if let Err(another) = told {
        std::mem::forget(another);
    }
    -errno::ENOTRECOVERABLE
}

/// Runs a posting call: 0 or a negative errno; a panic becomes -ENOTRECOVERABLE.
#[inline(always)]
pub fn posting(f: impl FnOnce() -> Result<()>) -> isize {
    hold(|rc| rc as isize, || f().map_or_else(|e| failed(&e) as isize, |()| 0))
}

/// Tries what ends most calls at once. `None`: it is not for this one, and nothing was done.
#[inline(always)]
pub fn attempt(f: impl FnOnce() -> Option<isize>) -> Option<isize> {
    hold(|rc| Some(rc as isize), f)
}

#[cold]
pub fn null(name: &'static str) -> Error {
    Error::invalid(format!("{name}: NULL or misaligned pointer"))
}
