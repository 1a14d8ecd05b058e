// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of operations of completion queues: the entries for gdrfab_cq_read() in each format, with and without locks,
//! and the functions that a source's entry falls back to (`prov/ops.rs`). Each entry catches its panics.

use super::cq::Cq;
use super::domain::Domain;
use crate::error::{Result, errno};
use crate::guard::{attempt, failed, hold, null};
use crate::prov::ops::{ContextEntry, CqEntry, CqFallback, CqFormat, CqHead, CqOps, DataEntry, MsgEntry, TaggedEntry, put_from};
use crate::prov::queue::{Completion, Origin, Taken};
use crate::sync::serial::Threading;
use std::ffi::c_void;
use std::sync::Arc;

impl Cq {
    pub fn open(domain: &Arc<Domain>, size: usize, format: CqFormat, wait_fd: bool) -> Result<Arc<Cq>> {
        Cq::with_tables(domain, size, format, wait_fd, choose(domain.threading, format))
    }
}

/// The table of a queue without a source, and the fallback functions of a queue with one.
fn choose(threading: Threading, format: CqFormat) -> (&'static CqOps, &'static CqFallback) {
    match format {
        CqFormat::Context => of_format::<ContextEntry>(threading),
        CqFormat::Msg => of_format::<MsgEntry>(threading),
        CqFormat::Data => of_format::<DataEntry>(threading),
        CqFormat::Tagged => {
            let ops = match threading {
                Threading::Safe => const { &CqOps { read: tagged } },
                Threading::Promised(_) => const { &CqOps { read: ready_tagged } },
            };
            (ops, const { &CqFallback { due, after: after::<TaggedEntry>, queue: tagged } })
        }
    }
}

fn of_format<E: CqEntry>(threading: Threading) -> (&'static CqOps, &'static CqFallback) {
    let ops = match threading {
        Threading::Safe => const { &CqOps { read: queue::<E> } },
        Threading::Promised(_) => const { &CqOps { read: ready::<E> } },
    };
    (ops, const { &CqFallback { due, after: after::<E>, queue: queue::<E> } })
}

/// # Safety
/// `cq` is the head of an open queue. The same holds for all functions below, which are entries of [`CqOps`].
#[inline(always)]
unsafe fn from_handle<'a>(cq: *const CqHead) -> &'a Cq {
    // SAFETY: the caller promises the head of an open queue, and a queue begins with its head.
    unsafe { &*cq.cast::<Cq>() }
}

/// Stores the words of the next failed entry as this thread's last error, and returns the error's number.
///
/// # Safety
/// As for `from_handle`.
#[cold]
#[inline(never)]
unsafe extern "C" fn error_first(cq: *const CqHead) -> isize {
    // SAFETY: the caller promises that the head is an open queue's.
    hold(|rc| rc as isize, || failed(&unsafe { from_handle(cq) }.error_first()) as isize)
}

/// # Safety
/// As for `from_handle`.
#[inline(always)]
unsafe fn outcome(cq: *const CqHead, taken: Taken) -> isize {
    match taken {
        Taken::Some(n) => n as isize,
        Taken::Empty => -errno::EAGAIN as isize,
        // SAFETY: the caller promises that the head is an open queue's.
        Taken::ErrorFirst => unsafe { error_first(cq) },
    }
}

/// gdrfab_cq_read() without locks. If entries are ready, this function calls no other and saves no registers.
///
/// # Safety
/// As for `from_handle`; the domain is one without locks, and `buf` is NULL or holds `count` entries.
unsafe extern "C" fn ready<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller promises that the head is an open queue's, and that `buf` is NULL or holds `count` entries.
    unsafe {
        if buf.is_null() {
            return queue::<E>(cq, buf, count);
        }
        let q = from_handle(cq);
        match q.read_ready(count, |i, c| E::put(buf, i, c)) {
            Some(taken) => outcome(cq, taken),
            None if q.may_arrive(count) => match q.sole::<E>() {
                Some((ep, read)) => read(cq, buf, count, ep),
                None => arrivals::<E>(cq, buf, count),
            },
            None => queue::<E>(cq, buf, count),
        }
    }
}

/// gdrfab_cq_read() of an empty queue, without locks: messages may be written directly into the caller's array.
///
/// # Safety
/// As for `ready`.
#[inline(never)]
unsafe extern "C" fn arrivals<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller promises that the head is an open queue's, and that `buf` is NULL or holds `count` entries.
    unsafe {
        match attempt(|| from_handle(cq).read_arrivals::<E>(buf, count).map(|taken| outcome(cq, taken))) {
            Some(n) => n,
            None => queue::<E>(cq, buf, count),
        }
    }
}

/// gdrfab_cq_read() if no entry is ready or a lock is needed.
///
/// # Safety
/// As for `from_handle`; `buf` is NULL or holds `count` entries.
#[inline(never)]
unsafe extern "C" fn queue<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    let read = || {
        if buf.is_null() && count != 0 {
            return failed(&null("buf")) as isize;
        }
        // SAFETY: the caller promises that the head is an open queue's, and that `buf` is NULL or holds `count` entries.
        unsafe { outcome(cq, from_handle(cq).read(count, |i, c| E::put(buf, i, c))) }
    };
    hold(|rc| rc as isize, read)
}

/// gdrfab_cq_read() for entries with tags.
///
/// # Safety
/// As for `queue`.
#[inline(never)]
unsafe extern "C" fn tagged(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller promises that the head is an open queue's, and that `buf` is NULL or holds `count` entries.
    unsafe { read_from(cq, buf, count, std::ptr::null_mut()) }
}

/// As `ready`, for entries with tags.
///
/// # Safety
/// As for `ready`.
unsafe extern "C" fn ready_tagged(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller promises that the queue is open and that `buf` is NULL or holds `count` entries.
    unsafe {
        if buf.is_null() {
            return tagged(cq, buf, count);
        }
        let q = from_handle(cq);
        match attempt(|| Some(outcome(cq, q.read_ready_from(count, |i, c, from| TaggedEntry::put_from(buf, i, c, from))?))) {
            Some(n) => n,
            None if q.may_arrive(count) => match q.sole::<TaggedEntry>() {
                Some((ep, read)) => read(cq, buf, count, ep),
                None => tagged(cq, buf, count),
            },
            None => tagged(cq, buf, count),
        }
    }
}

/// gdrfab_cq_read() in any format, with the index of each entry's peer.
///
/// # Safety
/// As for `queue`; `peers` is NULL or holds `count` numbers.
unsafe fn read_from(cq: *const CqHead, buf: *mut c_void, count: usize, peers: *mut u64) -> isize {
    let read = || {
        if buf.is_null() && count != 0 {
            return failed(&null("buf")) as isize;
        }
        // SAFETY: the caller promises that the head is an open queue's, and that `buf` is NULL or holds `count` entries.
        unsafe {
            let q = from_handle(cq);
            outcome(cq, q.read_from(count, |i, c, from| put_all(q.format, buf, peers, i, c, from)))
        }
    };
    hold(|rc| rc as isize, read)
}

/// Writes entry `i` and the index of its peer.
///
/// # Safety
/// `buf` holds more than `i` entries of the format, and `peers` is NULL or holds as many numbers.
pub unsafe fn put_all(format: CqFormat, buf: *mut c_void, peers: *mut u64, i: usize, c: &Completion, from: Origin) {
    // SAFETY: the caller promises that the arrays hold more than `i` entries and numbers.
    unsafe {
        put_from(format, buf, i, c, from.tag);
        if !peers.is_null() {
            peers.add(i).write_unaligned(from.peer);
        }
    }
}

/// gdrfab_cq_read() of a queue whose source has nothing.
///
/// # Safety
/// As for `queue`.
#[inline(never)]
unsafe extern "C" fn after<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller promises that the head is an open queue's, and that `buf` is NULL or holds `count` entries.
    unsafe { hold(|rc| rc as isize, || outcome(cq, from_handle(cq).read_after(count, |i, c| E::put(buf, i, c)))) }
}

/// The end of gdrfab_cq_read() if the endpoints are due for progress although `n` entries were read.
///
/// # Safety
/// As for `from_handle`.
#[cold]
#[inline(never)]
unsafe extern "C" fn due(cq: *const CqHead, _buf: *mut c_void, n: usize) -> isize {
    // After a panic the result is still `n`: the entries were taken out of the queue and belong to the caller.
    // SAFETY: the caller promises that the head is an open queue's.
    hold(|_| (), || unsafe { from_handle(cq) }.due());
    n as isize
}
