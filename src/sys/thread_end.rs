// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registers destructors of thread-local values, in place of the C library's `__cxa_thread_atexit_impl`, which ends the
//! process if memory runs out. The standard library and parking_lot have such values. build.rs defines the symbol in
//! the shared library only, because from an archive the symbol would replace that of the whole program.

use crate::guard::hold;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

type Destructor = unsafe extern "C" fn(*mut c_void);

struct Registration {
    destructor: Destructor,
    of: *mut c_void,
    before: *mut Registration,
}

thread_local! {
    /// The last registration of this thread.
    static LAST: Cell<*mut Registration> = const { Cell::new(null_mut()) };
}

/// The key whose destructor runs all registrations of a thread. `None`: no keys are left, and no destructor is run.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `run` accepts any pointer.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(run)) } == 0).then_some(key)
    })
}

/// Registers `destructor(of)` for the end of the calling thread, like `__cxa_thread_atexit_impl`. Returns 0 or an
/// error.
///
/// # Safety
/// The destructor may be called once with `of` when the thread ends.
unsafe extern "C" fn register(destructor: Destructor, of: *mut c_void, _library: *mut c_void) -> c_int {
    let registration = || {
        let Some(key) = key() else { return -1 };
        let last = Box::into_raw(Box::new(Registration { destructor, of, before: LAST.get() }));
        LAST.set(last);
        // SAFETY: the key is never deleted. If the C library has no memory for it, none of the thread's destructors is
        // run.
        unsafe { libc::pthread_setspecific(key, last.cast()) }
    };
    hold(|_| -1, registration)
}

/// Runs the registrations of the ending thread, the last one first.
unsafe extern "C" fn run(_: *mut c_void) {
    while let Some(last) = std::ptr::NonNull::new(LAST.get()) {
        // SAFETY: `register` made the box, and it leaves the list here.
        let Registration { destructor, of, before } = *unsafe { Box::from_raw(last.as_ptr()) };
        LAST.set(before);
        // SAFETY: the caller of `register` promises that the destructor may be called when the thread ends.
        unsafe { destructor(of) };
    }
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".globl gdrfab_thread_end", ".hidden gdrfab_thread_end", "gdrfab_thread_end:", "jmp {register}", register = sym register);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(".globl gdrfab_thread_end", ".hidden gdrfab_thread_end", "gdrfab_thread_end:", "b {register}", register = sym register);
