// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists: many blocks in one operation.

use super::boundary::{ExtensibleStruct, Handle, control, give, null, object, output, posting, read_sized, reclaim, release, shared};
use super::objects::gdrfab_ep;
use super::rma::check_op_flags;
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::{self, Block, LIST_MAX, List, Prepared};
use crate::prov::op::{Common, Dir};
use libc::{c_int, c_void, ssize_t};
use std::mem::offset_of;

// == RMA ==

/// A block of a list.
#[repr(C)]
pub struct gdrfab_block {
    /// Local address.
    pub buf: *mut c_void,
    /// Remote address.
    pub addr: u64,
    /// Bytes; a block of 0 is passed over.
    pub len: usize,
}

const _: () = {
    assert!(size_of::<gdrfab_block>() == size_of::<Block>() && align_of::<gdrfab_block>() == align_of::<Block>());
    assert!(offset_of!(gdrfab_block, addr) == offset_of!(Block, addr) && offset_of!(gdrfab_block, len) == offset_of!(Block, len));
};

/// Blocks that one operation moves, with all its parameters.
#[repr(C)]
pub struct gdrfab_msg_list {
    /// sizeof(gdrfab_msg_list)
    pub struct_size: usize,
    /// The blocks.
    pub blocks: *const gdrfab_block,
    /// Number of blocks, 1 to info->list_limit.
    pub count: usize,
    /// Local descriptors, or NULL.
    pub desc: *const *mut c_void,
    /// 1: one for all; count: one for each block; 0: none.
    pub desc_count: usize,
    /// Keys of the peer's regions.
    pub key: *const u64,
    /// 1: one for all; count: one for each block.
    pub key_count: usize,
    /// The peer's index; not used on connected endpoints.
    pub addr: u64,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// For the peer, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's.
    pub timeout_ns: u64,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_msg_list {
    const FIRST: usize = 88;
}

/// A list that is prepared.
pub struct gdrfab_list {
    _opaque: [u8; 0],
}

impl Handle for gdrfab_list {
    type Inner = Prepared;
}

/// An array of `count` elements, or of one element for all.
///
/// # Safety
/// NULL, or readable for `n` elements.
unsafe fn one_or_all<'a>(from: *const u64, n: usize, count: usize, name: &'static str) -> Result<&'a [u64]> {
    if n != 1 && n != count {
        return Err(Error::invalid(format!("msg->{name}_count: {n}, must be 1 or the count of blocks, {count}")));
    }
    if from.is_null() || !from.is_aligned() {
        return Err(null(name));
    }
    // SAFETY: it is readable for `n` elements, as the caller says, and aligned.
    Ok(unsafe { std::slice::from_raw_parts(from, n) })
}

/// # Safety
/// The struct and its arrays are live for the call.
unsafe fn parse(ep: &fabric::Endpoint, msg: *const gdrfab_msg_list) -> Result<(List, Common)> {
    // SAFETY: the struct and its arrays are live for the call, as the caller says.
    unsafe {
        let m = read_sized(msg, "msg")?;
        if m.count == 0 || m.count > LIST_MAX {
            return Err(Error::invalid(format!("msg->count: {}, must be 1 to {LIST_MAX}", m.count)));
        }
        if m.blocks.is_null() || !m.blocks.is_aligned() {
            return Err(null("msg->blocks"));
        }
        let blocks = std::slice::from_raw_parts(m.blocks.cast::<Block>(), m.count);
        let descs = if m.desc_count == 0 { &[] } else { one_or_all(m.desc.cast(), m.desc_count, m.count, "desc")? };
        let keys = one_or_all(m.key, m.key_count, m.count, "key")?;
        let c = Common { context: m.context as usize, data: m.data, timeout_ns: m.timeout_ns, peer: m.addr, ..Common::default() };
        Ok((List::new(blocks, descs, keys, ep.max_msg_size())?, c))
    }
}

fn check_flags(dir: Dir, flags: u64) -> Result<()> {
    check_op_flags(flags)?;
    let never = flags & (GDRFAB_INJECT | if dir == Dir::Read { GDRFAB_REMOTE_CQ_DATA } else { 0 });
    match never {
        0 => Ok(()),
        _ => Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {never:#x} are not flags of lists"))),
    }
}

/// # Safety
/// `ep` is open, and the struct and its arrays are live for the call.
#[inline(always)]
unsafe fn post(ep: *mut gdrfab_ep, dir: Dir, msg: *const gdrfab_msg_list, flags: u64) -> ssize_t {
    // SAFETY: the handle is open, and the struct and its arrays are live, as the caller says.
    posting(|| unsafe {
        let ep: &fabric::Endpoint = object(ep, "ep")?;
        check_flags(dir, flags)?;
        let (list, c) = parse(ep, msg)?;
        ep.list(dir, &list.into(), &Common { flags, ..c })
    })
}

/// Posts a read of many blocks, from anywhere in the peer's regions to anywhere here, as one operation.
///
/// The blocks move in any order, and side by side. One entry reports the end: the bytes of all, or the first
/// error and its block (gdrfab_cq_err_entry::block); in that case some blocks may have moved, and none moves
/// any more. If targets overlap, their content is undefined. Blocks that adjoin on both sides are moved as
/// one. With GDRFAB_FENCE the list begins after everything posted before it; operations posted after it may
/// overtake it. The deadline is that of the whole list. gdrfab_cancel() ends it: its entry comes when the
/// parts under way have ended.
///
/// @param msg   the list; read during the call only, with its arrays
/// @param flags as of gdrfab_readmsg()
/// @return 0, -EAGAIN (nothing was posted), -EINVAL, -E2BIG, -EMSGSIZE (a block), -GDRFAB_EBADFLAGS,
///   -ENOTCONN, -ESHUTDOWN
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_readlist(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_list, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the struct and its arrays live for the call.
    unsafe { post(ep, Dir::Read, msg, flags) }
}

/// Posts a write of many blocks as one operation: gdrfab_readlist() the other way. With GDRFAB_REMOTE_CQ_DATA
/// the peer's entry comes after the last byte; its len is that of the list over shm, and 0 elsewhere.
///
/// @param flags as of gdrfab_writemsg(), without GDRFAB_INJECT
/// @return as gdrfab_readlist()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_writelist(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_list, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the struct and its arrays live for the call.
    unsafe { post(ep, Dir::Write, msg, flags) }
}

/// Prepares a list for being posted many times: its blocks are read, checked and joined once.
///
/// @param msg  the list; context and data are those of each gdrfab_list_post()
/// @param list the handle, freed by gdrfab_list_close()
/// @return 0, -EINVAL, -E2BIG, -EMSGSIZE (a block)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_list_open(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_list, list: *mut *mut gdrfab_list) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(list, "list")?;
        let ep = shared(ep, "ep")?;
        let (list, common) = parse(&ep, msg)?;
        out.write(give(Prepared::new(ep, list, common)));
        Ok(())
    })
}

/// Posts a prepared list, which may be under way already.
///
/// @param flags GDRFAB_READ or GDRFAB_WRITE, and the flags of gdrfab_readlist() or gdrfab_writelist()
/// @param data  for the peer, with GDRFAB_REMOTE_CQ_DATA
/// @return as gdrfab_readlist()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_list_post(list: *mut gdrfab_list, flags: u64, data: u64, context: *mut c_void) -> ssize_t {
    // SAFETY: the C caller says that the handle is open.
    posting(|| unsafe {
        let list = object(list, "list")?;
        let dir = match flags & (GDRFAB_READ | GDRFAB_WRITE) {
            GDRFAB_READ => Dir::Read,
            GDRFAB_WRITE => Dir::Write,
            _ => return Err(Error::new(GDRFAB_EBADFLAGS, "flags: must contain GDRFAB_READ or GDRFAB_WRITE, and not both")),
        };
        let flags = flags & !(GDRFAB_READ | GDRFAB_WRITE);
        check_flags(dir, flags)?;
        list.post(dir, flags, data, context as usize)
    })
}

/// Closes a prepared list: 0 or -EINVAL. Posts of it that are under way go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_list_close(list: *mut gdrfab_list) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(list, "list")?;
        drop(reclaim(list));
        Ok(())
    })
}
