// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Address vectors.

use super::boundary::{
    ExtensibleStruct, bytes, control, counted, failed, give, hold, null, object, output, read_sized, reclaim, release, shared, text,
};
use super::boundary::{no_flags, write_name, write_text};
use super::objects::{gdrfab_av, gdrfab_domain, gdrfab_ep, no_attr_flags};
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::{self, Name};
use libc::{c_char, c_int, c_void, ssize_t};

// == Address vectors ==

/// Attributes of an address vector (mirrors fi_av_attr).
#[repr(C)]
pub struct gdrfab_av_attr {
    /// sizeof(gdrfab_av_attr)
    pub struct_size: usize,
    /// A hint: names that will be inserted. Address vectors grow.
    pub count: usize,
    /// 0
    pub flags: u64,
}

// SAFETY: repr(C), size first, integers only.
unsafe impl ExtensibleStruct for gdrfab_av_attr {
    const FIRST: usize = 24;
}

/// Opens an address vector, freed by gdrfab_av_close(). Its fi_addr values are always indexes, as those of
/// FI_AV_TABLE. Mirrors fi_av_open.
///
/// @param attr attributes, or NULL
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_open(
    domain: *mut gdrfab_domain,
    attr: *const gdrfab_av_attr,
    context: *mut c_void,
    av: *mut *mut gdrfab_av,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(av, "av")?;
        let domain = shared(domain, "domain")?;
        if !attr.is_null() {
            let a = read_sized(attr, "attr")?;
            no_attr_flags(a.flags)?;
        }
        let opened = fabric::Av::open(&domain)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes an address vector: 0, -EBUSY (endpoints are bound to it), -EINVAL, -EPERM. Mirrors fi_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_close(av: *mut gdrfab_av) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(av, "av")?.close()?;
        drop(reclaim(av));
        Ok(())
    })
}

/// The context of gdrfab_av_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_context(av: *mut gdrfab_av) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(av, "av") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// Binds an address vector, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
///
/// @param ep    endpoint of ep_type GDRFAB_EP_RDM
/// @param av    address vector of the same domain; it may serve many endpoints
/// @return 0, -EINVAL (also: another domain, or a connected endpoint), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (one
///   is bound already), -GDRFAB_EOPBADSTATE (enabled)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_av(ep: *mut gdrfab_ep, av: *mut gdrfab_av, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_av(&shared(av, "av")?, flags) })
}

/// Adds names, each with the next index, or with the one removed last. No connection is made, and the peer
/// need not exist. A name may be added several times; its messages then count as those of the lowest index.
/// Mirrors fi_av_insert.
///
/// @param addr    `count` names, GDRFAB_NAME_LEN bytes each, one behind the other, without alignment
/// @param fi_addr gets the index of each, GDRFAB_ADDR_NOTAVAIL of one that is refused; may be NULL
/// @param flags   0 or GDRFAB_MORE, which changes nothing; nor does context
/// @return number of names that were added, in the order of addr; if it is less than count,
///   gdrfab_last_error() tells of the first name that was refused (cut off, of another version, not from
///   gdrfab_ep_getname(), beyond 2^32 names, or no memory for it). Or -EINVAL, -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_insert(
    av: *mut gdrfab_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> ssize_t {
    let _ = context;
    // SAFETY: the C caller says that the handle is open and the arrays as long as count says.
    counted(|| unsafe {
        let av = object(av, "av")?;
        check_flags(flags)?;
        let len =
            count.checked_mul(GDRFAB_NAME_LEN).ok_or_else(|| Error::invalid(format!("count: {count} names exceed the address space")))?;
        let names = bytes(addr, len, "addr")?;
        let fi_addr = indexes(fi_addr)?;
        let (mut added, mut refused) = (0, None);
        for (i, name) in names.chunks_exact(GDRFAB_NAME_LEN).enumerate() {
            let index = av.insert(name).inspect(|_| added += 1).unwrap_or_else(|e| {
                refused.get_or_insert((i, e));
                GDRFAB_ADDR_NOTAVAIL
            });
            if !fi_addr.is_null() {
                fi_addr.add(i).write(index);
            }
        }
        if let Some((i, e)) = refused {
            failed(&e.context(format!("addr[{i}]")));
        }
        Ok(added)
    })
}

/// Adds the endpoint that listens at a port of a host, known by that alone: messages go to the endpoint that
/// listens there when the index is first used. May ask the DNS, and wait for it. Mirrors fi_av_insertsvc.
///
/// @param node    host name or IP address; NULL: 127.0.0.1, or service has it
/// @param service port; or with node NULL "rdm://IP:PORT", as gdrfab_av_straddr() writes it
/// @param fi_addr gets the index; may be NULL
/// @param flags   0 or GDRFAB_MORE, which changes nothing; nor does context
/// @return 1, or -EINVAL (also: not the address of one host), -GDRFAB_EBADFLAGS, -EADDRNOTAVAIL (no such
///   host), -ENOSPC (2^32 names)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_insertsvc(
    av: *mut gdrfab_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> ssize_t {
    let _ = context;
    // SAFETY: the C caller says that the handle is open and that the strings end.
    counted(|| unsafe {
        let av = object(av, "av")?;
        check_flags(flags)?;
        let fi_addr = indexes(fi_addr)?;
        let index = av.insert_service(text(node, "node")?, text(service, "service")?.ok_or_else(|| null("service"))?)?;
        if !fi_addr.is_null() {
            fi_addr.write(index);
        }
        Ok(1)
    })
}

fn check_flags(flags: u64) -> Result<()> {
    no_flags(flags & !GDRFAB_MORE)
}

fn indexes(fi_addr: *mut u64) -> Result<*mut u64> {
    if fi_addr.is_aligned() { Ok(fi_addr) } else { Err(null("fi_addr")) }
}

/// Removes peers; their indexes go to the next ones inserted, the last removed first. Operations posted to
/// them go on, and operations posted later to the index never reach them. Mirrors fi_av_remove.
///
/// @return 0, -EINVAL (also: one names no peer; those in front of it are out), -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_remove(av: *mut gdrfab_av, fi_addr: *const u64, count: usize, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open and the array as long as count says.
    release(|| unsafe {
        let av = object(av, "av")?;
        no_flags(flags)?;
        if count > 0 && fi_addr.is_null() || !fi_addr.is_aligned() {
            return Err(null("fi_addr"));
        }
        (0..count).try_for_each(|i| av.remove(fi_addr.add(i).read()))
    })
}

/// Gives the name that an index stands for. Mirrors fi_av_lookup.
///
/// @param addr    gets the name, whole or not at all
/// @param addrlen in: bytes of addr; out: GDRFAB_NAME_LEN
/// @return 0, -GDRFAB_ETOOSMALL, -EINVAL (also: the index names no peer)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_lookup(av: *mut gdrfab_av, fi_addr: u64, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let av = object(av, "av")?;
        output(addrlen, "addrlen")?;
        write_name(addr, addrlen, &av.lookup(fi_addr)?)
    })
}

/// Describes a name in words: "rdm://192.0.2.1:7000", and the endpoint's own number, if the name has it.
/// Mirrors fi_av_straddr.
///
/// @param addr a name, GDRFAB_NAME_LEN bytes
/// @param buf  gets the text; GDRFAB_ADDR_MAX bytes suffice
/// @return length of the text, or -EINVAL (also: no name)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_av_straddr(av: *mut gdrfab_av, addr: *const c_void, buf: *mut c_char, len: usize) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, the name readable and the buffer writable.
    counted(|| unsafe {
        object(av, "av")?;
        write_text(buf, len, &Name::decode(bytes(addr, GDRFAB_NAME_LEN, "addr")?)?.to_string())
    })
}
