// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A region as all providers have it: its memory, names, rights, and the count of its users.

use super::attr::Attr;
use super::piece::{Span, Walk, walk};
use super::{Access, Facts, Iov, PathPolicy, Paths};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Allocation, MemoryKind, Site};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A contiguous piece of a region. `at` locates the bytes for the provider, in a form of its own.
#[derive(Clone, Copy, Debug)]
pub struct Piece<P> {
    pub iov: Iov,
    /// Identity of the device allocation at registration; 0 if it is not known.
    pub id: u64,
    pub at: P,
}

impl<P> Piece<P> {
    /// The part of `iov` that begins at address `start` and ends with the allocation `of`.
    pub fn within(iov: &Iov, start: u64, of: &Allocation, at: P) -> Piece<P> {
        Piece { iov: iov.part(start as usize - iov.addr(), (of.end() - start) as usize), id: of.id, at }
    }

    /// True if the device memory here was freed, or freed and allocated again, since it was registered.
    pub fn is_stale(&self, site: Site) -> bool {
        is_stale(site, self.iov.addr(), self.id)
    }
}

impl<P> Span for Piece<P> {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.iov.len()
    }
}

/// True if the allocation at `addr` is no longer the one that was registered with identity `id`.
pub fn is_stale(site: Site, addr: usize, id: u64) -> bool {
    id != 0 && hmem::get(site.iface).map_or(true, |up| up.identity(addr as u64) != Some(id))
}

/// The pieces of a region. Most regions have one.
#[derive(Debug)]
pub enum Pieces<P> {
    One(Piece<P>),
    Many(Box<[Piece<P>]>),
}

impl<P> Pieces<P> {
    /// Pieces without identities: host memory, or device memory whose allocations are not known.
    pub fn of(iovs: &[Iov], mut at: impl FnMut(&Iov) -> P) -> Pieces<P> {
        let mut piece = |iov: &Iov| Piece { iov: *iov, id: 0, at: at(iov) };
        match iovs {
            [one] => Pieces::One(piece(one)),
            many => Pieces::Many(many.iter().map(piece).collect()),
        }
    }

    /// Like `of`; `None` if the provider has no location for one of the pieces.
    pub fn try_of(iovs: &[Iov], mut at: impl FnMut(&Iov) -> Option<P>) -> Option<Pieces<P>> {
        let mut piece = |iov: &Iov| Some(Piece { iov: *iov, id: 0, at: at(iov)? });
        match iovs {
            [one] => piece(one).map(Pieces::One),
            many => many.iter().map(piece).collect::<Option<_>>().map(Pieces::Many),
        }
    }

    pub fn as_slice(&self) -> &[Piece<P>] {
        match self {
            Pieces::One(one) => std::slice::from_ref(one),
            Pieces::Many(list) => list,
        }
    }
}

impl<P> From<Vec<Piece<P>>> for Pieces<P> {
    fn from(mut list: Vec<Piece<P>>) -> Pieces<P> {
        match (list.pop(), list.is_empty()) {
            (Some(one), true) => Pieces::One(one),
            (last, _) => {
                list.extend(last);
                Pieces::Many(list.into())
            }
        }
    }
}

/// The memory of a region, after the library has checked the caller's statements about it.
#[derive(Debug)]
pub struct Location<P> {
    pub pieces: Pieces<P>,
    /// Address that peers use for the first byte, in domains with virtual addressing.
    pub base: u64,
    pub len: u64,
    pub site: Site,
    pub kind: MemoryKind,
}

/// The registration modes of a domain (`GDRFAB_MR_VIRT_ADDR`, `GDRFAB_MR_PROV_KEY`), and the paths that this process
/// permits.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    pub virt_addr: bool,
    pub prov_key: bool,
    pub paths: Paths,
}

impl Modes {
    /// The address that peers use for the first byte of `len` bytes; `natural` is the memory's own address.
    #[inline]
    pub fn base(&self, attr: &Attr<'_>, natural: u64, len: u64) -> Result<u64> {
        let base = match self.virt_addr {
            true if attr.offset != 0 => return Err(Error::invalid("offset: must be 0 in a domain with GDRFAB_MR_VIRT_ADDR")),
            true => natural,
            false => attr.offset,
        };
        match base.checked_add(len) {
            Some(_) => Ok(base),
            None => Err(Error::invalid("offset: offset plus length overflows")),
        }
    }
}

/// Counts the users of a region's memory. After `shut` nobody can enter. Count and flag share one atomic word.
#[derive(Debug, Default)]
pub struct RegionUsers(AtomicU32);

const SHUT: u32 = 1 << 31;

impl RegionUsers {
    /// Enters: the memory stays registered until `leave`. False: the region is closed.
    #[inline]
    pub fn enter(&self) -> bool {
        // Acquire pairs with the close, which waits for all users to leave.
        if self.0.fetch_add(1, Ordering::AcqRel) & SHUT != 0 {
            self.leave();
            return false;
        }
        true
    }

    #[inline]
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    pub fn shut(&self) {
        self.0.fetch_or(SHUT, Ordering::AcqRel);
    }

    #[inline]
    pub fn is_shut(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SHUT != 0
    }

    /// True if the region is open and has no user.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// True if the region has no user.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & !SHUT == 0
    }
}

/// A registered region. `own` is the provider's part.
#[derive(Debug)]
pub struct Region<P, O> {
    pub key: u64,
    /// Remote address of the first byte.
    pub base: u64,
    pub access: Access,
    /// Paths that the region offers to peers.
    pub paths: Paths,
    pub policy: PathPolicy,
    /// Peers that look the region up have to report their writes.
    pub rma_event: bool,
    pub location: Location<P>,
    pub users: RegionUsers,
    pub own: O,
}

impl<P, O> Region<P, O> {
    #[inline(always)] // in its place
    pub fn new(attr: &Attr<'_>, key: u64, base: u64, paths: Paths, location: Location<P>, own: O) -> Region<P, O> {
        let Attr { access, policy, rma_event, .. } = *attr;
        Region { key, base, access, paths, policy, rma_event, location, users: RegionUsers::default(), own }
    }

    pub fn site(&self) -> Site {
        self.location.site
    }

    pub fn pieces(&self) -> &[Piece<P>] {
        self.location.pieces.as_slice()
    }

    /// True if the region is open and `key` names it.
    #[inline]
    pub fn is(&self, key: u64) -> bool {
        self.key == key && !self.users.is_shut()
    }

    /// Checks that the range that a peer names lies in the region, and that the region grants the rights `need`.
    /// Returns the range's offset in the region.
    #[inline]
    pub fn range(&self, addr: u64, len: u64, need: Access) -> std::result::Result<u64, Code> {
        let within = |o: &u64| o.checked_add(len).is_some_and(|end| end <= self.location.len);
        let offset = addr.checked_sub(self.base).filter(within).ok_or(Code::Bounds)?;
        if self.access.contains(need) { Ok(offset) } else { Err(Code::Access) }
    }

    /// Enters: the memory stays registered until `leave`. Fails if the region is closed.
    #[inline]
    pub fn enter(&self) -> std::result::Result<(), Code> {
        if self.users.enter() { Ok(()) } else { Err(Code::Key) }
    }

    #[inline]
    pub fn leave(&self) {
        self.users.leave();
    }

    /// Like `enter`; dropping the result leaves.
    pub fn hold(self: &Arc<Self>) -> std::result::Result<RegionUse<P, O>, Code> {
        self.enter()?;
        Ok(RegionUse(self.clone()))
    }

    /// The pieces of `len` bytes from byte `skip` on.
    #[inline]
    pub fn walk(&self, skip: u64, len: usize) -> Walk<'_, Piece<P>> {
        walk(self.pieces(), skip as usize, len)
    }

    /// The pieces of the region that hold the local memory `iov`, each with the first byte and the length of its part;
    /// `None` where no piece holds it.
    pub fn find(&self, iov: Iov) -> impl Iterator<Item = Option<(&Piece<P>, usize, usize)>> {
        let (mut at, end) = (iov.addr(), iov.addr().saturating_add(iov.len()));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let Some(piece) = self.pieces().iter().find(|p| at >= p.iov.addr() && at - p.iov.addr() < p.iov.len()) else {
                at = end;
                return Some(None);
            };
            let from = at - piece.iov.addr();
            let n = (piece.iov.len() - from).min(end - at);
            at += n;
            Some(Some((piece, from, n)))
        })
    }

    /// True if a device allocation of the region was freed since it was registered.
    pub fn is_stale(&self) -> bool {
        !self.site().is_host() && self.pieces().iter().any(|p| p.is_stale(self.site()))
    }

    pub fn touches(&self, addr: u64, len: u64) -> bool {
        let end = addr.saturating_add(len);
        self.pieces().iter().any(|p| (p.iov.addr() as u64) < end && (p.iov.addr() + p.iov.len()) as u64 > addr)
    }

    pub fn facts(&self) -> Facts {
        Facts {
            site: self.location.site,
            kind: self.location.kind,
            key: self.key,
            base: self.base,
            len: self.location.len,
            access: self.access,
            paths: self.paths,
            iov_count: self.pieces().len() as u32,
        }
    }

    /// First words of a provider's explanation of the region's paths: the region's length, memory and key. `place` is
    /// empty or tells where else the region lies, for example on an RDMA device.
    pub fn headline(&self, place: &str) -> String {
        let Location { len, site, kind, .. } = &self.location;
        format!("region of {len} bytes of {site} memory ({}){place}, key {:#x}: ", kind.name(), self.key)
    }
}

/// A user of the region's memory, counted until dropped.
pub struct RegionUse<P, O>(Arc<Region<P, O>>);

impl<P, O> Deref for RegionUse<P, O> {
    type Target = Region<P, O>;

    fn deref(&self) -> &Region<P, O> {
        &self.0
    }
}

impl<P, O> Drop for RegionUse<P, O> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The local memory of an operation: its site and, for device memory, the identities with which the driver checks that
/// the memory is still allocated.
pub struct Local {
    pub site: Site,
    /// For each part: the index of its iovec, and the address and the identity at registration of the piece in which
    /// the part lies.
    parts: Vec<(usize, usize, u64)>,
    /// Length of each part, if this describes a whole region; empty otherwise.
    lens: Vec<usize>,
}

impl Local {
    /// The local memory `local` of an operation. Fails if it lies outside the region.
    pub fn of<P, O>(region: &Region<P, O>, local: &[Iov]) -> Result<Local> {
        let site = region.site();
        let mut parts = Vec::new();
        if !site.is_host() {
            for (i, iov) in local.iter().enumerate() {
                for part in region.find(*iov) {
                    let Some((piece, ..)) = part else {
                        let words = format!("iov[{i}]: [{:#x}, +{}) lies outside the region of its desc", iov.addr(), iov.len());
                        return Err(Error::invalid(words));
                    };
                    parts.push((i, piece.iov.addr(), piece.id));
                }
            }
        }
        Ok(Local { site, parts, lens: Vec::new() })
    }

    /// All of a region, for checks of many operands against it.
    pub fn whole<P, O>(region: &Region<P, O>) -> Local {
        let parts = region.pieces().iter().enumerate().map(|(i, p)| (i, p.iov.addr(), p.id)).collect();
        Local { site: region.site(), parts, lens: region.pieces().iter().map(|p| p.iov.len()).collect() }
    }

    /// Address and length of each piece of a whole region.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.parts.iter().map(|(_, addr, _)| *addr).zip(self.lens.iter().copied())
    }

    /// True if a range lies in the region. Only for the result of `whole`. The range may go on from one piece into the
    /// next.
    #[inline]
    pub fn holds(&self, mut addr: usize, mut len: usize) -> bool {
        'parts: while len > 0 {
            for (at, n) in self.pieces() {
                if addr >= at && addr - at < n {
                    let run = len.min(n - (addr - at));
                    (addr, len) = (addr + run, len - run);
                    continue 'parts;
                }
            }
            return false;
        }
        true
    }

    /// Asks the driver whether the allocations are still those that were registered. Call without holding any lock.
    pub fn check(&self) -> Result<Site> {
        match self.parts.iter().find(|(_, addr, id)| is_stale(self.site, *addr, *id)) {
            None => Ok(self.site),
            Some((i, addr, _)) => {
                let words = format!("iov[{i}]: the {} memory at {addr:#x} was freed after it was registered", self.site);
                Err(Error::coded(errno::EFAULT, Code::Fault, words))
            }
        }
    }
}
