// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversions at the C interface: handles, structs with a size, strings, buffers and results. Control calls
//! run inside `control`, which catches panics and turns an error into a negative errno.

use crate::error::{Error, Result, errno};
use crate::fabric;
use crate::guard::begin;
use crate::prov::general::ops_of;
use crate::prov::op::Iov;
use crate::prov::ops::{CqHead, EpOps};
use crate::sys::cancel;
use libc::{c_char, c_int, c_void, ssize_t};
use std::ffi::CStr;
use std::sync::Arc;

pub(super) use crate::guard::{CText, failed, hold, last_words, null, posting};

/// Runs a control call: 0 or a negative errno. A panic becomes -ENOTRECOVERABLE. The calling thread cannot
/// be cancelled in it.
#[inline(always)] // each export holds its own panics
pub(super) fn control(f: impl FnOnce() -> Result<()>) -> c_int {
    match begin() {
        0 => release(f),
        refused => refused,
    }
}

/// As `control`, for a call that gives memory back or wakes other threads: it begins even if memory has run
/// out.
#[inline(always)]
pub(super) fn release(f: impl FnOnce() -> Result<()>) -> c_int {
    counted(|| f().map(|()| 0)) as c_int
}

/// As `release`, for a call that returns a count.
#[inline(always)]
pub(super) fn counted(f: impl FnOnce() -> Result<usize>) -> ssize_t {
    let before = cancel::hold_off();
    let count = reading(f);
    cancel::restore(before);
    count
}

/// As `counted`, for calls that read a queue: their system calls are no cancellation points.
pub(super) fn reading(f: impl FnOnce() -> Result<usize>) -> ssize_t {
    hold(|rc| rc as isize, || f().map_or_else(|e| failed(&e) as isize, |n| n as isize))
}

/// Connects an opaque C type with the Rust object behind it.
pub(super) trait Handle: Sized {
    type Inner;
}

/// Makes an object into a handle for the caller; `reclaim` takes it back.
pub(super) fn give<H: Handle>(object: Arc<H::Inner>) -> *mut H {
    Arc::into_raw(object).cast_mut().cast()
}

/// The object behind a handle.
///
/// # Safety
/// `handle` is NULL, or was given by `give` and not reclaimed.
#[inline(always)]
pub(super) unsafe fn object<'a, H: Handle>(handle: *mut H, name: &'static str) -> Result<&'a H::Inner> {
    if handle.is_null() || !handle.cast::<H::Inner>().is_aligned() {
        return Err(null(name));
    }
    // SAFETY: the C caller says that the handle is open.
    Ok(unsafe { &*handle.cast::<H::Inner>() })
}

/// The table of operations of an endpoint. NULL gets a table whose entries report the error.
///
/// # Safety
/// As for `object`.
#[inline(always)]
pub(super) unsafe fn ep_ops<H: Handle<Inner = fabric::Endpoint>>(ep: *mut H) -> &'static EpOps {
    // SAFETY: the C caller says that the handle is open; its object begins with the head.
    unsafe { ops_of(ep.cast()) }
}

/// The head of a completion queue; `None` if the handle is NULL or misaligned.
///
/// # Safety
/// As for `object`.
#[inline(always)]
pub(super) unsafe fn cq_head<'a, H: Handle<Inner = fabric::Cq>>(cq: *mut H) -> Option<&'a CqHead> {
    if !cq.cast::<CqHead>().is_aligned() {
        return None;
    }
    // SAFETY: the C caller says that the handle is open; its object begins with the head.
    unsafe { cq.cast::<CqHead>().as_ref() }
}

#[cold]
#[inline(never)]
pub(super) extern "C" fn no_cq() -> ssize_t {
    posting(|| Err(null("cq")))
}

/// As `object`, with a reference of its own.
///
/// # Safety
/// As for `object`.
pub(super) unsafe fn shared<H: Handle>(handle: *mut H, name: &'static str) -> Result<Arc<H::Inner>> {
    if handle.is_null() || !handle.cast::<H::Inner>().is_aligned() {
        return Err(null(name));
    }
    // SAFETY: the C caller says that the handle is open.
    Ok(unsafe { share(handle) })
}

/// As `shared`, for a handle that `object` has checked.
///
/// # Safety
/// The handle is open.
#[inline]
pub(super) unsafe fn share<H: Handle>(handle: *mut H) -> Arc<H::Inner> {
    let raw = handle.cast::<H::Inner>().cast_const();
    // SAFETY: `give` made the handle by Arc::into_raw, and an open handle holds one reference.
    unsafe {
        Arc::increment_strong_count(raw);
        Arc::from_raw(raw)
    }
}

/// Takes a handle of `give` back.
///
/// # Safety
/// The handle is open, and the caller will not use it again.
pub(super) unsafe fn reclaim<H: Handle>(handle: *mut H) -> Arc<H::Inner> {
    // SAFETY: `give` made the handle by Arc::into_raw, and the C caller says that it closes the handle once.
    unsafe { Arc::from_raw(handle.cast::<H::Inner>().cast_const()) }
}

/// Checks a pointer through which a result is returned.
pub(super) fn output<T>(pointer: *mut T, name: &'static str) -> Result<*mut T> {
    if pointer.is_null() || !pointer.is_aligned() { Err(null(name)) } else { Ok(pointer) }
}

pub(super) fn no_flags(flags: u64) -> Result<()> {
    match flags {
        0 => Ok(()),
        n => Err(Error::new(errno::EBADFLAGS, format!("flags: {n:#x}, must be 0"))),
    }
}

/// A struct that begins with `struct_size` and may grow in later versions; zeros are the defaults.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and any bytes are a valid value of it.
pub(super) unsafe trait ExtensibleStruct {
    /// The size of the struct in the first release that had it.
    const FIRST: usize;
}

/// Reads a struct of the caller as the system call openat2 does: a shorter struct is extended by zeros, and
/// the unknown part of a longer one must be zero.
///
/// # Safety
/// `from` is NULL or readable for the `struct_size` bytes that it begins with.
pub(super) unsafe fn read_sized<T: ExtensibleStruct>(from: *const T, name: &'static str) -> Result<T> {
    if from.is_null() || !from.is_aligned() {
        return Err(null(name));
    }
    // SAFETY: the struct begins with its size.
    let size = unsafe { from.cast::<usize>().read() };
    check_size::<T>(size, name)?;
    let ours = size_of::<T>();
    if size > ours {
        // SAFETY: the caller says that `size` bytes are readable.
        let tail = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(ours), size - ours) };
        if tail.iter().any(|b| *b != 0) {
            return Err(Error::new(
                errno::E2BIG,
                format!("{name}: fields beyond byte {ours} are set, which this version of the library does not know; set them to 0"),
            ));
        }
    }
    // SAFETY: zero is a valid T, and at most its size is overwritten with the caller's bytes.
    unsafe {
        let mut value = std::mem::zeroed::<T>();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), size.min(ours));
        Ok(value)
    }
}

/// Larger than any struct will ever be: a greater `struct_size` was never set.
const SIZE_LIMIT: usize = 4096;

fn check_size<T: ExtensibleStruct>(size: usize, name: &'static str) -> Result<()> {
    if !(T::FIRST..=SIZE_LIMIT).contains(&size) {
        return Err(Error::invalid(format!("{name}->struct_size: {size}; set it to sizeof(*{name})")));
    }
    Ok(())
}

/// Checks a struct through which results are returned.
///
/// # Safety
/// `to` is NULL or begins with its size.
pub(super) unsafe fn output_sized<T: ExtensibleStruct>(to: *mut T, name: &'static str) -> Result<*mut T> {
    let to = output(to, name)?;
    // SAFETY: the struct begins with its size.
    check_size::<T>(unsafe { to.cast::<usize>().read() }, name)?;
    Ok(to)
}

/// Writes as much of `value` as the caller's struct holds; its `struct_size` stays.
///
/// # Safety
/// `to` passed `output_sized` and is writable for the size that it begins with.
pub(super) unsafe fn write_sized<T: ExtensibleStruct>(to: *mut T, value: &T) {
    // SAFETY: the caller says that `to` is writable for the size that it begins with; that field is kept.
    unsafe {
        let size = to.cast::<usize>().read().min(size_of::<T>());
        let skip = size_of::<usize>();
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>().add(skip), to.cast::<u8>().add(skip), size - skip);
    }
}

/// The caller's C string, or `None` for NULL.
///
/// # Safety
/// NULL, or NUL-terminated.
pub(super) unsafe fn text<'a>(from: *const c_char, name: &'static str) -> Result<Option<&'a str>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller says that it is terminated.
    match unsafe { CStr::from_ptr(from) }.to_str() {
        Ok(s) => Ok(Some(s)),
        Err(_) => Err(Error::invalid(format!("{name}: not UTF-8"))),
    }
}

/// The caller's bytes; NULL is allowed only with length 0.
///
/// # Safety
/// Readable for `len`.
pub(super) unsafe fn bytes<'a>(from: *const c_void, len: usize, name: &'static str) -> Result<&'a [u8]> {
    match (from.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: the caller says that `len` bytes are readable.
        (false, n) if n <= isize::MAX as usize => Ok(unsafe { std::slice::from_raw_parts(from.cast(), n) }),
        _ => Err(Error::invalid(format!("{name}: {len} bytes exceed the address space"))),
    }
}

/// An address: text that ends with a NUL within `len` bytes.
///
/// # Safety
/// Readable for `len`.
pub(super) unsafe fn address<'a>(from: *const c_void, len: usize) -> Result<&'a str> {
    // SAFETY: the caller says that `len` bytes can be read.
    let raw = unsafe { bytes(from, len, "addr")? };
    if raw.is_empty() {
        return Err(Error::invalid("addr: NULL, or addrlen is 0"));
    }
    let Some(end) = raw.iter().position(|b| *b == 0) else {
        return Err(Error::invalid("addr: no NUL within addrlen bytes"));
    };
    match std::str::from_utf8(&raw[..end]) {
        Ok(s) if !s.is_empty() => Ok(s),
        _ => Err(Error::invalid("addr: empty or not UTF-8 text")),
    }
}

/// The caller's iovecs.
///
/// # Safety
/// Readable for `count` elements, and each is as [`Iov::new`] asks.
#[inline]
pub(super) unsafe fn iovecs<'a>(from: *const libc::iovec, count: usize, name: &'static str) -> Result<&'a [Iov]> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() || !from.is_aligned() || count > 4096 {
        return Err(Error::invalid(format!("{name}: NULL or misaligned pointer, or an impossible count of {count}")));
    }
    // SAFETY: the C caller says that there are `count` elements, each memory that stays for the operation;
    // `Iov` has iovec's layout.
    Ok(unsafe { std::slice::from_raw_parts(from.cast::<Iov>(), count) })
}

/// The descriptors of an operation's pieces, or none.
///
/// # Safety
/// NULL, or readable for `count` pointers as long as the result is used.
#[inline]
pub(super) unsafe fn descs<'a>(from: *const *mut c_void, count: usize) -> &'a [u64] {
    if from.is_null() || count == 0 || !from.is_aligned() {
        return &[];
    }
    // SAFETY: the caller says that `count` pointers are readable; a descriptor is a number in the type of a
    // pointer.
    unsafe { std::slice::from_raw_parts(from.cast::<u64>(), count) }
}

/// Writes text as snprintf does, and returns the length of the whole text without the NUL.
///
/// # Safety
/// `to` is writable for `len`, or NULL with `len` 0.
pub(super) unsafe fn write_text(to: *mut c_char, len: usize, text: &str) -> Result<usize> {
    if to.is_null() && len > 0 {
        return Err(null("buf"));
    }
    if len > 0 {
        let n = text.len().min(len - 1);
        // SAFETY: n + 1 <= len bytes of the caller's buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), n);
            to.add(n).write(0);
        }
    }
    Ok(text.len())
}

/// Writes an address with its NUL into a buffer, whose size `addrlen` gives and whose used bytes it gets.
///
/// # Safety
/// `addrlen` is NULL or live; `addr` is writable for `*addrlen`.
pub(super) unsafe fn write_address(addr: *mut c_void, addrlen: *mut usize, text: &str) -> Result<()> {
    // SAFETY: the caller says that both can be written, `addr` for the bytes that `addrlen` says.
    unsafe { write_name(addr, addrlen, &[text.as_bytes(), &[0]].concat()) }
}

/// As `write_address`, for a name, to which nothing is added.
///
/// # Safety
/// As for `write_address`.
pub(super) unsafe fn write_name(addr: *mut c_void, addrlen: *mut usize, name: &[u8]) -> Result<()> {
    let addrlen = output(addrlen, "addrlen")?;
    // SAFETY: checked to be non-NULL and aligned; the caller says that it is live.
    unsafe {
        let room = addrlen.read();
        if name.len() > room {
            addrlen.write(name.len());
            return Err(Error::new(errno::ETOOSMALL, format!("*addrlen: {room}, the address needs {}", name.len())));
        }
        let addr = output(addr.cast::<u8>(), "addr")?;
        std::ptr::copy_nonoverlapping(name.as_ptr(), addr, name.len());
        addrlen.write(name.len());
    }
    Ok(())
}
