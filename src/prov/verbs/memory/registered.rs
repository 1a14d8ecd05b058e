// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that a domain has registered with its device: the caller's regions, and host buffers of the library.
//! Unused buffers are kept for later operations.

use super::mr::Regions;
use crate::error::{Error, Result, errno};
use crate::prov::verbs::device::context::Transport;
use crate::prov::verbs::device::object::{Pd, RawMr};
use crate::prov::verbs::sys::abi::ibv_access_flags;
use crate::sync::serial::Serial;
use crate::sys::mem::{self, Mapping, Protection};
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Most bytes of unused buffers that a domain keeps.
const KEPT: usize = 64 << 20;
pub(in crate::prov::verbs) const LOCAL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
/// The largest single buffer.
const LARGEST: usize = 1 << 30;

/// A buffer of the library, registered with a device.
pub struct Buffer {
    map: Mapping,
    mr: RawMr,
}

/// Buffers that no operation uses.
#[derive(Default)]
struct Pool {
    free: Vec<Buffer>,
    bytes: usize,
}

impl Buffer {
    pub fn address(&self) -> usize {
        self.map.as_ptr() as usize
    }

    pub fn lkey(&self) -> u32 {
        self.mr.keys().0
    }

    pub fn rkey(&self) -> u32 {
        self.mr.keys().1
    }

    pub(in crate::prov::verbs) fn new(pd: &Arc<Pd>, len: usize, access: u32) -> Result<Buffer> {
        if len > LARGEST {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {len} bytes; a staged transfer moves at most {LARGEST} at once")));
        }
        let len = mem::page_round(len.max(1)).ok_or_else(|| Error::invalid("len: overflows"))?.next_power_of_two();
        let file = mem::memfd("gdrfab-bounce", len)?;
        let map = Mapping::new(file.as_fd(), 0, len, Protection::ReadWrite)?;
        let addr = map.as_ptr() as usize;
        // SAFETY: the mapping outlives the registration: `Buffer` closes the registration before its fields are dropped.
        let mr = unsafe { RawMr::host(pd, addr, len, addr as u64, access)? };
        Ok(Buffer { map, mr })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The registration ends before the mapping goes.
        if let Err(e) = self.mr.close() {
            crate::log!(Warn, "{e}");
        }
    }
}

pub struct Registered {
    pub pd: Arc<Pd>,
    pub regions: Serial<Regions>,
    pool: Mutex<Pool>,
}

impl Registered {
    pub fn new(pd: Arc<Pd>, regions: Serial<Regions>) -> Registered {
        Registered { pd, regions, pool: Mutex::default() }
    }

    /// A buffer of at least `len` bytes: an unused one, or a new one.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        {
            let mut pool = self.pool.lock();
            let fits = |b: &&Buffer| b.map.len() >= len;
            let best = pool.free.iter().enumerate().filter(|(_, b)| fits(b)).min_by_key(|(_, b)| b.map.len()).map(|(i, _)| i);
            if let Some(i) = best {
                let found = pool.free.swap_remove(i);
                pool.bytes -= found.map.len();
                return Ok(found);
            }
        }
        Buffer::new(&self.pd, len, self.filled())
    }

    /// The access bits of memory into which the device writes. Over iWARP the answer to a read is a write by the peer.
    pub fn filled(&self) -> u32 {
        let is_sink = self.pd.context.transport == Transport::Iwarp;
        LOCAL | if is_sink { ibv_access_flags::IBV_ACCESS_REMOTE_WRITE } else { 0 }
    }

    /// A new buffer that the peer may write and read. The buffer is never used for anything else.
    pub fn shared_buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.pd, len, LOCAL | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ)
    }

    /// Takes back a buffer, to keep it for later operations or to free it.
    pub(in crate::prov::verbs) fn give_back(&self, buffer: Buffer) {
        let mut pool = self.pool.lock();
        let len = buffer.map.len();
        if pool.bytes + len <= KEPT {
            pool.bytes += len;
            pool.free.push(buffer);
            return;
        }
        drop(pool);
        drop(buffer);
    }
}
