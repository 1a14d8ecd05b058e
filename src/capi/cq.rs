// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading completion queues.

use super::boundary::{
    Sized0, control, counted, failed, hold, null, object, object_if, output, output_sized, short, write_sized, write_text,
};
use super::objects::gdrfab_cq;
use super::types::*;
use crate::error::{Code, Error, Result, errno};
use crate::fabric::{Cq, CqFormat, Gate};
use crate::prov::queue::{Completion, Found, Taken};
use libc::{c_char, c_int, c_void, ssize_t};

// == Completion queue ==

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
    /// Bytes of a message that did not fit.
    pub olen: usize,
    /// Errno, positive.
    pub err: c_int,
    /// GDRFAB_PROV_*, for gdrfab_cq_strerror().
    pub prov_errno: c_int,
    /// In: a buffer for words, or NULL.
    pub err_data: *mut c_void,
    /// In: its bytes; out: bytes written, NUL included.
    pub err_data_size: usize,
}

// SAFETY: repr(C), size first; the buffer is checked at use.
unsafe impl Sized0 for gdrfab_cq_err_entry {
    const FIRST: usize = 80;
}

/// Writes one entry in the queue's format.
///
/// # Safety
/// `buf` holds more than `i` entries of the format.
#[inline(always)]
unsafe fn put(format: CqFormat, buf: *mut c_void, i: usize, c: &Completion) {
    let op_context = c.context as *mut c_void;
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            CqFormat::Context => buf.cast::<gdrfab_cq_entry>().add(i).write_unaligned(gdrfab_cq_entry { op_context }),
            CqFormat::Msg => {
                buf.cast::<gdrfab_cq_msg_entry>().add(i).write_unaligned(gdrfab_cq_msg_entry { op_context, flags: c.flags, len: c.len })
            }
            CqFormat::Data => {
                let entry = gdrfab_cq_data_entry { op_context, flags: c.flags, len: c.len, buf: c.buf as *mut c_void, data: c.data };
                buf.cast::<gdrfab_cq_data_entry>().add(i).write_unaligned(entry);
            }
        }
    }
}

/// The words of the error entry that is next become this thread's last error.
///
/// # Safety
/// `cq` is an open queue.
#[cold]
#[inline(never)]
unsafe extern "C" fn error_first(cq: *mut gdrfab_cq) -> ssize_t {
    let tell = || {
        // SAFETY: handed on.
        if let Some(why) = unsafe { &*cq.cast::<Cq>() }.peek_error() {
            failed(&Error::new(errno::EAVAIL, why.words));
        }
    };
    hold(|_| (), tell);
    -errno::EAVAIL as isize
}

/// # Safety
/// `cq` is an open queue.
#[inline(always)]
unsafe fn outcome(cq: *mut gdrfab_cq, taken: Taken) -> ssize_t {
    match taken {
        Taken::Some(n) => n as isize,
        Taken::Empty => -errno::EAGAIN as isize,
        // SAFETY: handed on.
        Taken::ErrorFirst => unsafe { error_first(cq) },
    }
}

/// # Safety
/// The handle is open.
#[inline(always)]
unsafe fn queue<'a>(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> Result<&'a Cq> {
    if buf.is_null() && count != 0 {
        return Err(null("buf"));
    }
    // SAFETY: handed on.
    unsafe { object(cq, "cq") }
}

/// Reads completions, or drives the endpoints bound to the queue if there are none. Mirrors fi_cq_read.
///
/// @param buf   gets entries of the queue's format
/// @param count entries that buf holds; 0 only drives
/// @return entries read, at least 1 (0 if count is 0 and entries wait), or -EAGAIN (none), -GDRFAB_EAVAIL
///   (gdrfab_cq_readerr() has the next), -EINVAL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_read(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and that buf holds count entries.
    unsafe {
        if let Some(q) = object_if(cq).filter(|_| !buf.is_null()) {
            // A function for each, so that none saves registers for another.
            return match q.gate {
                Gate::Context => ready_contexts(cq, buf, count),
                Gate::Msg => ready_msgs(cq, buf, count),
                Gate::Data => ready_data(cq, buf, count),
                Gate::DeviceContext => read_contexts(cq, buf, count),
                Gate::DeviceMsg => read_msgs(cq, buf, count),
                Gate::DeviceData => read_data(cq, buf, count),
                Gate::DeviceLocked => read_locked(cq, buf, count),
            };
        }
        read_on(cq, buf, count)
    }
}

/// gdrfab_cq_read() of an empty queue to which messages may come on the shortest way.
///
/// # Safety
/// As for gdrfab_cq_read(), which has checked the pointers.
#[inline(never)]
unsafe extern "C" fn read_arrivals(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: handed on.
    unsafe {
        let q = &*cq.cast::<Cq>();
        let format = q.format;
        match short(|| q.read_arrivals(count, |i, c| put(format, buf, i, c)).map(|taken| outcome(cq, taken))) {
            Some(n) => n,
            None => read_on(cq, buf, count),
        }
    }
}

macro_rules! read_ready {
    ($name:ident, $format:expr) => {
        /// gdrfab_cq_read() of a queue that its endpoints fill.
        ///
        /// # Safety
        /// As for gdrfab_cq_read(), which has checked the pointers.
        #[inline(never)]
        unsafe extern "C" fn $name(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
            // SAFETY: handed on.
            unsafe {
                let q = &*cq.cast::<Cq>();
                match q.read_ready(count, |i, c| put($format, buf, i, c)) {
                    Some(taken) => outcome(cq, taken),
                    None if q.may_arrive(count) => read_arrivals(cq, buf, count),
                    None => read_on(cq, buf, count),
                }
            }
        }
    };
}
read_ready!(ready_contexts, CqFormat::Context);
read_ready!(ready_msgs, CqFormat::Msg);
read_ready!(ready_data, CqFormat::Data);

macro_rules! read_device {
    ($name:ident, $format:expr) => {
        /// gdrfab_cq_read() of a queue that a device fills, in a domain without locks.
        ///
        /// # Safety
        /// As for gdrfab_cq_read(), which has checked the pointers and the gate.
        #[inline(never)]
        unsafe extern "C" fn $name(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
            // SAFETY: handed on.
            unsafe {
                let q = &*cq.cast::<Cq>();
                match hold(Err, || Ok(q.look::<false>(count, |i, c| put($format, buf, i, c)))) {
                    Ok(Found::Some(n)) => n as ssize_t,
                    Ok(Found::Due(n)) => due(cq, n),
                    Ok(Found::Nothing) => read_after(cq, buf, count),
                    Ok(Found::Elsewhere) => read_on(cq, buf, count),
                    Err(rc) => rc as ssize_t,
                }
            }
        }
    };
}
read_device!(read_contexts, CqFormat::Context);
read_device!(read_msgs, CqFormat::Msg);
read_device!(read_data, CqFormat::Data);

/// As `read_data` for any format, where the library locks.
///
/// # Safety
/// As for `read_data`.
#[inline(never)]
unsafe extern "C" fn read_locked(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: handed on.
    unsafe {
        let q = &*cq.cast::<Cq>();
        let look = || match q.format {
            CqFormat::Context => q.look::<true>(count, |i, c| put(CqFormat::Context, buf, i, c)),
            CqFormat::Msg => q.look::<true>(count, |i, c| put(CqFormat::Msg, buf, i, c)),
            CqFormat::Data => q.look::<true>(count, |i, c| put(CqFormat::Data, buf, i, c)),
        };
        match hold(Err, || Ok(look())) {
            Ok(Found::Some(n)) => n as ssize_t,
            Ok(Found::Due(n)) => due(cq, n),
            Ok(Found::Nothing) => read_after(cq, buf, count),
            Ok(Found::Elsewhere) => read_on(cq, buf, count),
            Err(rc) => rc as ssize_t,
        }
    }
}

/// The end of gdrfab_cq_read() when the endpoints' turn has come.
///
/// # Safety
/// As for `read_data`.
#[cold]
#[inline(never)]
unsafe extern "C" fn due(cq: *mut gdrfab_cq, n: usize) -> ssize_t {
    // A panic leaves its words; the entries were taken out, and are the caller's.
    // SAFETY: handed on.
    hold(|_| (), || unsafe { (*cq.cast::<Cq>()).due() });
    n as ssize_t
}

/// gdrfab_cq_read() when the device has nothing.
///
/// # Safety
/// As for `read_data`.
#[inline(never)]
unsafe extern "C" fn read_after(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: handed on.
    unsafe {
        let q = &*cq.cast::<Cq>();
        let format = q.format;
        hold(|rc| rc as ssize_t, || outcome(cq, q.read_after(count, |i, c| put(format, buf, i, c))))
    }
}

/// gdrfab_cq_read() when nothing lies ready, or not without a lock.
///
/// # Safety
/// As for gdrfab_cq_read().
#[inline(never)]
unsafe extern "C" fn read_on(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: handed on.
    hold(
        |rc| rc as ssize_t,
        || unsafe {
            match queue(cq, buf, count) {
                Ok(q) => {
                    let format = q.format;
                    outcome(cq, q.read_queue(count, |i, c| put(format, buf, i, c)))
                }
                Err(e) => failed(&e) as isize,
            }
        },
    )
}

/// gdrfab_cq_read() with source addresses. Mirrors fi_cq_readfrom.
///
/// @param count    entries that buf and src_addr hold
/// @param src_addr gets GDRFAB_ADDR_UNSPEC per entry on connected endpoints; may be NULL
/// @return as gdrfab_cq_read()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_readfrom(cq: *mut gdrfab_cq, buf: *mut c_void, count: usize, src_addr: *mut u64) -> ssize_t {
    // SAFETY: handed on.
    let n = unsafe { gdrfab_cq_read(cq, buf, count) };
    if !src_addr.is_null() {
        for i in 0..n.max(0) as usize {
            // SAFETY: the C caller says that src_addr holds count values, and n <= count.
            unsafe { src_addr.add(i).write_unaligned(GDRFAB_ADDR_UNSPEC) };
        }
    }
    n
}

/// gdrfab_cq_read() that waits for the first entry. Polls for GDRFAB_SPIN_US, then sleeps; needs no
/// descriptor. Several threads may wait on one queue. Mirrors fi_cq_sread.
///
/// @param count      entries that buf holds, not 0
/// @param cond       not used, NULL
/// @param timeout_ms milliseconds, -1: no limit
/// @return as gdrfab_cq_read(); -EAGAIN also after the timeout or gdrfab_cq_signal(); -EINTR (a signal);
///   -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_sread(
    cq: *mut gdrfab_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout_ms: c_int,
) -> ssize_t {
    let _ = cond;
    let mut result = Taken::Empty;
    // SAFETY: the C caller says that the handle is open and that buf holds count entries.
    let rc = control(|| unsafe {
        let q = queue(cq, buf, count)?;
        if count == 0 {
            return Err(Error::invalid("count: 0 entries cannot be waited for"));
        }
        let format = q.format;
        result = q.sread(count, timeout_ms, |i, c| put(format, buf, i, c))?;
        Ok(())
    });
    if rc != 0 {
        return rc as isize;
    }
    // SAFETY: read from just now.
    unsafe { outcome(cq, result) }
}

/// Reads the error entry that is next. Mirrors fi_cq_readerr.
///
/// @param entry gets the entry; the caller sets struct_size, err_data and err_data_size
/// @param flags 0
/// @return 1, or -EAGAIN (the next entry is no error), -EINVAL, -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_readerr(cq: *mut gdrfab_cq, entry: *mut gdrfab_cq_err_entry, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and entry and its buffer writable.
    counted(|| unsafe {
        let q = object(cq, "cq")?;
        let out = output_sized(entry, "entry")?;
        super::eq::no_flags(flags)?;
        let (data, room) = ((*out).err_data, (*out).err_data_size);
        let Some((c, f)) = q.read_error() else { return Err(Error::AGAIN) };
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
        };
        write_sized(out, &e);
        Ok(1)
    })
}

/// Makes one waiting gdrfab_cq_sread() return, or else the next one at once; a thread that waits by
/// gdrfab_cq_trywait() and poll gets it as an -EAGAIN of gdrfab_cq_trywait(). Any thread may call it, with
/// GDRFAB_THREAD_DOMAIN too. Mirrors fi_cq_signal.
///
/// @return 0, -EINVAL, -EPERM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_signal(cq: *mut gdrfab_cq) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cq, "cq")?.signal() })
}

/// Words for a provider code. Mirrors fi_cq_strerror.
///
/// @param prov_errno of an error entry
/// @param err_data   of the entry: the words of that very failure; NULL: the code's general words
/// @param buf        gets a copy of at most len bytes, or NULL
/// @return buf, or if that is NULL static or err_data's text; not to be freed
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_strerror(
    cq: *mut gdrfab_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let _ = cq;
    // SAFETY: handed on.
    unsafe { words(prov_errno, err_data, buf, len) }
}

/// # Safety
/// `err_data` is NULL or NUL-terminated, `buf` NULL or writable for `len`.
#[inline(always)]
pub(super) unsafe fn words(prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize) -> *const c_char {
    thread_local! {
        static WORDS: std::cell::RefCell<std::ffi::CString> = std::cell::RefCell::new(std::ffi::CString::default());
    }
    let said = || -> *const c_char {
        // SAFETY: the caller's promise.
        unsafe {
            let general = || Code::words(prov_errno).to_string();
            // A rejecting peer's data is not text.
            let text = if err_data.is_null() || prov_errno == GDRFAB_PROV_REJECTED {
                general()
            } else {
                std::ffi::CStr::from_ptr(err_data.cast()).to_string_lossy().into_owned()
            };
            if !buf.is_null() && len > 0 {
                let _ = write_text(buf, len, &text);
                return buf.cast_const();
            }
            WORDS
                .try_with(|w| {
                    *w.borrow_mut() = std::ffi::CString::new(text).unwrap_or_default();
                    w.borrow().as_ptr()
                })
                .unwrap_or(c"".as_ptr())
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
