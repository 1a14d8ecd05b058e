// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomic operations.

use super::boundary::{ExtensibleStruct, control, null, object, output, posting, read_sized};
use super::objects::gdrfab_ep;
use super::rma::check_op_flags;
use crate::error::{Error, Result, errno};
use crate::fabric::Endpoint;
use crate::prov::atomic::{Atomic, AtomicOp, DATATYPES, Form, OPS, Operands};
use crate::prov::op::{Common, Iov};
use libc::{c_int, c_void, ssize_t};

// == Atomics ==

// Datatypes.
/// int8_t
pub const GDRFAB_INT8: u32 = 0;
/// uint8_t
pub const GDRFAB_UINT8: u32 = 1;
/// int16_t
pub const GDRFAB_INT16: u32 = 2;
/// uint16_t
pub const GDRFAB_UINT16: u32 = 3;
/// int32_t
pub const GDRFAB_INT32: u32 = 4;
/// uint32_t
pub const GDRFAB_UINT32: u32 = 5;
/// int64_t
pub const GDRFAB_INT64: u32 = 6;
/// uint64_t
pub const GDRFAB_UINT64: u32 = 7;
/// float
pub const GDRFAB_FLOAT: u32 = 8;
/// double
pub const GDRFAB_DOUBLE: u32 = 9;

// Operations: the new value of an element t, given b of buf and c of compare. The bitwise ones are not for
// float and double. Those that compare are for gdrfab_compare_atomic() alone, and the others not for it.
/// The smaller of t and b.
pub const GDRFAB_MIN: u32 = 0;
/// The larger of t and b.
pub const GDRFAB_MAX: u32 = 1;
/// t + b; integers wrap around.
pub const GDRFAB_SUM: u32 = 2;
/// t * b
pub const GDRFAB_PROD: u32 = 3;
/// t || b
pub const GDRFAB_LOR: u32 = 4;
/// t && b
pub const GDRFAB_LAND: u32 = 5;
/// t | b
pub const GDRFAB_BOR: u32 = 6;
/// t & b
pub const GDRFAB_BAND: u32 = 7;
/// !t != !b
pub const GDRFAB_LXOR: u32 = 8;
/// t ^ b
pub const GDRFAB_BXOR: u32 = 9;
/// t; of gdrfab_fetch_atomic() alone, without buf.
pub const GDRFAB_ATOMIC_READ: u32 = 10;
/// b; with gdrfab_fetch_atomic(): swap.
pub const GDRFAB_ATOMIC_WRITE: u32 = 11;
/// b if c == t.
pub const GDRFAB_CSWAP: u32 = 12;
/// b if c != t.
pub const GDRFAB_CSWAP_NE: u32 = 13;
/// b if c <= t.
pub const GDRFAB_CSWAP_LE: u32 = 14;
/// b if c < t.
pub const GDRFAB_CSWAP_LT: u32 = 15;
/// b if c >= t.
pub const GDRFAB_CSWAP_GE: u32 = 16;
/// b if c > t.
pub const GDRFAB_CSWAP_GT: u32 = 17;
/// (b & c) | (t & ~c)
pub const GDRFAB_MSWAP: u32 = 18;

/// An atomic operation with all its parameters (mirrors fi_msg_atomic).
#[repr(C)]
pub struct gdrfab_msg_atomic {
    /// sizeof(gdrfab_msg_atomic)
    pub struct_size: usize,
    /// Elements b; may be NULL with GDRFAB_ATOMIC_READ.
    pub buf: *const c_void,
    /// Elements c, or NULL.
    pub compare: *const c_void,
    /// Gets the elements t, or NULL.
    pub result: *mut c_void,
    /// Number of elements.
    pub count: usize,
    /// dest_addr.
    pub addr: u64,
    /// Remote address.
    pub rma_addr: u64,
    /// The region's key.
    pub key: u64,
    /// GDRFAB_INT8, ...
    pub datatype: u32,
    /// GDRFAB_MIN, ...
    pub op: u32,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's.
    pub timeout_ns: u64,
    /// gdrfab_mr_desc() of buf, or NULL.
    pub desc: *mut c_void,
    /// The same of compare.
    pub compare_desc: *mut c_void,
    /// The same of result.
    pub result_desc: *mut c_void,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_msg_atomic {
    const FIRST: usize = 88;
}

/// The operation that datatype and op name, without a count.
#[inline(always)]
fn named(datatype: u32, op: u32, form: Form) -> Result<Atomic> {
    match (DATATYPES.get(datatype as usize), OPS.get(op as usize)) {
        (Some(&datatype), Some(&op)) if Atomic::is_valid(op, datatype, form) => Ok(Atomic { op, datatype, form, count: 0 }),
        _ => Err(unnamed(datatype, op, form)),
    }
}

#[cold]
fn unnamed(datatype: u32, op: u32, form: Form) -> Error {
    let Some(datatype) = DATATYPES.get(datatype as usize).copied() else {
        return Error::invalid(format!("datatype: {datatype} is not one of GDRFAB_INT8 to GDRFAB_DOUBLE"));
    };
    let Some(op) = OPS.get(op as usize).copied() else {
        return Error::invalid(format!("op: {op} is not one of GDRFAB_MIN to GDRFAB_MSWAP"));
    };
    let call = ["gdrfab_atomic", "gdrfab_fetch_atomic", "gdrfab_compare_atomic"][form as usize];
    Error::new(errno::EOPNOTSUPP, format!("op: {call}() has no {op:?} of {datatype:?}"))
}

#[cold]
fn too_many(count: usize, what: Atomic) -> Error {
    let most = what.most();
    Error::new(errno::EMSGSIZE, format!("count: {count}, the limit is {most} elements of {:?}", what.datatype))
}

/// The caller's memory of `len` bytes.
///
/// # Safety
/// It stays as the operation needs it.
unsafe fn given(at: *const c_void, len: usize, name: &'static str) -> Result<Iov> {
    if at.is_null() && len != 0 {
        return Err(null(name));
    }
    // SAFETY: the caller promises memory that stays as the operation needs it.
    Ok(unsafe { Iov::new(at as usize, len) })
}

/// Inlined: parameters passed through memory are stores, for which the locked instruction would wait.
///
/// # Safety
/// `ep` is open, and the buffers are as the operation needs them.
#[inline(always)]
unsafe fn post(ep: *mut gdrfab_ep, m: &gdrfab_msg_atomic, form: Form, flags: Option<u64>, descs: &[u64]) -> Result<()> {
    // SAFETY: the C caller says that the handle is open, and keeps the buffers until the completion.
    unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        let what = named(m.datatype, m.op, form)?;
        if m.count > what.most() {
            return Err(too_many(m.count, what));
        }
        let what = Atomic { count: m.count as u16, ..what };
        let bytes = what.bytes();
        let operand = given(m.buf, if what.writes() { bytes } else { 0 }, "buf")?;
        let compare = given(m.compare, if form == Form::Compare { bytes } else { 0 }, "compare")?;
        let old = given(m.result, if what.fetches() { bytes } else { 0 }, "result")?;
        let op = AtomicOp { what, with: Operands { operand, compare, old }, addr: m.rma_addr, key: m.key };
        let flags = flags.unwrap_or(ep.tx_op_flags());
        let c = Common { context: m.context as usize, flags, peer: m.addr, timeout_ns: m.timeout_ns, ..Common::default() };
        ep.atomic(&op, &c, descs)
    }
}

/// Posts an operation on `count` elements of a peer's region, which gives nothing back. Mirrors fi_atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_atomic(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> ssize_t {
    let (compare, result) = (std::ptr::null(), std::ptr::null_mut());
    let m = operation(buf, compare, result, count, (dest_addr, addr, key), (datatype, op), context);
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    posting(|| unsafe { post(ep, &m, Form::Plain, None, &[desc as u64]) })
}

/// gdrfab_atomic() without an entry unless it fails. Mirrors fi_inject_atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_inject_atomic(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    count: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> ssize_t {
    let null = std::ptr::null_mut();
    let m = operation(buf, null, null, count, (dest_addr, addr, key), (datatype, op), null);
    // SAFETY: the C caller says that the handle is open, and that the buffer stays for the call.
    posting(|| unsafe { post(ep, &m, Form::Plain, Some(Endpoint::INJECT | object(ep, "ep")?.tx_op_flags()), &[]) })
}

/// Posts an operation that also fetches the old values of the elements, into `result`. Mirrors
/// fi_fetch_atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fetch_atomic(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> ssize_t {
    let m = operation(buf, std::ptr::null(), result, count, (dest_addr, addr, key), (datatype, op), context);
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    posting(|| unsafe { post(ep, &m, Form::Fetch, None, &[desc as u64, result_desc as u64]) })
}

/// Posts an operation that compares, and fetches as gdrfab_fetch_atomic(). Mirrors fi_compare_atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_compare_atomic(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    compare: *const c_void,
    compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> ssize_t {
    let m = operation(buf, compare, result, count, (dest_addr, addr, key), (datatype, op), context);
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    posting(|| unsafe { post(ep, &m, Form::Compare, None, &[desc as u64, compare_desc as u64, result_desc as u64]) })
}

/// Posts one with flags and a deadline: with compare as gdrfab_compare_atomic(), else with result as
/// gdrfab_fetch_atomic(), else as gdrfab_atomic(). Mirrors fi_atomicmsg, fi_fetch_atomicmsg and
/// fi_compare_atomicmsg.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_atomicmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_atomic, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that handle and struct are live, and that the buffers stay until the completion.
    posting(|| unsafe {
        let m = read_sized(msg, "msg")?;
        check_op_flags(flags)?;
        let form = match () {
            () if !m.compare.is_null() => Form::Compare,
            () if !m.result.is_null() => Form::Fetch,
            () => Form::Plain,
        };
        post(ep, &m, form, Some(flags), &[m.desc as u64, m.compare_desc as u64, m.result_desc as u64])
    })
}

/// # Safety
/// `ep` is open, and `count` NULL or live.
#[inline(always)] // each export holds its own panics
unsafe fn valid(ep: *mut gdrfab_ep, datatype: u32, op: u32, form: Form, count: *mut usize) -> c_int {
    // SAFETY: the C caller says that `ep` is open, and that `count` is NULL or live.
    control(|| unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        let what = named(datatype, op, form)?;
        let most = ep.atomic_valid(what)?;
        if !count.is_null() {
            *output(count, "count")? = most;
        }
        Ok(())
    })
}

/// Asks for an operation of gdrfab_atomic(): 0 if it exists, with the most elements in *count, which may be
/// NULL; else -EOPNOTSUPP, -EINVAL (no such number). Mirrors fi_atomicvalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_atomicvalid(ep: *mut gdrfab_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    unsafe { valid(ep, datatype, op, Form::Plain, count) }
}

/// The same of gdrfab_fetch_atomic(). Mirrors fi_fetch_atomicvalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fetch_atomicvalid(ep: *mut gdrfab_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    unsafe { valid(ep, datatype, op, Form::Fetch, count) }
}

/// The same of gdrfab_compare_atomic(). Mirrors fi_compare_atomicvalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_compare_atomicvalid(ep: *mut gdrfab_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    unsafe { valid(ep, datatype, op, Form::Compare, count) }
}

fn operation(
    buf: *const c_void,
    compare: *const c_void,
    result: *mut c_void,
    count: usize,
    (addr, rma_addr, key): (u64, u64, u64),
    (datatype, op): (u32, u32),
    context: *mut c_void,
) -> gdrfab_msg_atomic {
    let none = std::ptr::null_mut();
    let (desc, compare_desc, result_desc) = (none, none, none);
    gdrfab_msg_atomic {
        struct_size: 0,
        buf,
        compare,
        result,
        count,
        addr,
        rma_addr,
        key,
        datatype,
        op,
        context,
        timeout_ns: 0,
        desc,
        compare_desc,
        result_desc,
    }
}
