// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory under test: allocation and registration of each kind, and writing and checking patterns with the CPU.

use crate::cli;
use crate::devmem::{How, Made};
use crate::hostmem::{self, Huge};
use crate::kind::Given;
pub use crate::kind::Kind;
use crate::provider::VERBS;
use crate::runtime;
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::{self, Domain, Mr};
use gdrfab::hmem::{self, Dir, Iface, Site, dmabuf};
use gdrfab::mr::{self, Attr, Source};
use gdrfab::mr::{Access, PathPolicy, Paths};
use gdrfab::prov::op::Iov;
use gdrfab::sys::mem::{Mapping, Protection, memfd};
use std::alloc::Layout;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

enum Origin {
    Heap(Layout),
    Alloc(Arc<Domain>),
    /// A memfd or a dma-buf of host memory.
    File {
        fd: OwnedFd,
        _map: Mapping,
    },
    Huge {
        _pages: Huge,
    },
    Driver(Box<Made>),
    Gone,
}

/// Page-aligned memory of some kind, backed by pages.
pub struct Memory {
    addr: usize,
    len: usize,
    /// The device as this process knows it.
    site: Site,
    given: Given,
    origin: Origin,
    /// The rights of its region.
    pub access: Access,
}

/// The first byte that differs from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub offset: usize,
    pub expected: u8,
    pub found: u8,
}

/// The value of bytes that nothing has written.
pub const POISON: u8 = 0xA5;

/// The eight bytes at step `k` of the pattern `seed`; a step has eight bytes.
#[inline]
fn word(seed: u64, k: usize) -> u64 {
    let x = (seed ^ (k as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

/// The bytes that are generated, moved and compared at once; whole words.
const PIECE: usize = 1 << 20;

/// `len` bytes of the pattern `seed` from byte `at` on, which is the beginning of a word.
fn pattern(seed: u64, at: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (at / 8..(at + len).div_ceil(8)).flat_map(|k| word(seed, k).to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Ends the program: the driver no longer gives access to the memory under test, so no result can be trusted.
#[cold]
fn lost(e: &Error) -> ! {
    cli::complain(&format!("gdrfab-perf: reaching the memory under test: {e}"));
    std::process::exit(1)
}

impl Memory {
    pub fn new(kind: Kind, domain: &Arc<Domain>, len: usize) -> Result<Memory> {
        Memory::of(kind, domain, len).map_err(|e| e.context(format_args!("{} memory", kind.name())))
    }

    fn of(kind: Kind, domain: &Arc<Domain>, len: usize) -> Result<Memory> {
        let of_file = |fd: OwnedFd, map: Mapping| (map.as_ptr() as usize, Origin::File { fd, _map: map });
        let site = runtime::start(kind.site())?;
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
                of_file(fd, map)
            }
            Kind::Hugepages => {
                let pages = Huge::new(len)?;
                (pages.addr, Origin::Huge { _pages: pages })
            }
            Kind::Udmabuf | Kind::DmaHeap => {
                let buf = if kind == Kind::Udmabuf { hostmem::udmabuf(len)? } else { hostmem::dma_heap(len)? };
                of_file(buf.fd, buf.map)
            }
            Kind::Device(_, how, _) if site.iface == Iface::Cuda && how != How::Vmm => {
                let made = Made::new(site.device, how, len)?;
                (made.addr as usize, Origin::Driver(Box::new(made)))
            }
            Kind::Device(..) => (domain.allocate_on(site.iface, site.device, len)?, Origin::Alloc(domain.clone())),
        };
        // The interface is opened here, where a missing driver can be reported.
        hmem::get(site.iface)?;
        let given = if let Kind::Device(_, _, given) = kind { given } else { Given::Address };
        let memory = Memory { addr, len, site, given, origin, access: Access::all() - Access::ATOMIC };
        // Some drivers cannot copy the memory that they allocate. A trial copy finds that out here instead of in the middle
        // of a run.
        memory.try_put(0, &[POISON][..len.min(1)])?;
        // The first write allocates the pages, which no measurement should include.
        memory.set(0, len, POISON);
        Ok(memory)
    }

    /// Registers `[0, len)` for every kind of operation.
    pub fn register(&self, domain: &Arc<Domain>, len: usize, policy: PathPolicy) -> Result<Box<Mr>> {
        if self.given != Given::Address {
            return self.register_exported(domain, len, policy).map_err(|e| e.context("memory given as a dma-buf"));
        }
        let iov = [self.iov(0, len)];
        let source = match &self.origin {
            Origin::File { fd, .. } => Source::File { fd: fd.as_fd(), offset: 0, len, base_addr: self.addr as u64 },
            _ => Source::Iov(&iov),
        };
        domain.register(&self.attr(source, policy))
    }

    /// Registers by a dma-buf exported for this region, whose descriptor is closed afterwards, since the device keeps its own
    /// reference. There is no other way here, not even a slower one, so that the requested way is the measured one.
    fn register_exported(&self, domain: &Arc<Domain>, len: usize, policy: PathPolicy) -> Result<Box<Mr>> {
        if domain.provider() != VERBS {
            let words = format!("RDMA devices take those (provider {VERBS}); {} reaches the memory by its address", domain.provider());
            return Err(Error::new(errno::EOPNOTSUPP, words));
        }
        let require = if policy.require.is_empty() { Paths::DMABUF } else { policy.require & Paths::DMABUF };
        if require.is_empty() {
            return Err(Error::invalid(format!("--path {}: not with ,dmabuf or ,pcie", policy.require.words())));
        }
        let buf = fabric::hmem::export_dmabuf(self.addr as u64, len as u64, self.given == Given::Pcie)?;
        let base_addr = (self.addr as u64).checked_sub(buf.offset).ok_or_else(|| {
            Error::new(errno::EIO, format!("the driver says that the range begins at byte {} of the dma-buf", buf.offset))
        })?;
        let source = Source::File { fd: buf.fd.as_fd(), offset: buf.offset, len, base_addr };
        domain.register(&self.attr(source, PathPolicy { require, ..policy }))
    }

    fn attr<'a>(&self, source: Source<'a>, policy: PathPolicy) -> Attr<'a> {
        Attr {
            source,
            memory: if self.site.is_host() { mr::Memory::Host } else { mr::Memory::Device(self.site) },
            access: self.access,
            offset: 0,
            requested_key: 0,
            policy,
            rma_event: false,
        }
    }

    /// A part of the memory, as a piece of an operation.
    #[inline]
    pub fn iov(&self, offset: usize, len: usize) -> Iov {
        debug_assert!(offset + len <= self.len);
        // SAFETY: the range lies in this memory, which outlives its operations.
        unsafe { Iov::new(self.addr + offset, len) }
    }

    /// The address of `len` bytes at `offset`; they must lie inside.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the memory under test");
        (self.addr + offset) as *mut u8
    }

    /// Reads a byte of host memory that the peer may be writing. The peer's earlier writes are visible after the new value.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        debug_assert!(self.site.is_host());
        // SAFETY: the byte lies in this memory, which lives as long as self; volatile because a peer writes it.
        let v = unsafe { self.at(offset, 1).read_volatile() };
        fence(Ordering::Acquire);
        v
    }

    /// Writes a byte of host memory.
    #[inline]
    pub fn store(&self, offset: usize, v: u8) {
        debug_assert!(self.site.is_host());
        // SAFETY: the byte lies in this memory; volatile because a peer may read it.
        unsafe { self.at(offset, 1).write_volatile(v) }
    }

    /// Writes bytes into memory of any kind.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.try_put(offset, bytes).unwrap_or_else(|e| lost(&e));
    }

    fn try_put(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the target, the slice is the source; they do not overlap, and the protocol between the
        // two sides keeps the peer away meanwhile.
        unsafe { self.copy(Dir::ToDevice, to, bytes.as_ptr().cast_mut(), bytes.len()) }
    }

    /// # Safety
    /// Both ranges are valid for `len` bytes in their memories, and do not overlap.
    unsafe fn copy(&self, dir: Dir, to: *mut u8, from: *mut u8, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller says that both ranges hold `len` bytes in their memories.
        let copied = || unsafe { hmem::get(self.site.iface)?.copy(self.site.device, dir, to as u64, from as u64, len) };
        match &self.origin {
            // The exporter of a dma-buf is told before and after. Polling single bytes does without, since caches are
            // coherent on the machines where this runs.
            Origin::File { fd, .. } => {
                let writes = dir == Dir::ToDevice;
                dmabuf::begin_cpu(fd.as_fd(), writes)?;
                copied().and(dmabuf::end_cpu(fd.as_fd(), writes))
            }
            _ => copied(),
        }
    }

    pub fn set(&self, offset: usize, len: usize, v: u8) {
        let piece = vec![v; len.min(PIECE)];
        (0..len).step_by(PIECE).for_each(|at| self.put(offset + at, &piece[..PIECE.min(len - at)]));
    }

    /// A copy of the bytes at `offset`.
    pub fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        // SAFETY: `at` checked the source, `bytes` holds `len`, and they are different allocations.
        unsafe { self.copy(Dir::FromDevice, bytes.as_mut_ptr(), self.at(offset, len), len) }.unwrap_or_else(|e| lost(&e));
        bytes
    }

    /// Writes the pattern of `seed`.
    pub fn fill(&self, offset: usize, len: usize, seed: u64) {
        (0..len).step_by(PIECE).for_each(|at| self.put(offset + at, &pattern(seed, at, PIECE.min(len - at))));
    }

    /// Compares with the pattern of `seed`.
    pub fn check(&self, offset: usize, len: usize, seed: u64) -> Option<Mismatch> {
        (0..len).step_by(PIECE).find_map(|at| {
            let n = PIECE.min(len - at);
            let (have, want) = (self.copy_out(offset + at, n), pattern(seed, at, n));
            let wrong = (0..n).find(|i| have[*i] != want[*i])?;
            Some(Mismatch { offset: at + wrong, expected: want[wrong], found: have[wrong] })
        })
    }

    /// Checks that nothing was written here since `set`.
    pub fn check_set(&self, offset: usize, len: usize, v: u8) -> Option<Mismatch> {
        let bytes = self.copy_out(offset, len);
        bytes.iter().position(|b| *b != v).map(|i| Mismatch { offset: i, expected: v, found: bytes[i] })
    }
}

impl Memory {
    /// Frees the memory. Its regions must be closed.
    pub fn release(&mut self) -> Result<()> {
        self.len = 0;
        match std::mem::replace(&mut self.origin, Origin::Gone) {
            // SAFETY: the memory was allocated with this layout, and is freed once, since the origin is taken out.
            Origin::Heap(layout) => unsafe { std::alloc::dealloc(self.addr as *mut u8, layout) },
            Origin::Alloc(domain) => domain.free(self.addr)?,
            Origin::Driver(made) => made.free()?,
            Origin::File { .. } | Origin::Huge { .. } | Origin::Gone => {}
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A caller that wants the result calls `release`.
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
        let domain = Domain::open(&fabric, &info, None).unwrap();
        for kind in Kind::EVERYWHERE {
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
            m.register(&domain, 5000, PathPolicy::default()).unwrap().close().unwrap();
        }
    }
}
