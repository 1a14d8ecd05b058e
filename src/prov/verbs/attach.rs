// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registering memory with the device. Device memory is tried in this order: dma-buf through the PCIe mapping, dma-buf,
//! peer memory, and at last staging. Each way is tried for this memory on this device, and the reason of each refusal
//! is recorded.

use super::domain::Domain;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::{self, Interface, MemoryKind, Site};
use crate::mr::region::{Location, Pieces};
use crate::mr::{Access, Attr, Iov, Memory, Paths, Source, file, location};
use crate::prov::info::permitted;
use crate::prov::verbs::device::context::Context;
use crate::prov::verbs::device::object::{Pd, RawMr};
use crate::prov::verbs::limits::PATHS;
use crate::prov::verbs::memory::backing::Backing;
use crate::prov::verbs::memory::mr::{Attached, RailRegistration};
use crate::prov::verbs::memory::steps::{PINNED, RegistrationRecord, RegistrationSteps};
use crate::prov::verbs::state::rail_port::RailPort;
use crate::prov::verbs::sys::abi::ibv_access_flags as flag;
use crate::sys::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Checks that a region can be staged. Peers reach a staged region only where the domain has service queue pairs.
fn may_stage(domain: &Domain, access: Access) -> Result<()> {
    match domain.service_cq().filter(|_| !domain.is_of_lanes()) {
        _ if access.contains(Access::ATOMIC) => Err(Error::fixed(
            errno::EOPNOTSUPP,
            "access: GDRFAB_ATOMIC: the RDMA device cannot access this memory, so it cannot execute atomics there",
        )),
        None if access.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE) => {
            Err(Error::fixed(errno::EOPNOTSUPP, "access: peers cannot reach staged memory over iWARP or from connectionless endpoints"))
        }
        _ => Ok(()),
    }
}

/// The access bits for the device.
fn device_access(domain: &Domain, access: Access) -> u32 {
    let relaxed = if config::get().verbs.relaxed_ordering { flag::IBV_ACCESS_RELAXED_ORDERING } else { 0 };
    rights(access, domain.is_iwarp(), domain.is_of_lanes()) | relaxed
}

fn rights(access: Access, iwarp: bool, lanes: bool) -> u32 {
    let mut bits = 0;
    let local = Access::READ | Access::RECV | Access::REMOTE_WRITE | Access::ATOMIC;
    if access.intersects(local) {
        bits |= flag::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_READ) {
        bits |= flag::IBV_ACCESS_REMOTE_READ;
    }
    if access.contains(Access::ATOMIC) {
        bits |= flag::IBV_ACCESS_REMOTE_ATOMIC;
    }
    // Over iWARP the answer to a read is a write by the peer. A lane reads long messages into its receives, so the
    // receives need the same right.
    let sink = iwarp && access.intersects(if lanes { Access::READ | Access::RECV } else { Access::READ });
    if access.contains(Access::REMOTE_WRITE) || sink {
        bits |= flag::IBV_ACCESS_REMOTE_WRITE;
    }
    bits
}

/// Registers memory with the device of the domain, and by the same path with the devices of its further rails. A rail
/// whose device refuses carries nothing of the region.
pub fn attach(domain: &Domain, attr: &Attr<'_>) -> Result<Attached> {
    let allowed = permitted(PATHS) & attr.policy.allowed();
    let refused = domain.faults.as_ref().map_or(Ok(Paths::empty()), |plan| plan.register())?;
    let mut attached = attach_to(domain, &domain.memory.pd, attr, RegistrationSteps::new(allowed, refused))?;
    // A key names one registration, so only a region with a single registration can go over the further rails.
    if let ([_], Some(further)) = (attached.mrs.as_slice(), domain.rail_ports.get(1..)) {
        let of_rail = |card: &Arc<RailPort>| {
            // Atomics of two cards are not atomic with each other.
            let attr = &Attr { access: attr.access - Access::ATOMIC, ..*attr };
            let there = attach_to(domain, &card.pd, attr, RegistrationSteps::new(attached.path, Paths::empty()));
            (card.name.clone(), there.map(|there| RailRegistration { mrs: there.mrs, local: there.local, _backing: there.backing }))
        };
        attached.rails = further.iter().map(of_rail).collect();
    }
    Ok(attached)
}

fn attach_to(domain: &Domain, pd: &Arc<Pd>, attr: &Attr<'_>, mut steps: RegistrationSteps) -> Result<Attached> {
    match &attr.source {
        Source::File { fd, offset, len, base_addr } => attach_file(domain, pd, attr, &mut steps, *fd, *offset, *len, *base_addr),
        Source::Iov(iovs) => attach_ranges(domain, pd, attr, &mut steps, iovs),
    }
}

/// A shortcut of `attach` for one range of host memory without conditions, which the caller has checked. `None`: the
/// range is not registered, and the caller uses `attach`.
pub fn attach_plain(domain: &Domain, iov: Iov, access: Access) -> Option<Attached> {
    let allowed = permitted(PATHS).contains(PINNED.path) && domain.faults.is_none();
    let len = iov.len() as u64;
    if !allowed
        || !domain.rail_ports.is_empty()
        || !domain.virt_addr
        || domain.on_demand
        || crate::prov::verbs::memory::populate::may_pay_off(iov.len())
        || check_limits(domain.context(), len).is_err()
    {
        return None;
    }
    let base = iov.addr() as u64;
    // SAFETY: the caller of the C API keeps the range mapped until the region is closed; the kernel checks it.
    let mr = unsafe { RawMr::host(&domain.memory.pd, iov.addr(), iov.len(), base, device_access(domain, access)) }.ok()?;
    let location = location_of(&[iov], len, Site::HOST, MemoryKind::Host);
    let (path, record) = (PINNED.path, RegistrationRecord::of(PINNED));
    Some(Attached { location, base, peer_base: base, mrs: vec![mr], local: None, backing: None, path, record, rails: Vec::new() })
}

fn location_of(iovs: &[Iov], len: u64, site: Site, kind: MemoryKind) -> Location<()> {
    Location { pieces: Pieces::of(iovs, |_| ()), base: iovs.first().map_or(0, |v| v.addr() as u64), len, site, kind }
}

fn check_limits(context: &Context, len: u64) -> Result<()> {
    let most = context.attr.max_mr_size;
    if most != 0 && len > most {
        return Err(Error::new(
            errno::EMSGSIZE,
            format!("len: {len} bytes, but {} registers at most {most} at once; use several regions", context.name),
        ));
    }
    Ok(())
}

fn attach_ranges(domain: &Domain, pd: &Arc<Pd>, attr: &Attr<'_>, steps: &mut RegistrationSteps, iovs: &[Iov]) -> Result<Attached> {
    let mut sum = 0u64;
    for (i, iov) in iovs.iter().enumerate() {
        location::check_range(iov, i)?;
        sum = sum.checked_add(iov.len() as u64).ok_or_else(|| Error::invalid("iov: the lengths sum to more than 64 bits"))?;
        check_limits(&pd.context, iov.len() as u64)?;
    }
    // A lane tells its peers that no path leads to a region of several ranges. A card's atomics have no other path, so
    // they refuse such a region.
    if iovs.len() > 1 && attr.access.is_remote() && (!domain.is_of_lanes() || attr.access.contains(Access::ATOMIC)) {
        return Err(Error::new(
            errno::EOPNOTSUPP,
            format!("iov_count: {}; a verbs key names one range, so a region of several must not have remote access rights", iovs.len()),
        ));
    }
    let first = iovs.first().copied().unwrap_or_default();
    let base = if domain.virt_addr { first.addr() as u64 } else { attr.offset };
    if domain.virt_addr && attr.offset != 0 {
        return Err(Error::invalid("offset: must be 0 in a domain with GDRFAB_MR_VIRT_ADDR"));
    }
    let page = mem::page_size() as u64 - 1;
    if (base ^ first.addr() as u64) & page != 0 || (!domain.virt_addr && iovs.len() > 1) {
        return Err(Error::invalid(format!(
            "offset: {base:#x} and the address {:#x} differ within a page, which RDMA devices cannot map; without GDRFAB_MR_VIRT_ADDR they must agree",
            first.addr()
        )));
    }
    if base.checked_add(sum).is_none() {
        return Err(Error::invalid("offset: offset plus length overflows"));
    }
    let site = location::site_of(attr.memory, first.addr() as u64)?;
    let plan = RangePlan { domain, pd, access: attr.access, iovs, base, len: sum };
    match site {
        Some(site) => plan.device(steps, site),
        None => plan.host(steps, MemoryKind::Host),
    }
}

/// The registrations of the ranges; and a second one under this process's address for local operations, if the first
/// one has another address on the device.
type Registrations = (Vec<RawMr>, Option<RawMr>);

struct RangePlan<'a> {
    domain: &'a Domain,
    pd: &'a Arc<Pd>,
    access: Access,
    iovs: &'a [Iov],
    base: u64,
    len: u64,
}

impl RangePlan<'_> {
    fn attached(&self, steps: &mut RegistrationSteps, (mrs, local): Registrations, path: Paths, site: Site, kind: MemoryKind) -> Attached {
        let record = std::mem::take(&mut steps.record);
        let backing = mrs.is_empty().then(|| Backing::memory(site, self.iovs, self.base));
        Attached {
            location: location_of(self.iovs, self.len, site, kind),
            base: self.base,
            peer_base: self.base,
            mrs,
            local,
            backing,
            path,
            record,
            rails: Vec::new(),
        }
    }

    /// The device's address of `iov`, which the operations of peers use.
    fn named(&self, iov: &Iov) -> u64 {
        if self.domain.virt_addr { iov.addr() as u64 } else { self.base }
    }

    /// Registers each range with `how`, which takes the range and the address that the range has on the device.
    fn each(&self, how: impl Fn(&Iov, u64) -> Result<RawMr>) -> Result<Registrations> {
        let mrs = self.iovs.iter().map(|iov| how(iov, self.named(iov))).collect::<Result<Vec<_>>>()?;
        let used_here = self.access.intersects(Access::SEND | Access::RECV | Access::READ | Access::WRITE);
        let local = match self.iovs {
            [iov] if used_here && self.named(iov) != iov.addr() as u64 => Some(how(iov, iov.addr() as u64)?),
            _ => None,
        };
        Ok((mrs, local))
    }

    fn pinned(&self, extra: u32) -> Result<Registrations> {
        let access = device_access(self.domain, self.access) | extra;
        self.each(|iov, iova| {
            // SAFETY: the caller of the C API keeps the range mapped until the region is closed; the kernel checks it.
            unsafe { RawMr::host(self.pd, iov.addr(), iov.len(), iova, access) }
        })
    }

    fn host(&self, steps: &mut RegistrationSteps, kind: MemoryKind) -> Result<Attached> {
        if self.domain.on_demand
            && !self.access.contains(Access::ATOMIC)
            && let Some(pieces) = steps.attempt(Paths::NIC, "host pages on demand (ibv_reg_mr)", || self.pinned(flag::IBV_ACCESS_ON_DEMAND))
        {
            return Ok(self.attached(steps, pieces, Paths::NIC, Site::HOST, kind));
        }
        crate::prov::verbs::memory::populate::populate(self.iovs, self.access, config::get().debug.reg_threads);
        if let Some(pieces) = steps.attempt(PINNED.path, PINNED.what, || self.pinned(0)) {
            return Ok(self.attached(steps, pieces, Paths::NIC, Site::HOST, kind));
        }
        // A device that refuses host memory lacks a resource. Staging would hide the shortage, so host memory is staged
        // only if the path nic is not allowed.
        if !steps.allowed.contains(Paths::NIC)
            && steps.attempt(Paths::STAGED, "staged through buffers of the library", || may_stage(self.domain, self.access)).is_some()
        {
            return Ok(self.attached(steps, (Vec::new(), None), Paths::STAGED, Site::HOST, kind));
        }
        Err(steps.exhausted())
    }

    fn device(&self, steps: &mut RegistrationSteps, site: Site) -> Result<Attached> {
        let up = hmem::get(site.iface).map_err(|e| e.context("attr->iface"))?;
        let kind = location::each_allocation(up, site, self.iovs, |_, _, _| {})?;
        if kind == MemoryKind::Pinned {
            return self.host(steps, kind);
        }
        for (pcie, what) in [(true, "dma-buf with the PCIe mapping"), (false, "dma-buf")] {
            if let Some(pieces) = steps.attempt(Paths::DMABUF, what, || self.each(|iov, iova| self.exported(up, iov, iova, pcie))) {
                return Ok(self.attached(steps, pieces, Paths::DMABUF, site, kind));
            }
        }
        if let Some(pieces) = steps.attempt(Paths::PEER_MEM, "peer memory (ibv_reg_mr)", || self.pinned(0)) {
            return Ok(self.attached(steps, pieces, Paths::PEER_MEM, site, kind));
        }
        if steps.attempt(Paths::STAGED, "staged through buffers of the library", || may_stage(self.domain, self.access)).is_some() {
            return Ok(self.attached(steps, (Vec::new(), None), Paths::STAGED, site, kind));
        }
        Err(steps.exhausted())
    }

    /// Registers one range of device memory by its driver's dma-buf, and closes the descriptor again.
    fn exported(&self, up: &dyn Interface, iov: &Iov, iova: u64, pcie: bool) -> Result<RawMr> {
        self.pd.context.dmabuf()?;
        let buf = up.export_dmabuf(iov.addr() as u64, iov.len() as u64, pcie)?;
        check_congruent(iova, buf.offset)?;
        RawMr::dmabuf(self.pd, buf.fd.as_fd(), buf.offset, iov.len(), iova, device_access(self.domain, self.access))
    }
}

fn check_congruent(iova: u64, offset: u64) -> Result<()> {
    if (iova ^ offset) & (mem::page_size() as u64 - 1) != 0 {
        return Err(Error::invalid(format!(
            "the address {iova:#x} and the offset {offset:#x} in the dma-buf differ within a page, which RDMA devices cannot map"
        )));
    }
    Ok(())
}

/// Checks that the file holds `[offset, end)`. True: the file is a dma-buf.
fn check_file(fd: BorrowedFd<'_>, offset: u64, end: u64) -> Result<bool> {
    let size = file::size_of(fd)?;
    match end <= size {
        true => Ok(mem::is_dmabuf(fd)),
        false => Err(Error::invalid(format!("dmabuf->offset {offset} + len {} lie beyond the file's {size} bytes", end - offset))),
    }
}

/// Registers a descriptor of the caller: a dma-buf, or another file that can be mapped.
#[allow(clippy::too_many_arguments)]
fn attach_file(
    domain: &Domain,
    pd: &Arc<Pd>,
    attr: &Attr<'_>,
    steps: &mut RegistrationSteps,
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    base_addr: u64,
) -> Result<Attached> {
    if len == 0 {
        return Err(Error::invalid("dmabuf->len: 0, must be at least 1"));
    }
    check_limits(&pd.context, len as u64)?;
    let end = offset.checked_add(len as u64).ok_or_else(|| Error::invalid("dmabuf->offset + len overflows"))?;
    let base = base_addr.checked_add(offset).ok_or_else(|| Error::invalid("dmabuf->base_addr + offset overflows"))?;
    let base = if domain.virt_addr { base } else { attr.offset };
    if base.checked_add(len as u64).is_none() {
        return Err(Error::invalid("dmabuf->base_addr + offset + len overflows"));
    }
    check_congruent(base, offset).map_err(|e| e.context(if domain.virt_addr { "dmabuf->base_addr" } else { "offset" }))?;
    // Local operations name the bytes by base_addr, whatever address peers use.
    let own = base_addr + offset;
    let used_here = attr.access.intersects(Access::SEND | Access::RECV | Access::READ | Access::WRITE);
    let twice = |how: &dyn Fn(u64) -> Result<RawMr>| -> Result<Registrations> {
        let local = if used_here && own != base { Some(how(own)?) } else { None };
        Ok((vec![how(base)?], local))
    };
    let done = |steps: &mut RegistrationSteps, (mrs, local): Registrations, backing, path, site| {
        let record = std::mem::take(&mut steps.record);
        // SAFETY: only the device takes this address, which names bytes of the file; no code follows it.
        let named = unsafe { Iov::new(own as usize, len) };
        let location = location_of(&[named], len as u64, site, MemoryKind::Host);
        Ok(Attached { location, base, peer_base: base, mrs, local, backing, path, record, rails: Vec::new() })
    };
    let access = device_access(domain, attr.access);
    let site = match attr.memory {
        Memory::Device(site) => site,
        _ => Site::HOST,
    };
    // The kernel checks, too, whether the descriptor is a dma-buf and how large it is. A check here would cost
    // noticeable time for a small file, so the check is made only to explain a refusal.
    let by_fd = || {
        pd.context.dmabuf()?;
        twice(&|iova| RawMr::dmabuf(pd, fd, offset, len, iova, access))
    };
    let tried = steps.permits(Paths::DMABUF).then(by_fd);
    let is_dmabuf = match &tried {
        Some(Ok(_)) => true,
        _ => check_file(fd, offset, end)?,
    };
    let outcome = || tried.unwrap_or(Err(Error::fixed(errno::EACCES, "not permitted")));
    if is_dmabuf && let Some(pieces) = steps.attempt(Paths::DMABUF, "dma-buf", outcome) {
        return done(steps, pieces, None, Paths::DMABUF, site);
    }
    // A file that can be mapped can be pinned, unless its mapping has no pages of its own.
    let backing = Backing::file(fd, offset, len, attr.access.is_written(), base);
    let path = if is_dmabuf { Paths::PEER_MEM } else { Paths::NIC };
    let mapped = || {
        let backing = backing.as_ref().map_err(Clone::clone)?;
        // SAFETY: the mapping stays as long as the region, which keeps the backing.
        twice(&|iova| unsafe { RawMr::host(pd, backing.address(), len, iova, access) })
    };
    if let Some(pieces) = steps.attempt(path, "the file's mapping pinned (ibv_reg_mr)", mapped) {
        return done(steps, pieces, backing.ok(), path, site);
    }
    match steps.attempt(Paths::STAGED, "staged through buffers of the library", || may_stage(domain, attr.access).and(backing)) {
        Some(backing) => done(steps, (Vec::new(), None), Some(backing), Paths::STAGED, site),
        None => Err(steps.exhausted()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_iwarp_a_read_needs_more_rights_than_elsewhere() {
        let written = |access, iwarp, lanes| rights(access, iwarp, lanes) & flag::IBV_ACCESS_REMOTE_WRITE != 0;
        assert!(written(Access::READ, true, false) && !written(Access::READ, false, true));
        assert!(written(Access::RECV, true, true), "a long message is read");
        assert!(!written(Access::RECV, true, false) && !written(Access::SEND | Access::WRITE, true, true));
    }
}
