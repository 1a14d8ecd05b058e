// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes of an operation in a bounce buffer: registered host memory between the device and memory that it does not
//! reach.

use super::mr;
use super::mr::Staged;
use super::registered::{Buffer, Registered};
use crate::error::Result;
use crate::hmem::Site;
use crate::prov::op::Iov;
use crate::prov::verbs::device::object::RawMr;
use crate::prov::verbs::sys::abi::ibv_sge;
use std::sync::{Arc, Weak};

/// The caller's side of a bounced operation.
enum CallerPiece {
    Host(Site, Iov),
    Staged(Arc<Staged>, Iov),
}

/// A buffer in use, and whose bytes it carries. It returns to where it came from when dropped.
pub struct Bounce {
    buffer: Option<Buffer>,
    len: usize,
    places: Vec<CallerPiece>,
    home: Weak<Registered>,
    /// Registered for the operation.
    _mrs: Vec<RawMr>,
}

/// A bounce for `local`, filled with its bytes if it is what goes out.
pub fn take(memory: &Arc<Registered>, local: &[Iov], descs: &[u64], total: usize, fill: bool) -> Result<Box<Bounce>> {
    let mut places = Vec::with_capacity(local.len());
    {
        let regions = memory.regions.lock();
        for (i, v) in local.iter().enumerate().filter(|(_, v)| !v.is_empty()) {
            let desc = descs.get(i).copied().unwrap_or(0);
            let staged = if mr::is_looked_up(desc) { regions.staged(desc)? } else { None };
            places.push(match staged {
                Some(staged) => CallerPiece::Staged(staged, *v),
                None => CallerPiece::Host(regions.site_of(desc), *v),
            });
        }
    }
    let bounce = Bounce { buffer: Some(memory.buffer(total)?), len: total, places, home: Arc::downgrade(memory), _mrs: Vec::new() };
    if fill {
        bounce.gather()?;
    }
    Ok(Box::new(bounce))
}

/// Registers those of the pieces that have no registration of the caller's for the time of an operation; `written`: by the
/// device. `pieces` are the device's, of which each gets its key.
pub fn registered(
    memory: &Registered,
    written: bool,
    named: impl Iterator<Item = (bool, Iov)>,
    pieces: &mut [ibv_sge],
) -> Result<Box<Bounce>> {
    let access = if written { memory.filled() } else { 0 };
    let mut mrs = Vec::new();
    for ((_, iov), piece) in named.zip(pieces).filter(|((is_named, _), _)| !is_named) {
        // SAFETY: who posts the operation keeps its pieces until it has ended, and this with it.
        let mr = unsafe { RawMr::host(&memory.pd, iov.addr(), iov.len(), iov.addr() as u64, access)? };
        piece.lkey = mr.keys().0;
        mrs.push(mr);
    }
    Ok(Box::new(Bounce { buffer: None, len: 0, places: Vec::new(), home: Weak::new(), _mrs: mrs }))
}

impl Bounce {
    /// What the device is given.
    pub fn piece(&self) -> ibv_sge {
        match &self.buffer {
            Some(b) => ibv_sge { addr: b.address() as u64, length: self.len as u32, lkey: b.lkey() },
            None => ibv_sge { addr: 0, length: 0, lkey: 0 },
        }
    }

    fn bytes(&self) -> *mut u8 {
        self.buffer.as_ref().map_or(std::ptr::null_mut(), |b| b.address() as *mut u8)
    }

    /// The caller's bytes into the buffer.
    fn gather(&self) -> Result<()> {
        let mut at = 0;
        for place in &self.places {
            // SAFETY: the buffer holds `len` bytes, the sum of the places; the device has no work on it yet. Who
            // posted the operation promised the C API that its pieces are readable.
            unsafe {
                match place {
                    CallerPiece::Host(site, v) => site.load(self.bytes().add(at), v.addr() as u64, v.len())?,
                    CallerPiece::Staged(s, v) => {
                        s.backing.load(v.addr() as u64, std::slice::from_raw_parts_mut(self.bytes().add(at), v.len()))?
                    }
                }
                at += match place {
                    CallerPiece::Host(_, v) | CallerPiece::Staged(_, v) => v.len(),
                };
            }
        }
        Ok(())
    }

    /// The first `len` bytes of the buffer to the caller's places.
    pub fn scatter(&self, len: usize) -> Result<()> {
        let (mut at, mut left) = (0, len.min(self.len));
        for place in &self.places {
            let (CallerPiece::Host(_, v) | CallerPiece::Staged(_, v)) = place;
            let n = v.len().min(left);
            // SAFETY: the buffer holds `len` bytes, and the device has finished with it; who posted keeps the host's side.
            unsafe {
                match place {
                    CallerPiece::Host(site, v) => site.store(v.addr() as u64, self.bytes().add(at), n)?,
                    CallerPiece::Staged(s, v) => s.backing.store(v.addr() as u64, std::slice::from_raw_parts(self.bytes().add(at), n))?,
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
            home.give_back(buffer);
        }
    }
}
