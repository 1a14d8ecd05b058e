// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading event queues.

use super::boundary::{ExtensibleStruct, bytes, control, counted, no_flags, null, object, output, output_sized, write_sized, write_text};
use super::info::{export, gdrfab_info};
use super::objects::{gdrfab_eq, same};
use super::types::*;
use super::waiting::waiting;
use crate::error::{Code, Error, Result, errno};
use crate::fabric::wait::{Step, Wait};
use crate::fallible::copied;
use crate::prov::event::{Event, EventKind};
use libc::{c_char, c_int, c_void, ssize_t};
use std::cell::Cell;

// == Event queue ==

/// A connection event; the peer's private data follows it (mirrors fi_eq_cm_entry).
#[repr(C)]
pub struct gdrfab_eq_cm_entry {
    /// To be cast (libfabric: fid): the gdrfab_pep of GDRFAB_CONNREQ, else the gdrfab_ep.
    pub object: *mut c_void,
    /// The object's context.
    pub context: *mut c_void,
    /// Of GDRFAB_CONNREQ, else NULL: for gdrfab_ep_open(), or its handle for gdrfab_pep_reject(); freed by
    /// gdrfab_freeinfo().
    pub info: *mut gdrfab_info,
}

// #define GDRFAB_EQ_CM_DATA

/// A failed connection attempt, or why a connection broke (mirrors fi_eq_err_entry).
#[repr(C)]
pub struct gdrfab_eq_err_entry {
    /// sizeof(gdrfab_eq_err_entry), set by the caller
    pub struct_size: usize,
    /// To be cast: the gdrfab_pep if data is GDRFAB_CONNREQ, else the gdrfab_ep.
    pub object: *mut c_void,
    /// The object's context.
    pub context: *mut c_void,
    /// The event that failed. GDRFAB_CONNECTED: an attempt to connect failed. GDRFAB_SHUTDOWN: the connection
    /// broke. GDRFAB_NOTIFY: the connection goes on, but a port or rail went down, or an address changed.
    /// GDRFAB_CONNREQ, of two causes: a passive endpoint of shm or tcp cannot accept peers (err EMFILE,
    /// ENFILE, ENOMEM...), which is told once until it can again; it still listens, and refuses or holds
    /// them. Or one of tcp refused a peer for its key (err EACCES, EKEYREJECTED; the words have the peer's
    /// address), which is told once a second at most for all peers.
    pub data: u64,
    /// Errno, positive.
    pub err: c_int,
    /// GDRFAB_PROV_*
    pub prov_errno: c_int,
    /// In: a buffer, or NULL. Gets words, or with GDRFAB_PROV_REJECTED the peer's private data.
    pub err_data: *mut c_void,
    /// In: bytes of err_data; out: bytes written, of words with their NUL.
    pub err_data_size: usize,
}

// SAFETY: repr(C), size first; the buffer is checked at use.
unsafe impl ExtensibleStruct for gdrfab_eq_err_entry {
    const FIRST: usize = 56;
}

/// True if the flags ask to leave the event in the queue.
fn peek(flags: u64) -> Result<bool> {
    no_flags(flags & !GDRFAB_PEEK).map(|()| flags & GDRFAB_PEEK != 0)
}

/// True if an event comes from gdrfab_eq_write(), so that its bytes are handed out as they are.
fn is_raw(event: &Event) -> bool {
    event.object == 0
}

fn size_of_event(event: &Event) -> usize {
    event.data.len() + if is_raw(event) { 0 } else { size_of::<gdrfab_eq_cm_entry>() }
}

/// The result of looking at the first event.
enum Look {
    Take,
    TooSmall(usize),
    /// The first entry is an error; this is its reason.
    Error(Error),
    /// The event stays in the queue; its number and its length.
    Stays(u32, usize),
}

fn look(event: &Event, room: usize, peek: bool) -> (bool, Look) {
    let need = size_of_event(event);
    if let Some(why) = &event.error {
        (false, Look::Error(why.clone()))
    } else if peek {
        (false, Look::Stays(event.kind, need))
    } else if need > room {
        (false, Look::TooSmall(need))
    } else {
        (true, Look::Take)
    }
}

/// # Safety
/// `event` and `buf` are writable, `buf` for the event's size.
unsafe fn hand_out(result: Option<(Look, Option<Event>)>, event: *mut u32, buf: *mut c_void) -> Result<usize> {
    match result {
        None => Err(Error::AGAIN),
        Some((Look::Error(why), _)) => Err(Error::new(errno::EAVAIL, why.words)),
        Some((Look::TooSmall(need), _)) => Err(Error::new(errno::ETOOSMALL, format!("len: the event needs {need} bytes"))),
        Some((Look::Stays(kind, need), _)) => {
            // SAFETY: the caller says that `event` is writable.
            unsafe { event.write(kind) };
            Ok(need)
        }
        Some((Look::Take, None)) => Err(Error::AGAIN),
        Some((Look::Take, Some(mut e))) => {
            let size = size_of_event(&e);
            let info = e.info.take().map_or(std::ptr::null_mut(), |info| export(&info));
            // SAFETY: the caller says that `buf` holds the event's size, which `look` compared with the room.
            unsafe {
                let mut at = buf.cast::<u8>();
                if !is_raw(&e) {
                    let entry = gdrfab_eq_cm_entry {
                        object: same::<super::objects::gdrfab_ep>(e.object).cast(),
                        context: e.context as *mut c_void,
                        info,
                    };
                    at.cast::<gdrfab_eq_cm_entry>().write_unaligned(entry);
                    at = at.add(size_of::<gdrfab_eq_cm_entry>());
                }
                std::ptr::copy_nonoverlapping(e.data.as_ptr(), at, e.data.len());
                event.write(e.kind);
            }
            Ok(size)
        }
    }
}

/// Reads an event, and drives connecting, listening and the endpoints bound to the queue. Mirrors fi_eq_read.
///
/// @param event gets GDRFAB_CONNREQ, GDRFAB_CONNECTED, GDRFAB_SHUTDOWN, GDRFAB_NOTIFY, or the number of
///   gdrfab_eq_write()
/// @param buf   gets a gdrfab_eq_cm_entry and private data, or the bytes of gdrfab_eq_write()
/// @param len   bytes of buf; sizeof(gdrfab_eq_cm_entry) + GDRFAB_CM_DATA_MAX hold any connection event
/// @param flags 0, or GDRFAB_PEEK: the event stays, and buf, which may be NULL, is not written
/// @return bytes written (GDRFAB_PEEK: that reading writes), -EAGAIN (none), -GDRFAB_EAVAIL
///   (gdrfab_eq_readerr() has the next), -GDRFAB_ETOOSMALL (the event stays), -EINVAL, -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_read(eq: *mut gdrfab_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the outputs writable.
    counted(|| unsafe {
        let q = object(eq, "eq")?;
        let event = output(event, "event")?;
        let peek = peek(flags)?;
        if buf.is_null() && !peek {
            return Err(null("buf"));
        }
        hand_out(q.read(|e| look(e, len, peek)), event, buf)
    })
}

/// gdrfab_eq_read() that waits for an event; with GDRFAB_PEEK it only waits. Mirrors fi_eq_sread.
///
/// @return as gdrfab_eq_read(); -EAGAIN also after the timeout, or because a passive endpoint of the queue was
///   closed meanwhile; -EINTR (a signal); -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gdrfab_eq_sread(
    eq: *mut gdrfab_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
    flags: u64,
) -> ssize_t {
    let closes = Cell::new(0);
    // SAFETY: the C caller says that the handle stays open and the outputs writable.
    unsafe {
        let begin = || {
            let q = object(eq, "eq")?;
            output(event, "event")?;
            if buf.is_null() && !peek(flags)? {
                return Err(null("buf"));
            }
            let (wait, now) = q.begin_wait(timeout_ms)?;
            closes.set(now);
            Ok(wait)
        };
        let step = |wait: &mut Wait<'_>| {
            let peek = peek(flags)?;
            match object(eq, "eq")?.step(wait, closes.get(), |e| look(e, len, peek))? {
                Step::Over(got) => Ok(Step::Over(Some(hand_out(got.flatten(), output(event, "event")?, buf)?))),
                Step::Sleep(nap) => Ok(Step::Sleep(nap)),
            }
        };
        waiting(begin, step, || Err(Error::AGAIN))
    }
}

/// gdrfab_cq_readerr() of an event queue. Mirrors fi_eq_readerr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_readerr(eq: *mut gdrfab_eq, entry: *mut gdrfab_eq_err_entry, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and entry and its buffer writable.
    counted(|| unsafe {
        let q = object(eq, "eq")?;
        let out = output_sized(entry, "entry")?;
        no_flags(flags)?;
        let (data, room) = ((*out).err_data, (*out).err_data_size);
        let Some(((), Some(e))) = q.read(|e| (e.error.is_some(), ())) else { return Err(Error::AGAIN) };
        let Some(why) = &e.error else { return Err(Error::AGAIN) };
        let written = match (data.is_null() || room == 0, why.code) {
            (true, _) => 0,
            (false, Code::Rejected) => {
                let n = e.data.len().min(room);
                std::ptr::copy_nonoverlapping(e.data.as_ptr(), data.cast::<u8>(), n);
                n
            }
            (false, _) => write_text(data.cast(), room, &why.words)?.min(room - 1) + 1,
        };
        let entry = gdrfab_eq_err_entry {
            struct_size: 0,
            object: e.object as *mut c_void,
            context: e.context as *mut c_void,
            data: u64::from(e.kind),
            err: why.errno,
            prov_errno: why.code.0,
            err_data: data,
            err_data_size: written,
        };
        write_sized(out, &entry);
        Ok(1)
    })
}

/// Puts an event of the caller's into the queue, and wakes those that wait on it. Mirrors fi_eq_write.
///
/// @param event any number; one above GDRFAB_SHUTDOWN is no event of the library's
/// @param buf   bytes for the reader
/// @param len   bytes of buf, up to 4096
/// @return len, or -EINVAL, -GDRFAB_EBADFLAGS, -EPERM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_write(eq: *mut gdrfab_eq, event: u32, buf: *const c_void, len: usize, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the bytes readable.
    counted(|| unsafe {
        let q = object(eq, "eq")?;
        no_flags(flags)?;
        if len > 4096 {
            return Err(Error::invalid(format!("len: {len}, must be at most 4096")));
        }
        let mut e = Event::new(EventKind::Notify, 0, 0);
        e.kind = event;
        e.data = copied(bytes(buf, len, "buf")?)?;
        q.write(e)?;
        Ok(len)
    })
}

/// gdrfab_cq_strerror() of an event queue. With GDRFAB_PROV_REJECTED it does not read err_data, which is the
/// peer's private data. Mirrors fi_eq_strerror.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_strerror(
    eq: *mut gdrfab_eq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let _ = eq;
    // SAFETY: the C caller says that `err_data` are words of an entry or NULL, and that `buf` holds `len` bytes.
    unsafe { super::cq::words(prov_errno, err_data, buf, len) }
}

/// gdrfab_cq_fd() of an event queue: readable when an event may be there, or a timeout of connecting has
/// passed. In this order: read until -EAGAIN, gdrfab_eq_trywait(), poll. Mirrors fi_control with FI_GETWAIT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_fd(eq: *mut gdrfab_eq, fd: *mut c_int) -> c_int {
    // SAFETY: the C caller says that the handle is open and fd live.
    control(|| unsafe {
        let out = output(fd, "fd")?;
        out.write(object(eq, "eq")?.fd()?);
        Ok(())
    })
}

/// gdrfab_cq_trywait() of an event queue; -EAGAIN: an event is there, or may be. Mirrors fi_trywait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_trywait(eq: *mut gdrfab_eq) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(eq, "eq")?.trywait() })
}
