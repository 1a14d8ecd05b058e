// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain. What a peer names is looked up here on every operation, and entered for as long as the
//! kernel or a driver touches its memory: closing shuts the door and waits for those inside.

use super::locate::{self, Located, Modes};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Site, dmabuf};
use crate::mr::key::{INDEX_BITS, desc_fits, desc_index, desc_of};
use crate::mr::piece::{self, walk};
use crate::mr::{Access, KeySource, Paths};
use crate::mr::{Attr, Facts, RegionId};
use crate::prov::fault;
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use crate::sys::mem::Mapping;
use crate::sys::usercopy::UserCopy;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub const MAX_REGIONS: usize = 1 << INDEX_BITS;
/// In a region's door: nobody enters any more.
const SHUT: u32 = 1 << 31;
/// In a key that the library chose, and in one of a device's memory: a peer's questions about paths are answered by it.
const OWN_KEY: u64 = 1 << 63;
const DEVICE_KEY: u64 = 1 << 62;

/// Whether a key names a device's memory; `None`: its owner chose it, and it says nothing.
pub fn names_device(key: u64) -> Option<bool> {
    (key & OWN_KEY != 0).then_some(key & DEVICE_KEY != 0)
}

/// A contiguous piece, where its bytes are reached, and the identity of its device allocation when it was registered
/// (0: none is known).
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub iov: Iov,
    pub at: usize,
    pub id: u64,
}

impl piece::Piece for Piece {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.iov.len
    }
}

/// A file that was mapped for the region.
pub struct File {
    pub fd: OwnedFd,
    pub _map: Mapping,
}

pub struct Region {
    key: u64,
    base: u64,
    len: u64,
    access: Access,
    located: Located,
    path: Paths,
    event: bool,
    counter: Mutex<Option<Arc<Counter>>>,
    user: Arc<UserCopy>,
    /// How many are inside, and [`SHUT`].
    door: AtomicU32,
}

/// Somebody touches the region's memory.
pub struct Inside(Arc<Region>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Region {
    pub fn site(&self) -> Site {
        self.located.site
    }

    pub fn is(&self, key: u64) -> bool {
        self.key == key && self.door.load(Ordering::Relaxed) & SHUT == 0
    }

    /// Checks an operation of a peer; gives the byte of the region where it begins.
    pub fn check(&self, addr: u64, len: u64, need: Access, permitted: Paths) -> std::result::Result<u64, Code> {
        let offset = addr.checked_sub(self.base).filter(|o| o.checked_add(len).is_some_and(|end| end <= self.len)).ok_or(Code::Bounds)?;
        match () {
            () if !self.access.contains(need) => Err(Code::Access),
            () if !permitted.contains(self.path) => Err(Code::Path),
            () => Ok(offset),
        }
    }

    /// Until `leave`, the memory stays. `Key`: the region is closed; `Fault`: its memory, or its device's, is another.
    #[inline]
    pub fn enter(&self) -> std::result::Result<(), Code> {
        // Acquire pairs with the close that waits for those inside; both orders are seen in one word.
        if self.door.fetch_add(1, Ordering::AcqRel) & SHUT != 0 {
            self.leave();
            return Err(Code::Key);
        }
        Ok(())
    }

    #[inline]
    pub fn leave(&self) {
        self.door.fetch_sub(1, Ordering::Release);
    }

    /// As `enter`, for as long as the result lives.
    pub fn hold(self: &Arc<Self>) -> std::result::Result<Inside, Code> {
        self.enter()?;
        Ok(Inside(self.clone()))
    }

    /// The contiguous parts of `len` bytes from byte `skip` on: where they are reached, and their lengths.
    #[inline]
    pub fn parts(&self, skip: u64, len: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        walk(&self.located.pieces, skip as usize, len as usize).map(|(piece, from, n)| (piece.at + from, n))
    }

    /// Copies `len` bytes from byte `skip` on behind `into`; the region is of host memory, and entered.
    #[inline]
    pub fn read(&self, skip: u64, len: u64, into: &mut Vec<u8>) -> Result<()> {
        for (addr, n) in self.parts(skip, len) {
            if self.located.own {
                // SAFETY: a mapping of ours, which lives as long as the region, of pages that stay.
                into.extend_from_slice(unsafe { std::slice::from_raw_parts(addr as *const u8, n) });
            } else {
                // SAFETY: registered for this by the C caller, and entered.
                unsafe { self.user.read(addr, n, into)? };
            }
        }
        Ok(())
    }

    /// Copies the bytes to byte `skip` on. As `read`; on failure some of them may be there.
    #[inline]
    pub fn write(&self, skip: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for (addr, n) in self.parts(skip, bytes.len() as u64) {
            let (now, later) = rest.split_at(n.min(rest.len()));
            rest = later;
            if self.located.own {
                // SAFETY: a mapping of ours, which lives as long as the region, of pages that stay; a region's parts
                // together are as long as what was asked for.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), addr as *mut u8, now.len()) };
            } else {
                // SAFETY: registered for this by the C caller, and entered.
                unsafe { self.user.write(now, addr)? };
            }
        }
        Ok(())
    }

    /// Whether the device allocations are still those that were registered.
    pub fn is_stale(&self) -> bool {
        !self.site().is_host() && self.located.pieces.iter().any(|p| is_stale(self.site(), p))
    }

    /// Whether its memory is a mapping of a caller's file.
    pub fn is_file(&self) -> bool {
        self.located.file.is_some()
    }

    /// Around accesses of the CPU to a dma-buf's mapping; nothing for other memory.
    pub fn begin_cpu(&self, write: bool) -> Result<()> {
        self.located.file.as_ref().map_or(Ok(()), |f| dmabuf::begin_cpu(f.fd.as_fd(), write))
    }

    pub fn end_cpu(&self, write: bool) -> Result<()> {
        self.located.file.as_ref().map_or(Ok(()), |f| dmabuf::end_cpu(f.fd.as_fd(), write))
    }

    /// A peer's write to the region ended.
    pub fn count_write(&self) {
        if self.event
            && let Some(counter) = &*self.counter.lock()
        {
            counter.add(1);
        }
    }
}

#[derive(Default)]
struct Slot {
    generation: u64,
    region: Option<Arc<Region>>,
}

pub struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Where callers choose the keys.
    by_key: HashMap<u64, u32>,
    keys: KeySource,
    open: usize,
    user: Arc<UserCopy>,
}

impl Regions {
    pub fn new(user: Arc<UserCopy>) -> Result<Regions> {
        Ok(Regions { slots: Vec::new(), free: Vec::new(), by_key: HashMap::new(), keys: KeySource::new()?, open: 0, user })
    }

    pub fn open_count(&self) -> usize {
        self.open
    }

    /// Registers; nothing is left behind on failure.
    pub fn register(&mut self, modes: Modes, attr: &Attr<'_>, refused: Paths, located: Located) -> Result<RegionId> {
        let base = match modes.virt_addr {
            true if attr.offset != 0 => return Err(Error::invalid("offset: must be 0 in a domain with GDRFAB_MR_VIRT_ADDR")),
            true => located.base,
            false => attr.offset,
        };
        if base.checked_add(located.len).is_none() {
            return Err(Error::invalid("offset: offset plus length overflows"));
        }
        let path = located.path();
        locate::check_path(path, modes.paths, &attr.policy)?;
        if refused.contains(path) {
            return Err(fault::refusal(path));
        }
        let device = !located.site.is_host();
        let (index, generation, key) = self.take_slot(modes, attr.requested_key, device)?;
        let region = Region {
            key,
            base,
            len: located.len,
            access: attr.access,
            path,
            located,
            event: attr.event,
            counter: Mutex::new(None),
            door: AtomicU32::new(0),
            user: self.user.clone(),
        };
        self.slots[index as usize] = Slot { generation, region: Some(Arc::new(region)) };
        self.open += 1;
        Ok(RegionId { index, generation, key, desc: desc_of(index, generation, device) })
    }

    fn take_slot(&mut self, modes: Modes, requested: u64, device: bool) -> Result<(u32, u64, u64)> {
        if !modes.prov_key && self.by_key.contains_key(&requested) {
            return Err(Error::new(errno::ENOKEY, format!("requested_key {requested:#x} already names a region of this domain")));
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < MAX_REGIONS => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => return Err(Error::new(errno::ENOSPC, format!("this domain already has {MAX_REGIONS} regions"))),
        };
        // The index in the low bits finds the region; 44 random bits keep the key unguessable.
        let drawn = (self.keys.draw() << INDEX_BITS) & !DEVICE_KEY | u64::from(index) | OWN_KEY;
        let generation = drawn | if device { DEVICE_KEY } else { 0 };
        if modes.prov_key {
            return Ok((index, generation, generation));
        }
        self.by_key.insert(requested, index);
        Ok((index, generation, requested))
    }

    fn region(&self, id: RegionId) -> Result<&Arc<Region>> {
        match self.slots.get(id.index as usize) {
            Some(Slot { generation, region: Some(region) }) if *generation == id.generation => Ok(region),
            _ => Err(Error::invalid("mr: this region is closed")),
        }
    }

    /// First step of closing: nobody enters from now on. Tells whether nobody is inside.
    pub fn shut(&mut self, id: RegionId) -> Result<bool> {
        let region = self.region(id)?.clone();
        region.door.fetch_or(SHUT, Ordering::AcqRel);
        self.by_key.retain(|_, index| *index != id.index);
        Ok(region.door.load(Ordering::Acquire) == SHUT)
    }

    /// Last step: the region's memory is nobody's concern any more.
    pub fn forget(&mut self, id: RegionId) {
        if self.region(id).is_ok() {
            self.slots[id.index as usize] = Slot::default();
            self.free.push(id.index);
            self.open -= 1;
        }
    }

    pub fn bind_counter(&mut self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        let region = self.region(id)?;
        if !region.event {
            return Err(Error::invalid("mr: the region was not registered with GDRFAB_RMA_EVENT, so writes to it are not counted"));
        }
        *region.counter.lock() = Some(counter);
        Ok(())
    }

    pub fn facts(&self, id: RegionId) -> Result<Facts> {
        let r = self.region(id)?;
        Ok(Facts {
            site: r.located.site,
            kind: r.located.kind,
            key: r.key,
            base: r.base,
            len: r.len,
            access: r.access,
            paths: r.path,
            iov_count: r.located.pieces.len() as u32,
        })
    }

    pub fn explain(&self, id: RegionId) -> Result<String> {
        let r = self.region(id)?;
        let (site, kind) = (r.located.site, r.located.kind.name());
        let why = match r.path {
            Paths::SOCKET => "socket: the kernel copies between this memory and the connection; no copy of ours\n  staged: not needed",
            _ => {
                "socket: impossible, the CPU does not reach device memory\n  staged: through pinned slots, the device's copies beside the wire"
            }
        };
        Ok(format!("region of {} bytes of {site} memory ({kind}), key {:#x}: {}\n  {why}\n", r.len, r.key, r.path.words()))
    }

    /// The region that a peer's key names.
    #[inline]
    pub fn find(&self, key: u64) -> Option<&Arc<Region>> {
        let index = match self.by_key.is_empty() {
            true => (key & ((1 << INDEX_BITS) - 1)) as u32,
            false => *self.by_key.get(&key)?,
        };
        self.slots.get(index as usize)?.region.as_ref().filter(|r| r.is(key))
    }

    /// Where the local pieces lie that an operation describes by `desc`: checked to be inside the region. Gives the pieces
    /// of device memory that they lie in, for the driver to be asked about without the lock.
    pub fn local_site(&self, desc: u64, local: &[Iov]) -> Result<(Site, Vec<(usize, Piece)>)> {
        let slot = self.slots.get(desc_index(desc) as usize).filter(|s| desc_fits(desc, s.generation));
        let region = slot.and_then(|s| s.region.as_ref()).filter(|r| r.door.load(Ordering::Relaxed) & SHUT == 0);
        let region = region.ok_or_else(|| Error::invalid("desc: names no open region of this domain"))?;
        let site = region.site();
        if site.is_host() {
            return Ok((site, Vec::new()));
        }
        let mut places = Vec::with_capacity(1);
        for (i, iov) in local.iter().enumerate() {
            let (mut at, end) = (iov.addr, iov.addr.saturating_add(iov.len));
            while at < end {
                let piece = region.located.pieces.iter().find(|p| at >= p.iov.addr && at - p.iov.addr < p.iov.len);
                let Some(piece) = piece else {
                    return Err(Error::invalid(format!("iov[{i}]: [{:#x}, +{}) lies outside the region of its desc", iov.addr, iov.len)));
                };
                places.push((i, *piece));
                at = piece.iov.addr + piece.iov.len;
            }
        }
        Ok((site, places))
    }

    /// Open regions that touch `[addr, addr+len)`.
    pub fn covering(&self, addr: u64, len: u64) -> usize {
        let end = addr.saturating_add(len);
        let touches = |p: &Piece| (p.iov.addr as u64) < end && (p.iov.addr + p.iov.len) as u64 > addr;
        self.slots.iter().filter_map(|s| s.region.as_ref()).filter(|r| r.located.pieces.iter().any(touches)).count()
    }
}

/// Whether the device allocation behind a piece is another one than when it was registered.
pub fn is_stale(site: Site, piece: &Piece) -> bool {
    piece.id != 0 && hmem::get(site.iface).map_or(true, |up| up.identity(piece.iov.addr as u64) != Some(piece.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::PathPolicy;
    use crate::mr::alloc::Allocations;
    use crate::mr::{Memory, Source};

    const MODES: Modes = Modes { virt_addr: true, prov_key: true, paths: Paths::SOCKET.union(Paths::STAGED) };

    fn attr<'a>(iov: &'a [Iov], key: u64) -> Attr<'a> {
        let access = Access::REMOTE_READ;
        Attr {
            source: Source::Iov(iov),
            memory: Memory::Host,
            access,
            offset: 0,
            requested_key: key,
            policy: PathPolicy::default(),
            event: false,
        }
    }

    fn register(regions: &mut Regions, modes: Modes, iov: &[Iov], key: u64) -> Result<RegionId> {
        let attr = attr(iov, key);
        regions.register(modes, &attr, Paths::empty(), locate::locate(&attr, &Allocations::default())?)
    }

    #[test]
    fn a_peer_gets_what_was_registered_and_no_more() {
        let mut regions = Regions::new(Arc::new(UserCopy::new().unwrap())).unwrap();
        let iov = [Iov { addr: 0x10000, len: 64 }, Iov { addr: 0x20000, len: 16 }];
        let id = register(&mut regions, MODES, &iov, 0).unwrap();
        let region = regions.find(id.key).unwrap().clone();
        let all = Paths::SOCKET;
        assert_eq!(region.check(0x10000, 80, Access::REMOTE_READ, all), Ok(0));
        assert_eq!(region.check(0x10001, 80, Access::REMOTE_READ, all), Err(Code::Bounds));
        assert_eq!(region.check(0xffff, 2, Access::REMOTE_READ, all), Err(Code::Bounds));
        assert_eq!(region.check(0x10000, u64::MAX, Access::REMOTE_READ, all), Err(Code::Bounds));
        assert_eq!(region.check(0x10000, 1, Access::REMOTE_WRITE, all), Err(Code::Access));
        assert_eq!(region.check(0x10000, 1, Access::REMOTE_READ, Paths::STAGED), Err(Code::Path));
        assert_eq!(region.parts(60, 8).collect::<Vec<_>>(), [(0x1003c, 4), (0x20000, 4)]);
        assert!(regions.find(id.key ^ 1 << 20).is_none() && regions.find(0).is_none());
    }

    #[test]
    fn closing_waits_for_those_inside() {
        let mut regions = Regions::new(Arc::new(UserCopy::new().unwrap())).unwrap();
        let iov = [Iov { addr: 0x10000, len: 64 }];
        let id = register(&mut regions, MODES, &iov, 0).unwrap();
        let region = regions.find(id.key).unwrap().clone();
        let inside = region.hold().ok().unwrap();
        assert!(!regions.shut(id).unwrap() && regions.find(id.key).is_none());
        assert_eq!((region.enter(), regions.shut(id).unwrap()), (Err(Code::Key), false));
        drop(inside);
        assert!(regions.shut(id).unwrap());
        regions.forget(id);
        assert!(regions.shut(id).is_err() && regions.open_count() == 0);
    }

    #[test]
    fn keys_of_the_callers_choice_are_its_own() {
        let mut regions = Regions::new(Arc::new(UserCopy::new().unwrap())).unwrap();
        let modes = Modes { prov_key: false, ..MODES };
        let iov = [Iov { addr: 0x10000, len: 64 }];
        let id = register(&mut regions, modes, &iov, 7).unwrap();
        assert_eq!(id.key, 7);
        assert!(register(&mut regions, modes, &iov, 7).is_err_and(|e| e.errno == errno::ENOKEY));
        assert!(regions.find(7).is_some() && regions.find(0).is_none());
        assert!(regions.shut(id).unwrap() && regions.find(7).is_none());
    }
}
