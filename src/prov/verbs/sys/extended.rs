// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Extended verbs, whose function pointers lie before the context in memory.
//!
//! As in `verbs.h`, the structure grows at its beginning. Its size shows which functions an older library lacks.

use super::abi::{_compat_ibv_port_attr, ibv_context, ibv_device_attr_ex, ibv_port_attr, verbs_context};
use super::library::verbs;
use super::status::returned;
use crate::error::{Error, Result, errno};
use std::mem::{offset_of, zeroed};

/// A function of the extended context, if library and driver have it.
///
/// # Safety
/// `context` is an open device.
macro_rules! op {
    ($context:expr, $op:ident) => {{
        let context: *mut ibv_context = $context;
        // SAFETY: an extended context says so by this marker, and is then the end of a `verbs_context`; only as
        // many bytes before it are read as its `sz` vouches for.
        unsafe {
            if (*context).abi_compat as usize == usize::MAX {
                let extended = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
                let needed = size_of::<verbs_context>() - offset_of!(verbs_context, $op);
                if (&raw const (*extended).sz).read() >= needed { (&raw const (*extended).$op).read() } else { None }
            } else {
                None
            }
        }
    }};
}

/// The attributes of a port.
///
/// # Safety
/// `context` is an open device.
pub unsafe fn query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr> {
    // SAFETY: integers, for all of which zero is a valid value.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    let rc = match op!(context, query_port) {
        // SAFETY: the caller has the device open; the size is that of the structure.
        Some(query) => unsafe { query(context, port, &mut attr, size_of::<ibv_port_attr>()) },
        // The plain function fills an older, shorter structure, so the rest must be zero beforehand.
        // SAFETY: the device is open, and the older structure is the beginning of this one.
        None => unsafe { verbs()?.ibv_query_port(context, port, (&raw mut attr).cast::<_compat_ibv_port_attr>())? },
    };
    returned(rc, format_args!("querying port {port}"))?;
    Ok(attr)
}

/// The capabilities of the device beyond those in `ibv_device_attr`. A field that the driver does not know is zero.
///
/// # Safety
/// `context` is an open device.
pub unsafe fn query_device(context: *mut ibv_context) -> Result<ibv_device_attr_ex> {
    let Some(query) = op!(context, query_device_ex) else {
        return Err(Error::fixed(errno::EOPNOTSUPP, "the device's library has no query_device_ex"));
    };
    // SAFETY: integers, for all of which zero is a valid value.
    let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
    // SAFETY: the caller has the device open; the size is that of the structure.
    let rc = unsafe { query(context, std::ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>()) };
    returned(rc, "querying the device's extended attributes")?;
    Ok(attr)
}
