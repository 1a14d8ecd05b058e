// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads of the library, which block the program's signals: a program that reads SIGTERM from a signalfd, or whose
//! handler ends a wait, must get the signal on one of its own threads. If memory runs out, starting a thread fails,
//! where the standard library would end the process.

use crate::fallible::with_room;
use crate::signals;
use std::ffi::{c_int, c_void};
use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null_mut, without_provenance_mut};

const STACK_BYTES: usize = 2 << 20;
/// Bytes of a test allocation. If the allocation succeeds, the thread failed to start for another reason than memory.
const PROBE_BYTES: usize = 64 << 10;

type Body = Box<dyn FnOnce() + Send>;

/// A handle of a thread. The thread continues if the handle is dropped without `join`.
pub struct Handle(Option<libc::pthread_t>);

/// The exit value of a thread that has panicked.
const PANICKED: usize = 1;

pub struct Panicked;

impl Handle {
    /// Waits for the thread's end.
    pub fn join(mut self) -> std::result::Result<(), Panicked> {
        let mut result = null_mut();
        if let Some(thread) = self.0.take() {
            // SAFETY: the thread was started, and is joined once.
            unsafe { libc::pthread_join(thread, &raw mut result) };
        }
        if result.addr() == PANICKED { Err(Panicked) } else { Ok(()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // SAFETY: the thread was started and not joined.
            unsafe { libc::pthread_detach(thread) };
        }
    }
}

/// The argument of the thread's start function.
struct Start {
    name: [u8; 16],
    body: Body,
}

/// Starts a thread. The kernel keeps the first 15 bytes of the name.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> Result<Handle> {
    let mut start = Box::new(Start { name: [0; 16], body: Box::new(f) });
    start.name.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    let start = Box::into_raw(start);
    let mut thread = MaybeUninit::uninit();
    let mut attr = MaybeUninit::uninit();
    let check = |rc: c_int| if rc == 0 { Ok(()) } else { Err(Error::from_raw_os_error(rc)) };
    // SAFETY: the attributes are used between init and destroy, and the thread's number only if there is one.
    let started = unsafe {
        check(libc::pthread_attr_init(attr.as_mut_ptr())).and_then(|()| {
            libc::pthread_attr_setstacksize(attr.as_mut_ptr(), STACK_BYTES);
            let rc = signals::blocked(|| libc::pthread_create(thread.as_mut_ptr(), attr.as_ptr(), run, start.cast()));
            libc::pthread_attr_destroy(attr.as_mut_ptr());
            check(rc).map(|()| thread.assume_init())
        })
    };
    match started {
        Ok(thread) => Ok(Handle(Some(thread))),
        Err(e) => {
            // SAFETY: from `into_raw` above; no thread has it.
            drop(unsafe { Box::from_raw(start) });
            // The C library returns EAGAIN also when memory runs out. The error is then ENOMEM, because another attempt
            // does not help.
            let is_memory = e.raw_os_error() == Some(libc::EAGAIN) && with_room::<u8>(PROBE_BYTES).is_err();
            Err(if is_memory { Error::from_raw_os_error(libc::ENOMEM) } else { e })
        }
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passed this pointer to this thread alone.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: the name ends with a NUL.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), start.name.as_ptr().cast()) };
    match catch_unwind(AssertUnwindSafe(start.body)) {
        Ok(()) => null_mut(),
        Err(panic) => {
            // The panic's value is not dropped, because its drop may panic again.
            std::mem::forget(panic);
            without_provenance_mut(PANICKED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_thread_runs_and_its_panic_is_told() {
        static RAN: AtomicBool = AtomicBool::new(false);
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let good = spawn("gdrfab-named-too-long", move || RAN.store(name() == "gdrfab-named-to\n", Ordering::Relaxed)).unwrap();
        assert!(good.join().is_ok() && RAN.load(Ordering::Relaxed));
        assert!(spawn("gdrfab-panics", || panic!("on purpose")).unwrap().join().is_err());
    }
}
