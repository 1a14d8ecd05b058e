// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading completion queues.

use super::boundary::{
    CText, ExtensibleStruct, control, counted, cq_head, hold, no_cq, no_flags, null, object, output, output_sized, reading, release,
    write_sized, write_text,
};
use super::objects::gdrfab_cq;
use super::waiting::waiting;
use crate::error::{Code, Error, Result};
use crate::fabric::wait::{Step, Wait};
use crate::fabric::{self, put_all};
use crate::prov::ops::{ContextEntry, DataEntry, MsgEntry, TaggedEntry};
use crate::prov::queue::Taken;
use libc::{c_char, c_int, c_void, ssize_t};
use std::mem::offset_of;

// == Completion queue ==

// prov_errno of error entries: the failure, more closely than errno.
/// EKEYREJECTED: the key is stale, foreign, or its region closed.
pub const GDRFAB_PROV_KEY: c_int = 1;
/// ERANGE: outside the peer's region.
pub const GDRFAB_PROV_BOUNDS: c_int = 2;
/// EACCES: the peer's region lacks the right.
pub const GDRFAB_PROV_ACCESS: c_int = 3;
/// EOPNOTSUPP: no path is both possible and permitted.
pub const GDRFAB_PROV_PATH: c_int = 4;
/// EFAULT: memory vanished under a copy.
pub const GDRFAB_PROV_FAULT: c_int = 5;
/// ECONNRESET: the peer closed or died.
pub const GDRFAB_PROV_PEER_GONE: c_int = 6;
/// EPROTO: the peer wrote invalid data.
pub const GDRFAB_PROV_PEER_BROKE: c_int = 7;
/// ETIMEDOUT: the deadline passed.
pub const GDRFAB_PROV_DEADLINE: c_int = 8;
/// ECANCELED: by gdrfab_cancel(), or by close or shutdown of this side.
pub const GDRFAB_PROV_CANCELED: c_int = 9;
/// GDRFAB_ETRUNC: the message was longer than the receive.
pub const GDRFAB_PROV_TRUNC: c_int = 10;
/// ECONNREFUSED: rejected; err_data is the peer's private data.
pub const GDRFAB_PROV_REJECTED: c_int = 11;
/// ECONNREFUSED: the listener has no room for another connection now.
pub const GDRFAB_PROV_BUSY: c_int = 12;
/// This plus the ibv_wc_status of a failed work request.
pub const GDRFAB_PROV_VERBS: c_int = 100;

/// GDRFAB_CQ_FORMAT_CONTEXT (mirrors fi_cq_entry).
#[repr(C)]
pub struct gdrfab_cq_entry {
    /// Context of the operation; NULL for a peer's write with data.
    pub op_context: *mut c_void,
}

/// GDRFAB_CQ_FORMAT_MSG (mirrors fi_cq_msg_entry).
#[repr(C)]
pub struct gdrfab_cq_msg_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Kind of operation: GDRFAB_SEND | GDRFAB_MSG, and so on.
    pub flags: u64,
    /// Bytes received, or of the operation.
    pub len: usize,
}

/// GDRFAB_CQ_FORMAT_DATA (mirrors fi_cq_data_entry).
#[repr(C)]
pub struct gdrfab_cq_data_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Kind of operation.
    pub flags: u64,
    /// Bytes received, or of the operation.
    pub len: usize,
    /// First byte of the operation's local buffer.
    pub buf: *mut c_void,
    /// The peer's data, if flags has GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
}

/// GDRFAB_CQ_FORMAT_TAGGED (mirrors fi_cq_tagged_entry).
#[repr(C)]
pub struct gdrfab_cq_tagged_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Kind of operation.
    pub flags: u64,
    /// Bytes received, or of the operation.
    pub len: usize,
    /// First byte of the operation's local buffer.
    pub buf: *mut c_void,
    /// The peer's data, if flags has GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// The message's tag, if it is a receive and flags has GDRFAB_TAGGED.
    pub tag: u64,
}

/// An operation that failed (mirrors fi_cq_err_entry).
#[repr(C)]
pub struct gdrfab_cq_err_entry {
    /// sizeof(gdrfab_cq_err_entry), set by the caller
    pub struct_size: usize,
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Kind of operation.
    pub flags: u64,
    /// Bytes that are in place.
    pub len: usize,
    /// First byte of the operation's local buffer.
    pub buf: *mut c_void,
    /// The peer's data, if flags has GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// With GDRFAB_ETRUNC: bytes that did not fit; len + olen is the whole message.
    pub olen: usize,
    /// Errno, positive.
    pub err: c_int,
    /// GDRFAB_PROV_*, for gdrfab_cq_strerror().
    pub prov_errno: c_int,
    /// In: a buffer for words, or NULL.
    pub err_data: *mut c_void,
    /// In: bytes of err_data; out: bytes written, NUL included.
    pub err_data_size: usize,
    /// The message's tag, if it is a receive and flags has GDRFAB_TAGGED.
    pub tag: u64,
    /// The peer's index in the address vector, or GDRFAB_ADDR_NOTAVAIL.
    pub src_addr: u64,
    /// Of a list: the block that failed, from 0.
    pub block: usize,
}

// SAFETY: repr(C), size first; the buffer is checked at use.
unsafe impl ExtensibleStruct for gdrfab_cq_err_entry {
    const FIRST: usize = 80;
}

// These are the structs that the entries of the tables of operations write.
const _: () = {
    assert!(size_of::<gdrfab_cq_entry>() == size_of::<ContextEntry>());
    assert!(size_of::<gdrfab_cq_msg_entry>() == size_of::<MsgEntry>());
    assert!(size_of::<gdrfab_cq_data_entry>() == size_of::<DataEntry>());
    assert!(size_of::<gdrfab_cq_tagged_entry>() == size_of::<TaggedEntry>());
    assert!(offset_of!(gdrfab_cq_msg_entry, flags) == offset_of!(MsgEntry, flags));
    assert!(offset_of!(gdrfab_cq_data_entry, flags) == offset_of!(DataEntry, flags));
    assert!(offset_of!(gdrfab_cq_data_entry, buf) == offset_of!(DataEntry, buf));
    assert!(offset_of!(gdrfab_cq_tagged_entry, tag) == offset_of!(TaggedEntry, tag));
};

/// A public use of the entry types, so that debuggers and the ABI check know them: no function here writes
/// them.
#[cfg(debug_assertions)]
#[used]
static ENTRIES: fn(gdrfab_cq_entry, gdrfab_cq_msg_entry, gdrfab_cq_data_entry, gdrfab_cq_tagged_entry) = |_, _, _, _| ();

/// Reads completions, or drives the endpoints bound to the queue if there are none. Mirrors fi_cq_read.
///
/// @param count entries that buf holds; 0 only drives
/// @return entries read, at least 1 (0 if count is 0 and entries wait), or -EAGAIN (none), -GDRFAB_EAVAIL
///   (gdrfab_cq_readerr() has the next), -EINVAL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_read(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and that buf holds count entries.
    unsafe {
        match cq_head(cq) {
            Some(head) => (head.ops.read)(head, buf, count),
            None => no_cq(),
        }
    }
}

/// gdrfab_cq_read() that also gives the sender of each entry. Mirrors fi_cq_readfrom.
///
/// @param count    entries that buf and src_addr hold
/// @param src_addr gets for each entry the sender's index in the address vector, or GDRFAB_ADDR_NOTAVAIL: the
///   sender was not in it when the message came, this side began the operation, or the endpoint is connected;
///   may be NULL
/// @return as gdrfab_cq_read()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_readfrom(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize, src_addr: *mut u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and that both arrays hold count entries.
    reading(|| unsafe {
        let q = object(cq, "cq")?;
        if buf.is_null() && count != 0 {
            return Err(null("buf"));
        }
        let format = q.format;
        taken(q, q.read_from(count, |i, c, from| put_all(format, buf, src_addr, i, c, from)))
    })
}

fn taken(cq: &fabric::Cq, taken: Taken) -> Result<usize> {
    match taken {
        Taken::Some(n) => Ok(n),
        Taken::Empty => Err(Error::AGAIN),
        Taken::ErrorFirst => Err(cq.error_first()),
    }
}

/// gdrfab_cq_read() that waits for the first entry. Polls for the microseconds of GDRFAB_SPIN_US, then
/// sleeps; needs no GDRFAB_WAIT_FD. Several threads may wait on one queue. Mirrors fi_cq_sread, without cond.
///
/// @param count entries that buf holds, not 0
/// @return as gdrfab_cq_read(); -EAGAIN also after the timeout or gdrfab_cq_signal(); -EINTR (a signal);
///   -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gdrfab_cq_sread(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize, timeout_ms: c_int) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that `buf` holds `count` entries.
    unsafe { gdrfab_cq_sreadfrom(cq, buf, count, std::ptr::null_mut(), timeout_ms) }
}

/// gdrfab_cq_sread() with the src_addr of gdrfab_cq_readfrom(). Mirrors fi_cq_sreadfrom.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gdrfab_cq_sreadfrom(
    cq: *mut gdrfab_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut u64,
    timeout_ms: c_int,
) -> ssize_t {
    let begin = || {
        if buf.is_null() && count != 0 {
            return Err(null("buf"));
        }
        // SAFETY: the C caller says that the handle is open.
        let q = unsafe { object(cq, "cq")? };
        if count == 0 {
            return Err(Error::invalid("count: 0 entries cannot be waited for"));
        }
        q.begin_wait(timeout_ms)
    };
    // SAFETY: the C caller says that the handle stays open and that the arrays hold count entries.
    unsafe {
        let step = |wait: &mut Wait<'_>| {
            let q = object(cq, "cq")?;
            match q.step_from(wait, count, |i, c, from| put_all(q.format, buf, src_addr, i, c, from))? {
                Step::Over(Some(got)) => Ok(Step::Over(Some(taken(q, got)?))),
                Step::Over(None) => Ok(Step::Over(None)),
                Step::Sleep(nap) => Ok(Step::Sleep(nap)),
            }
        };
        waiting(begin, step, || Err(Error::AGAIN))
    }
}

/// Reads the error entry that is next. Mirrors fi_cq_readerr.
///
/// @param entry gets the entry; the caller sets struct_size, err_data and err_data_size
/// @return 1, or -EAGAIN (the next entry is no error), -EINVAL, -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_readerr(cq: *mut gdrfab_cq, entry: *mut gdrfab_cq_err_entry, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and entry and its buffer writable.
    counted(|| unsafe {
        let q = object(cq, "cq")?;
        let out = output_sized(entry, "entry")?;
        no_flags(flags)?;
        let (data, room) = ((*out).err_data, (*out).err_data_size);
        let Some((c, f, from)) = q.read_error_from() else { return Err(Error::AGAIN) };
        let written = if data.is_null() {
            0
        } else {
            write_text(data.cast(), room, &f.error.words)?.min(room.saturating_sub(1)) + usize::from(room > 0)
        };
        let e = gdrfab_cq_err_entry {
            struct_size: 0,
            op_context: c.context as *mut c_void,
            flags: c.flags,
            len: c.len,
            buf: c.buf as *mut c_void,
            data: c.data,
            olen: f.olen,
            err: f.error.errno,
            prov_errno: f.error.code.0,
            err_data: data,
            err_data_size: written,
            tag: from.tag,
            src_addr: from.peer,
            block: f.block,
        };
        write_sized(out, &e);
        Ok(1)
    })
}

/// Makes one waiting gdrfab_cq_sread() return, or else the next one at once; a thread that waits by
/// gdrfab_cq_trywait() and poll gets it as an -EAGAIN of gdrfab_cq_trywait(). Any thread may call it, with
/// GDRFAB_THREAD_DOMAIN too: 0, -EINVAL, -EPERM. Mirrors fi_cq_signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_signal(cq: *mut gdrfab_cq) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    release(|| unsafe { object(cq, "cq")?.signal() })
}

/// Words for a provider code. Mirrors fi_cq_strerror.
///
/// @param cq         not used; may be NULL
/// @param prov_errno of the error entry
/// @param err_data   of the error entry: the words of that very failure; NULL: the code's general words
/// @param buf        gets the words, at most len bytes, or NULL
/// @return buf; if that is NULL, a copy of at most 1024 bytes that belongs to the calling thread, valid until
///   its next gdrfab_cq_strerror() or gdrfab_eq_strerror(), and is not to be freed
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_strerror(
    cq: *mut gdrfab_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let _ = cq;
    // SAFETY: the C caller says that `err_data` are words of an entry or NULL, and that `buf` holds `len` bytes.
    unsafe { words(prov_errno, err_data, buf, len) }
}

/// # Safety
/// `err_data` is NULL or NUL-terminated, `buf` NULL or writable for `len`.
#[inline(always)]
pub(super) unsafe fn words(prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize) -> *const c_char {
    thread_local! {
        static WORDS: CText = const { CText::NONE };
    }
    let said = || -> *const c_char {
        // SAFETY: the caller says that `err_data` ends with a NUL and that `buf` holds `len` bytes.
        unsafe {
            let general = || Code::words(prov_errno).to_string();
            // The data of a peer that rejected a connection is not text.
            let text = if err_data.is_null() || prov_errno == GDRFAB_PROV_REJECTED {
                general()
            } else {
                std::ffi::CStr::from_ptr(err_data.cast()).to_string_lossy().into_owned()
            };
            if !buf.is_null() && len > 0 {
                let _ = write_text(buf, len, &text);
                return buf.cast_const();
            }
            WORDS.with(|words| words.keep(text))
        }
    };
    hold(|_| std::ptr::null(), said)
}

/// Gives the descriptor of a queue opened with GDRFAB_WAIT_FD: readable when the queue may have something.
/// Mirrors fi_control with FI_GETWAIT.
///
/// Wait in this order, and no wake-up is lost: gdrfab_cq_read() until -EAGAIN, gdrfab_cq_trywait(), and poll
/// if that returned 0. Deadlines make it readable too, and so does another thread that reads the queue
/// meanwhile. It stays readable until the next gdrfab_cq_trywait().
///
/// @param fd gets the descriptor, which is the queue's and closed with it
/// @return 0, -EINVAL, -EPERM, -ENOSYS (opened without GDRFAB_WAIT_FD)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_fd(cq: *mut gdrfab_cq, fd: *mut c_int) -> c_int {
    // SAFETY: the C caller says that the handle is open and fd live.
    control(|| unsafe {
        let out = output(fd, "fd")?;
        out.write(object(cq, "cq")?.fd()?);
        Ok(())
    })
}

/// Prepares for waiting on the descriptor, before each poll; opens none. Mirrors fi_trywait.
///
/// @return 0 (poll now), -EAGAIN (something came, or may have, or gdrfab_cq_signal() was called: read first),
///   -EINVAL, -EPERM, -ENOSYS (opened without GDRFAB_WAIT_FD), -ENOMEM or -ENOSPC (the kernel watches no more
///   sockets for this user); with verbs also the driver's errno when it cannot be armed
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_trywait(cq: *mut gdrfab_cq) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cq, "cq")?.trywait() })
}
