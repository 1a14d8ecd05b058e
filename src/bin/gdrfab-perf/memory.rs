// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory under test. A kind knows how to get memory, how to register it, and how the CPU writes and
//! checks patterns in it; whoever adds a kind adds it here and nowhere else.

use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::{Domain, Mr};
use gdrfab::mr::{Access, PathPolicy};
use gdrfab::prov::op::Iov;
use gdrfab::prov::shm::{Source, Wish};
use gdrfab::sys::mem::{Mapping, Protection, memfd};
use std::alloc::Layout;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Where the bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program's own heap: peers cannot map it.
    Malloc,
    /// `gdrfab_mem_alloc`: made to be mapped by peers.
    Alloc,
    /// A memfd of the program, registered by descriptor.
    Memfd,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Malloc, Kind::Alloc, Kind::Memfd];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Malloc => "malloc",
            Kind::Alloc => "alloc",
            Kind::Memfd => "memfd",
        }
    }

    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The number by which peers know it.
    pub fn code(self) -> u64 {
        Kind::ALL.iter().position(|k| *k == self).unwrap_or(0) as u64
    }

    pub fn from_code(code: u64) -> Option<Kind> {
        Kind::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

enum Origin {
    Heap(Layout),
    Alloc(Arc<Domain>),
    File { fd: OwnedFd, _map: Mapping },
    Gone,
}

/// Page-aligned memory of some kind, zeroed and backed by pages.
pub struct Memory {
    addr: usize,
    len: usize,
    origin: Origin,
}

/// The first byte that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub offset: usize,
    pub expected: u8,
    pub found: u8,
}

/// What lies where nothing was written.
pub const POISON: u8 = 0xA5;

/// The eight bytes at eight-byte step `k` of the pattern `seed`.
#[inline]
fn word(seed: u64, k: usize) -> u64 {
    let x = (seed ^ (k as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

impl Memory {
    pub fn new(kind: Kind, domain: &Arc<Domain>, len: usize) -> Result<Memory> {
        let page = gdrfab::sys::mem::page_size();
        let (addr, origin) = match kind {
            Kind::Malloc => {
                let layout = Layout::from_size_align(len.max(1), page)
                    .map_err(|_| Error::new(errno::ENOMEM, format!("{len} bytes of memory are too many")))?;
                // SAFETY: the layout's size is not 0.
                let addr = unsafe { std::alloc::alloc_zeroed(layout) };
                if addr.is_null() {
                    return Err(Error::new(errno::ENOMEM, format!("the heap has no {len} bytes")));
                }
                (addr as usize, Origin::Heap(layout))
            }
            Kind::Alloc => (domain.allocate(len)?, Origin::Alloc(domain.clone())),
            Kind::Memfd => {
                let bytes = len.next_multiple_of(page);
                let fd = memfd("gdrfab-perf", bytes)?;
                let map = Mapping::new(fd.as_fd(), 0, bytes, Protection::ReadWrite)?;
                (map.as_ptr() as usize, Origin::File { fd, _map: map })
            }
        };
        let memory = Memory { addr, len, origin };
        // Pages come with the first write; no measurement should pay for that.
        memory.set(0, len, POISON);
        Ok(memory)
    }

    /// Registers `[0, len)` for every kind of operation.
    pub fn register(&self, domain: &Arc<Domain>, len: usize) -> Result<Box<Mr>> {
        let iov = [self.iov(0, len)];
        let source = match &self.origin {
            Origin::File { fd, .. } => Source::File { fd: fd.as_fd(), offset: 0, len, base_addr: self.addr as u64 },
            _ => Source::Iov(&iov),
        };
        domain.register(&Wish { source, access: Access::all(), offset: 0, requested_key: 0, policy: PathPolicy::default(), event: false })
    }

    /// A piece for an operation.
    #[inline]
    pub fn iov(&self, offset: usize, len: usize) -> Iov {
        debug_assert!(offset + len <= self.len);
        Iov { addr: self.addr + offset, len }
    }

    /// A pointer to `len` bytes at `offset`, which lie inside.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the memory under test");
        (self.addr + offset) as *mut u8
    }

    /// Looks at a byte that the peer may be writing; what it wrote before is visible after the new value.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        // SAFETY: inside our memory, which lives as long as self; volatile because a peer writes it.
        let v = unsafe { self.at(offset, 1).read_volatile() };
        fence(Ordering::Acquire);
        v
    }

    #[inline]
    pub fn store(&self, offset: usize, v: u8) {
        // SAFETY: inside our memory; volatile because a peer may read it.
        unsafe { self.at(offset, 1).write_volatile(v) }
    }

    pub fn set(&self, offset: usize, len: usize, v: u8) {
        // SAFETY: inside our memory; the protocol between the two sides keeps the peer away meanwhile.
        unsafe { std::ptr::write_bytes(self.at(offset, len), v, len) }
    }

    /// The bytes at `offset`, copied.
    pub fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        // SAFETY: `at` checked the source, `bytes` holds `len`, and they are different allocations.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, len), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Writes the pattern of `seed`.
    pub fn fill(&self, offset: usize, len: usize, seed: u64) {
        let to = self.at(offset, len);
        for k in 0..len.div_ceil(8) {
            let bytes = word(seed, k).to_ne_bytes();
            // SAFETY: k * 8 < len, and no more than the rest of len is written.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(k * 8), 8.min(len - k * 8)) };
        }
    }

    /// Compares with the pattern of `seed`.
    pub fn check(&self, offset: usize, len: usize, seed: u64) -> Option<Mismatch> {
        let from = self.at(offset, len);
        for k in 0..len.div_ceil(8) {
            let (want, n) = (word(seed, k).to_ne_bytes(), 8.min(len - k * 8));
            let mut have = want;
            // SAFETY: k * 8 + n <= len.
            unsafe { std::ptr::copy_nonoverlapping(from.add(k * 8), have.as_mut_ptr(), n) };
            if have != want {
                let i = (0..n).find(|i| have[*i] != want[*i]).unwrap_or(0);
                return Some(Mismatch { offset: k * 8 + i, expected: want[i], found: have[i] });
            }
        }
        None
    }

    /// Checks that nobody wrote here since `set`.
    pub fn check_set(&self, offset: usize, len: usize, v: u8) -> Option<Mismatch> {
        let bytes = self.copy_out(offset, len);
        bytes.iter().position(|b| *b != v).map(|i| Mismatch { offset: i, expected: v, found: bytes[i] })
    }
}

impl Memory {
    /// Gives the memory back. Its regions must be closed.
    pub fn release(&mut self) -> Result<()> {
        self.len = 0;
        match std::mem::replace(&mut self.origin, Origin::Gone) {
            // SAFETY: allocated with this layout, and freed once, because the origin is gone now.
            Origin::Heap(layout) => unsafe { std::alloc::dealloc(self.addr as *mut u8, layout) },
            Origin::Alloc(domain) => domain.free(self.addr)?,
            Origin::File { .. } | Origin::Gone => {}
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Whoever wants to know how it went has called release.
        let _ = self.release();
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_pattern_is_found_again_and_every_changed_byte_is_named() {
        let info = gdrfab::fabric::getinfo(None, None, 0, None).unwrap().remove(0);
        let fabric = gdrfab::fabric::Fabric::open(&info).unwrap();
        let domain = Domain::open(&fabric, &info).unwrap();
        for kind in Kind::ALL {
            let m = Memory::new(kind, &domain, 10_000).unwrap();
            for len in [0, 1, 7, 8, 9, 4097] {
                m.set(0, m.len, POISON);
                m.fill(3, len, 42);
                assert_eq!((m.check(3, len, 42), m.check_set(3 + len, 64, POISON)), (None, None), "{kind:?} {len}");
                assert_eq!(m.check(3, len, 43).is_some(), len > 0);
                if len > 0 {
                    m.store(3 + len - 1, m.load(3 + len - 1) ^ 1);
                    assert_eq!(m.check(3, len, 42).map(|x| x.offset), Some(len - 1));
                }
            }
            m.register(&domain, 5000).unwrap().close().unwrap();
        }
    }
}
