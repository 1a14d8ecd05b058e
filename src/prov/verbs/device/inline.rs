// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The number of bytes that can travel inside a work request. No attribute of a device gives this number, so a queue
//! pair is made and its granted size is read.

use super::context::Context;
use crate::error::Result;
use crate::prov::verbs::limits::INLINE_MAX;
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::library::verbs;
use crate::prov::verbs::sys::status::pointer;
use parking_lot::Mutex;
use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};

impl Context {
    /// Bytes that can travel inside a work request, at most `asked`.
    pub fn inline(&self, asked: usize) -> usize {
        // The results by name and GUID, so that a device that is opened again need not be probed again.
        static KNOWN: Mutex<Vec<(String, u64, usize)>> = Mutex::new(Vec::new());
        let probe = || {
            let mut known = KNOWN.lock();
            if let Some((.., known)) = known.iter().find(|(name, guid, _)| *name == self.name && *guid == self.guid) {
                return *known;
            }
            let found = probe_inline(self).unwrap_or(0);
            if found > 0 {
                known.push((self.name.clone(), self.guid, found));
            }
            found
        };
        asked.min(*self.inline.get_or_init(probe))
    }
}

/// The largest inline size, up to [`INLINE_MAX`], with which the device makes a queue pair.
fn probe_inline(context: &Context) -> Result<usize> {
    let v = verbs()?;
    // SAFETY: the context is open; each object is destroyed below, in reverse order.
    unsafe {
        let pd = pointer(v.ibv_alloc_pd(context.raw())?, "allocating a protection domain")?;
        let cq = pointer(v.ibv_create_cq(context.raw(), 1, null_mut(), null_mut(), 0)?, "creating a completion queue");
        let mut most = 0;
        if let Ok(cq) = cq {
            let mut asked = INLINE_MAX as u32;
            while asked > 0 {
                let mut attr: ibv_qp_init_attr = zeroed();
                (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq.as_ptr(), cq.as_ptr(), ibv_qp_type::IBV_QPT_RC);
                attr.cap = ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: asked };
                if let Some(qp) = NonNull::new(v.ibv_create_qp(pd.as_ptr(), &mut attr)?) {
                    most = (attr.cap.max_inline_data as usize).min(INLINE_MAX);
                    v.ibv_destroy_qp(qp.as_ptr())?;
                    break;
                }
                asked = if asked > 64 { asked / 2 } else { asked.saturating_sub(16) };
            }
            v.ibv_destroy_cq(cq.as_ptr())?;
        }
        v.ibv_dealloc_pd(pd.as_ptr())?;
        Ok(most)
    }
}
