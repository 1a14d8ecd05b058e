// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registered host memory between the device and memory that it does not reach. A domain keeps what was used for
//! the next operation.

use super::abi::{ibv_access_flags, ibv_sge};
use super::domain::Domain;
use super::mr::{self, Staged};
use super::object::RawMr;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::prov::op::Iov;
use crate::sys::mem::{self, Mapping, Protection};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

/// Bytes that a domain keeps for reuse.
const KEPT: usize = 64 << 20;
const LOCAL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
/// The largest single one.
const LARGEST: usize = 1 << 30;

/// A registered buffer.
pub struct Buffer {
    map: Mapping,
    mr: RawMr,
}

/// Buffers that no operation uses.
#[derive(Default)]
pub struct Pool {
    free: Vec<Buffer>,
    bytes: usize,
}

/// The caller's side of a bounced operation.
enum Place {
    Host(Site, Iov),
    Staged(Arc<Staged>, Iov),
}

/// A buffer in use, and whose bytes it carries. It returns to its domain when dropped.
pub struct Bounce {
    buffer: Option<Buffer>,
    len: usize,
    places: Vec<Place>,
    home: Weak<Domain>,
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

    fn new(domain: &Domain, len: usize, access: u32) -> Result<Buffer> {
        if len > LARGEST {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {len} bytes; what is staged moves at most {LARGEST} at once")));
        }
        let len = mem::page_round(len.max(1)).ok_or_else(|| Error::invalid("len: overflows"))?.next_power_of_two();
        let file = mem::memfd("gdrfab-bounce", len)?;
        let map = Mapping::new(file.as_fd(), 0, len, Protection::ReadWrite)?;
        let addr = map.as_ptr() as usize;
        // SAFETY: the mapping is undone after the region: `Buffer` closes it before its fields are dropped.
        let mr = unsafe { RawMr::host(&domain.pd, addr, len, addr as u64, access)? };
        Ok(Buffer { map, mr })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Before the mapping goes.
        if let Err(e) = self.mr.close() {
            crate::log!(Warn, "{e}");
        }
    }
}

/// A buffer of `len` bytes from the domain's stock.
pub fn buffer(domain: &Domain, len: usize) -> Result<Buffer> {
    {
        let mut pool = domain.pool.lock();
        let fits = |b: &&Buffer| b.map.len() >= len;
        let best = pool.free.iter().enumerate().filter(|(_, b)| fits(b)).min_by_key(|(_, b)| b.map.len()).map(|(i, _)| i);
        if let Some(i) = best {
            let found = pool.free.swap_remove(i);
            pool.bytes -= found.map.len();
            return Ok(found);
        }
    }
    Buffer::new(domain, len, LOCAL)
}

/// A buffer that the peer may write and read too; it is nobody else's afterwards.
pub fn shared_buffer(domain: &Domain, len: usize) -> Result<Buffer> {
    Buffer::new(domain, len, LOCAL | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ)
}

fn give_back(domain: &Domain, buffer: Buffer) {
    let mut pool = domain.pool.lock();
    let len = buffer.map.len();
    if pool.bytes + len <= KEPT {
        pool.bytes += len;
        pool.free.push(buffer);
        return;
    }
    drop(pool);
    drop(buffer);
}

/// A bounce for `local`, filled with its bytes if it is what goes out.
pub fn take(domain: &Domain, local: &[Iov], descs: &[u64], total: usize, fill: bool) -> Result<Box<Bounce>> {
    let mut places = Vec::with_capacity(local.len());
    {
        let regions = domain.regions.lock();
        for (i, v) in local.iter().enumerate().filter(|(_, v)| v.len > 0) {
            let desc = descs.get(i).copied().unwrap_or(0);
            let staged = if mr::is_looked_up(desc) { regions.staged(desc)? } else { None };
            places.push(match staged {
                Some(staged) => Place::Staged(staged, *v),
                None => Place::Host(regions.site_of(desc), *v),
            });
        }
    }
    let bounce = Bounce { buffer: Some(buffer(domain, total)?), len: total, places, home: domain.me.clone() };
    if fill {
        bounce.gather()?;
    }
    Ok(Box::new(bounce))
}

impl Bounce {
    /// What the device is given.
    pub fn piece(&self) -> ibv_sge {
        match &self.buffer {
            Some(b) => ibv_sge { addr: b.map.as_ptr() as u64, length: self.len as u32, lkey: b.mr.keys().0 },
            None => ibv_sge { addr: 0, length: 0, lkey: 0 },
        }
    }

    fn bytes(&self) -> *mut u8 {
        self.buffer.as_ref().map_or(std::ptr::null_mut(), |b| b.map.as_ptr())
    }

    /// The caller's bytes into the buffer.
    fn gather(&self) -> Result<()> {
        let mut at = 0;
        for place in &self.places {
            // SAFETY: the buffer holds `len` bytes, the sum of the places; the device has no work on it yet. The host
            // side is the C caller's promise.
            unsafe {
                match place {
                    Place::Host(site, v) => site.load(self.bytes().add(at), v.addr as u64, v.len)?,
                    Place::Staged(s, v) => s.backing.load(v.addr as u64, std::slice::from_raw_parts_mut(self.bytes().add(at), v.len))?,
                }
                at += match place {
                    Place::Host(_, v) | Place::Staged(_, v) => v.len,
                };
            }
        }
        Ok(())
    }

    /// The first `len` bytes of the buffer to the caller's places.
    pub fn scatter(&self, len: usize) -> Result<()> {
        let (mut at, mut left) = (0, len.min(self.len));
        for place in &self.places {
            let (Place::Host(_, v) | Place::Staged(_, v)) = place;
            let n = v.len.min(left);
            // SAFETY: as in `gather`; the device has finished with the buffer.
            unsafe {
                match place {
                    Place::Host(site, v) => site.store(v.addr as u64, self.bytes().add(at), n)?,
                    Place::Staged(s, v) => s.backing.store(v.addr as u64, std::slice::from_raw_parts(self.bytes().add(at), n))?,
                }
            }
            (at, left) = (at + n, left - n);
        }
        Ok(())
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if let (Some(buffer), Some(home)) = (self.buffer.take(), self.home.upgrade()) {
            give_back(&home, buffer);
        }
    }
}
