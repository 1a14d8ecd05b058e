// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounce buffers: registered host memory that stands between the device and memory that the device does not reach.

use super::mr::{self, Staged};
use super::registered::{Buffer, Registered};
use crate::error::Result;
use crate::hmem::Site;
use crate::prov::op::Iov;
use crate::prov::verbs::device::object::RawMr;
use crate::prov::verbs::sys::abi::ibv_sge;
use std::sync::{Arc, Weak};

/// A piece of the caller's memory in an operation that uses a bounce buffer.
enum CallerPiece {
    Host(Site, Iov),
    Staged(Arc<Staged>, Iov),
}

/// A buffer in use, with the pieces whose bytes it carries. When the `Bounce` is dropped, the buffer returns to the
/// unused buffers of the domain.
pub struct Bounce {
    buffer: Option<Buffer>,
    len: usize,
    places: Vec<CallerPiece>,
    home: Weak<Registered>,
    /// Registrations for this operation only.
    _mrs: Vec<RawMr>,
}

/// A bounce buffer for the pieces in `local`. `fill`: the bytes of the pieces are copied into the buffer, for an
/// operation that sends them.
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

/// Registers the unregistered pieces for the duration of one operation, and sets their keys in `pieces`. `written`: the
/// device writes to the pieces. `named` gives each piece, and true for a piece that has a descriptor.
pub fn registered(
    memory: &Registered,
    written: bool,
    named: impl Iterator<Item = (bool, Iov)>,
    pieces: &mut [ibv_sge],
) -> Result<Box<Bounce>> {
    let access = if written { memory.filled() } else { 0 };
    let mut mrs = Vec::new();
    for ((_, iov), piece) in named.zip(pieces).filter(|((is_named, _), _)| !is_named) {
        // SAFETY: the caller that posts the operation keeps its pieces until it has ended, and the registration ends with the operation.
        let mr = unsafe { RawMr::host(&memory.pd, iov.addr(), iov.len(), iov.addr() as u64, access)? };
        piece.lkey = mr.keys().0;
        mrs.push(mr);
    }
    Ok(Box::new(Bounce { buffer: None, len: 0, places: Vec::new(), home: Weak::new(), _mrs: mrs }))
}

impl Bounce {
    /// The scatter/gather entry of the buffer.
    pub fn piece(&self) -> ibv_sge {
        match &self.buffer {
            Some(b) => ibv_sge { addr: b.address() as u64, length: self.len as u32, lkey: b.lkey() },
            None => ibv_sge { addr: 0, length: 0, lkey: 0 },
        }
    }

    fn bytes(&self) -> *mut u8 {
        self.buffer.as_ref().map_or(std::ptr::null_mut(), |b| b.address() as *mut u8)
    }

    /// Copies the caller's bytes into the buffer.
    fn gather(&self) -> Result<()> {
        let mut at = 0;
        for place in &self.places {
            // SAFETY: the buffer has `len` bytes, the sum of the pieces, and the device has no work on it yet. The caller of the C API
            // promises that the pieces are readable.
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

    /// Copies the first `len` bytes of the buffer to the caller's pieces.
    pub fn scatter(&self, len: usize) -> Result<()> {
        let (mut at, mut left) = (0, len.min(self.len));
        for place in &self.places {
            let (CallerPiece::Host(_, v) | CallerPiece::Staged(_, v)) = place;
            let n = v.len().min(left);
            // SAFETY: the buffer has `len` bytes, and the device has finished with it; the caller that posted the operation keeps its
            // pieces.
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
