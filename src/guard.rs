// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wraps every entry into the library: a panic goes no further, and the words of a failure are kept for the calling
//! thread. The file lies below the providers, because C calls the entries of the providers' operation tables just like
//! exported functions.

use crate::error::{Error, Result, errno};
use crate::reserve;
use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Words for a C caller, ending with NUL and cut to the available room. The type has no destructor, because registering
/// a destructor ends the process if the C library has no memory for it.
pub struct CText {
    len: Cell<usize>,
    bytes: [Cell<u8>; 1024],
}

impl CText {
    /// An initial value; each use makes a separate one.
    #[expect(clippy::declare_interior_mutable_const)]
    pub const NONE: CText = CText { len: Cell::new(0), bytes: [const { Cell::new(0) }; 1024] };

    /// Replaces the words, and returns them for C.
    pub fn keep(&self, words: impl fmt::Display) -> *const c_char {
        self.len.set(0);
        // The only possible error is that the room has ended.
        let _ = write!(Writer(self), "{words}");
        self.get()
    }

    fn get(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

struct Writer<'a>(&'a CText);

impl Write for Writer<'_> {
    fn write_char(&mut self, c: char) -> fmt::Result {
        let (mut utf8, len) = ([0; 4], self.0.len.get());
        let next = if c == '\0' { "?" } else { c.encode_utf8(&mut utf8) };
        let room = self.0.bytes.get(len..=len + next.len()).ok_or(fmt::Error)?;
        room.iter().zip(next.bytes().chain([0])).for_each(|(to, from)| to.set(from));
        self.0.len.set(len + next.len());
        Ok(())
    }

    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.chars().try_for_each(|c| self.write_char(c))
    }
}

thread_local! {
    static LAST: CText = const { CText::NONE };
}

/// Keeps the words of a failure for `gdrfab_last_error`, and returns the negative errno.
#[cold]
pub fn failed(e: &Error) -> c_int {
    if !e.is_back_pressure() {
        crate::log!(Debug, "{e}");
        LAST.with(|last| last.keep(e));
    }
    -e.errno
}

pub fn last_words() -> *const c_char {
    hold(|_| c"".as_ptr(), || LAST.with(CText::get))
}

/// Runs the body of an exported function. A panic is caught here, because unwinding out of an `extern "C"` function
/// ends the process; `otherwise` then makes the function's result of -ENOTRECOVERABLE. Costs no instruction unless
/// there is a panic.
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

/// Only in the build for c-tests/process/panics.c. With GDRFAB_PANIC=n, the n-th `hold` of this thread since the
/// variable was set panics.
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

/// Keeps the words of a panic. The function is `extern "C"`, because such a function does not unwind.
#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions)] // called by Rust alone
extern "C" fn panicked(panic: Box<dyn Any + Send>) -> c_int {
    let told = catch_unwind(AssertUnwindSafe(|| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
        failed(&Error::new(errno::ENOTRECOVERABLE, format!("an internal error of gdrfab (a panic: {text}); the object is unusable")))
    }));
    // The panic's value is not dropped, because its drop may panic again.
    std::mem::forget(panic);
    if let Err(another) = told {
        std::mem::forget(another);
    }
    -errno::ENOTRECOVERABLE
}

/// Decides whether a call that may allocate begins. 0: the call begins. -ENOMEM: memory has run out, and the call does
/// nothing.
#[inline(always)]
pub fn begin() -> c_int {
    if reserve::is_low() { begin_if_enough() } else { 0 }
}

#[cold]
#[inline(never)]
extern "C" fn begin_if_enough() -> c_int {
    hold(|rc| rc, || reserve::enough().map_or_else(|e| failed(&e), |()| 0))
}

/// Runs a posting call. Returns 0 or a negative errno; a panic becomes -ENOTRECOVERABLE.
#[inline(always)]
pub fn posting(f: impl FnOnce() -> Result<()>) -> isize {
    match begin() {
        0 => hold(|rc| rc as isize, || f().map_or_else(|e| failed(&e) as isize, |()| 0)),
        refused => refused as isize,
    }
}

/// Runs the fast path of a call. `None`: the fast path does not apply, and nothing was done.
#[inline(always)]
pub fn attempt(f: impl FnOnce() -> Option<isize>) -> Option<isize> {
    hold(|rc| Some(rc as isize), f)
}

/// The error of an argument that must not be NULL.
#[cold]
pub fn null(name: &'static str) -> Error {
    Error::invalid(format!("{name}: NULL or misaligned pointer"))
}
