// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory under test. A kind knows how to get memory, how to register it, and how the CPU writes and
//! checks patterns in it; whoever adds a kind adds it here and nowhere else.

use crate::cli;
use crate::devmem::{How, Made};
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::{Domain, Mr};
use gdrfab::hmem::{self, Dir, Iface, Site};
use gdrfab::mr::{Access, PathPolicy};
use gdrfab::prov::op::Iov;
use gdrfab::prov::wish::{self, Source, Wish};
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
    /// Memory of a device.
    Device(Site, How),
}

/// Largest number of a device that is taken for meant.
const MAX_DEVICE: u32 = 4095;

impl Kind {
    pub const OF_HOST: [Kind; 3] = [Kind::Malloc, Kind::Alloc, Kind::Memfd];
    pub const EXPECTED: &str = "host, malloc, alloc, memfd, or a device such as cuda:0, rocr:0, ze:0, neuron:0, synapseai:0 \
        (of cuda also cuda:0,plain, pool, vmm, vmm2 or managed)";

    pub fn name(self) -> String {
        match self {
            Kind::Malloc => "malloc".into(),
            Kind::Alloc => "alloc".into(),
            Kind::Memfd => "memfd".into(),
            Kind::Device(site, How::Plain) if site.iface != Iface::Cuda => site.to_string(),
            Kind::Device(site, how) => format!("{site},{}", how.name()),
        }
    }

    pub fn parse(name: &str) -> Option<Kind> {
        if name == "host" {
            return Some(Kind::Alloc);
        }
        if let Some(host) = Kind::OF_HOST.into_iter().find(|k| k.name() == name) {
            return Some(host);
        }
        let (place, how) = name.split_once(',').unwrap_or((name, How::Plain.name()));
        let (vendor, number) = place.split_once(':').unwrap_or((place, "0"));
        let iface = Iface::ALL.into_iter().find(|i| *i != Iface::System && i.name() == vendor)?;
        let device = number.parse().ok()?;
        let how = How::ALL.into_iter().find(|h| h.name() == how)?;
        Kind::device(Site { iface, device }, how)
    }

    fn device(site: Site, how: How) -> Option<Kind> {
        let known = how == How::Plain || site.iface == Iface::Cuda;
        (known && site.device <= MAX_DEVICE && !site.is_host()).then_some(Kind::Device(site, how))
    }

    /// The number by which peers know it.
    pub fn code(self) -> u32 {
        let of = |position: Option<usize>| position.unwrap_or(0) as u32;
        match self {
            Kind::Device(site, how) => 3 | (site.iface as u32) << 8 | of(How::ALL.iter().position(|h| *h == how)) << 16 | site.device << 20,
            host => of(Kind::OF_HOST.iter().position(|k| *k == host)),
        }
    }

    pub fn from_code(code: u32) -> Option<Kind> {
        if code & 0xff != 3 {
            return Kind::OF_HOST.get(usize::try_from(code).ok()?).copied();
        }
        let iface = Iface::from_raw(code >> 8 & 0xff)?;
        let how = How::ALL.get((code >> 16 & 0xf) as usize)?;
        Kind::device(Site { iface, device: code >> 20 }, *how)
    }

    /// The device that the CPU needs for a look.
    pub fn site(self) -> Site {
        match self {
            Kind::Device(site, _) => site,
            _ => Site::HOST,
        }
    }

    pub fn is_device(self) -> bool {
        !self.site().is_host()
    }
}

enum Origin {
    Heap(Layout),
    Alloc(Arc<Domain>),
    File { fd: OwnedFd, _map: Mapping },
    Driver(Box<Made>),
    Gone,
}

/// Page-aligned memory of some kind, backed by pages.
pub struct Memory {
    addr: usize,
    len: usize,
    site: Site,
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

/// Bytes that are made, moved and compared at once; whole words.
const PIECE: usize = 1 << 20;

/// `len` bytes of the pattern `seed` from byte `at` on, which begins a word.
fn pattern(seed: u64, at: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (at / 8..(at + len).div_ceil(8)).flat_map(|k| word(seed, k).to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// The driver does not give access to the memory under test any more: no result can be trusted.
#[cold]
fn lost(e: &Error) -> ! {
    cli::complain(&format!("gdrfab-perf: reaching the memory under test: {e}"));
    std::process::exit(1)
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
            Kind::Device(site, how) if site.iface == Iface::Cuda && how != How::Vmm => {
                let made = Made::new(site.device, how, len).map_err(|e| e.context(format_args!("{} memory", kind.name())))?;
                (made.addr as usize, Origin::Driver(Box::new(made)))
            }
            Kind::Device(site, _) => (domain.allocate_on(site.iface, site.device, len)?, Origin::Alloc(domain.clone())),
        };
        // The interface is opened here, where its absence has somewhere to be reported.
        hmem::get(kind.site().iface)?;
        let memory = Memory { addr, len, site: kind.site(), origin };
        // Not every driver copies what it allocates, and that is better said here than in the middle of a run.
        memory.try_put(0, &[POISON][..len.min(1)]).map_err(|e| e.context(format_args!("{} memory", kind.name())))?;
        // Pages come with the first write; no measurement should pay for that.
        memory.set(0, len, POISON);
        Ok(memory)
    }

    /// Registers `[0, len)` for every kind of operation.
    pub fn register(&self, domain: &Arc<Domain>, len: usize, policy: PathPolicy) -> Result<Box<Mr>> {
        let iov = [self.iov(0, len)];
        let source = match &self.origin {
            Origin::File { fd, .. } => Source::File { fd: fd.as_fd(), offset: 0, len, base_addr: self.addr as u64 },
            _ => Source::Iov(&iov),
        };
        domain.register(&Wish {
            source,
            memory: if self.site.is_host() { wish::Memory::Host } else { wish::Memory::Device(self.site) },
            access: Access::all(),
            offset: 0,
            requested_key: 0,
            policy,
            event: false,
        })
    }

    /// A piece for an operation.
    #[inline]
    pub fn iov(&self, offset: usize, len: usize) -> Iov {
        debug_assert!(offset + len <= self.len);
        Iov { addr: self.addr + offset, len }
    }

    /// The address of `len` bytes at `offset`, which lie inside.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the memory under test");
        (self.addr + offset) as *mut u8
    }

    /// Looks at a byte of host memory that the peer may be writing; what it wrote before is visible after the new value.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        debug_assert!(self.site.is_host());
        // SAFETY: inside our memory, which lives as long as self; volatile because a peer writes it.
        let v = unsafe { self.at(offset, 1).read_volatile() };
        fence(Ordering::Acquire);
        v
    }

    /// Writes a byte of host memory.
    #[inline]
    pub fn store(&self, offset: usize, v: u8) {
        debug_assert!(self.site.is_host());
        // SAFETY: inside our memory; volatile because a peer may read it.
        unsafe { self.at(offset, 1).write_volatile(v) }
    }

    /// Puts bytes into memory of any kind.
    fn put(&self, offset: usize, bytes: &[u8]) {
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
        match len {
            0 => Ok(()),
            // SAFETY: the caller's promise.
            _ => unsafe { hmem::get(self.site.iface)?.copy(self.site.device, dir, to as u64, from as u64, len) },
        }
    }

    pub fn set(&self, offset: usize, len: usize, v: u8) {
        let piece = vec![v; len.min(PIECE)];
        (0..len).step_by(PIECE).for_each(|at| self.put(offset + at, &piece[..PIECE.min(len - at)]));
    }

    /// The bytes at `offset`, copied.
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
            Origin::Driver(made) => made.free()?,
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
    fn kinds_are_read_written_and_numbered_alike() {
        for name in
            ["malloc", "alloc", "memfd", "cuda:0,plain", "cuda:3,vmm2", "cuda:1,managed", "rocr:7", "ze:0", "neuron:15", "synapseai:2"]
        {
            let kind = Kind::parse(name).unwrap();
            assert_eq!((kind.name(), Kind::from_code(kind.code())), (name.to_string(), Some(kind)));
        }
        assert_eq!((Kind::parse("host"), Kind::parse("cuda")), (Some(Kind::Alloc), Kind::parse("cuda:0,plain")));
        for wrong in ["", "gpu:0", "cuda:x", "cuda:0,vmm3", "rocr:0,pool", "system:0", "ze:5000", "malloc:0"] {
            assert_eq!(Kind::parse(wrong), None, "{wrong}");
        }
        assert!([u32::MAX, 4, 3, 3 | 6 << 8, 3 | 1 << 8 | 5 << 16, 3 | 2 << 8 | 1 << 16].into_iter().all(|c| Kind::from_code(c).is_none()));
    }

    #[test]
    fn a_pattern_is_found_again_and_every_changed_byte_is_named() {
        let info = gdrfab::fabric::getinfo(None, None, 0, None).unwrap().remove(0);
        let fabric = gdrfab::fabric::Fabric::open(&info).unwrap();
        let domain = Domain::open(&fabric, &info).unwrap();
        for kind in Kind::OF_HOST {
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
