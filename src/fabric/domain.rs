// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Domains, regions, and the memory that a domain allocates.

use super::drive::EpRef;
use super::info::{EP_RDM, Info, PROGRESS_AUTO, THREAD_DOMAIN};
use super::origin::OpenedNames;
use super::progress_set::ProgressSet;
use super::progressor::Progressor;
use super::root::Fabric;
use super::users::{ObjectKind, Users, none_or_busy};
use super::{Context, Owner};
use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::{self, Iface};
use crate::mr::Access;
use crate::mr::{Attr, Facts, RegionId, Source};
use crate::prov;
use crate::prov::described::Described;
use crate::prov::drivers::Drivers;
use crate::prov::op::Iov;
use crate::sync::serial::{Promise, Rank, Serial, Threading};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

pub struct Domain {
    pub context: Context,
    pub(crate) fabric: Arc<Fabric>,
    pub(super) origin: OpenedNames,
    pub(crate) owner: Owner,
    pub(crate) users: Users,
    pub(crate) prov: Arc<dyn prov::Domain>,
    /// True if the endpoints of this domain are connectionless (GDRFAB_EP_RDM).
    pub(crate) connectionless: bool,
    /// True if messages are matched by source and tag.
    pub(crate) matched: bool,
    pub threading: Threading,
    progressor: Option<Progressor>,
    pub(crate) drivers: Arc<Drivers>,
    /// The enabled endpoints. A wait for a region's counter makes progress on all of them.
    set: ProgressSet,
    /// With GDRFAB_DEBUG=desc: the open regions by their descriptors.
    pub(super) described: Option<Arc<Described>>,
    /// Device memory that was allocated here and not freed yet: by address, the interface and the length.
    device_memory: Mutex<HashMap<u64, (Iface, u64)>>,
    /// Handles of closed regions, for use by later registrations.
    #[allow(clippy::vec_box)] // they are handed out and taken back as pointers
    spares: Serial<Vec<Box<Mr>>>,
}

impl Domain {
    /// Opens a domain. `promise` comes from a caller that asks for no locks (`THREAD_DOMAIN`). Without a promise there
    /// are locks, even if the info asks for none.
    pub fn open(fabric: &Arc<Fabric>, info: &Info, promise: Option<Promise>) -> Result<Arc<Domain>> {
        fabric.owner.check()?;
        super::info::check(info)?;
        fabric.origin.check(info)?;
        let auto = info.progress == PROGRESS_AUTO;
        // With a progress thread there are always locks, because the caller's promise is only about the caller's
        // threads.
        let threading = match promise {
            Some(promise) if info.threading == THREAD_DOMAIN && !auto => Threading::Promised(promise),
            _ => Threading::Safe,
        };
        let connectionless = info.ep_type == EP_RDM;
        let prov = super::info::provider(info)?.open_domain(info, threading)?;
        let progressor = if auto { Some(Progressor::start()?) } else { None };
        fabric.users.add(ObjectKind::Domain);
        let drivers = Arc::new(Drivers::new(progressor.as_ref().map(Progressor::waiter)));
        let of_set = drivers.clone();
        Ok(Arc::new(Domain {
            context: Context::default(),
            fabric: fabric.clone(),
            origin: OpenedNames::of_domain(fabric.origin.provider(), info),
            owner: Owner::here(),
            users: Users::default(),
            prov,
            connectionless,
            matched: info.is_matched(),
            threading,
            drivers,
            progressor,
            set: ProgressSet::new(Threading::Safe, move || of_set.notify()),
            described: config::get().debug.desc.then(Arc::default),
            device_memory: Mutex::default(),
            spares: Serial::new(threading, Rank::Leaf, Vec::new()),
        }))
    }

    /// The name of the provider.
    pub fn provider(&self) -> &str {
        self.fabric.origin.provider()
    }

    pub fn check_close(&self) -> Result<()> {
        self.owner.check()?;
        let (regions, allocations) = self.prov.in_use();
        let on_devices = self.device_memory.lock().len();
        let memory = [(regions, "region"), (allocations, "allocation"), (on_devices, "device memory allocation")];
        none_or_busy("domain", &[self.users.open(), memory.to_vec()].concat())
    }

    /// Ends the domain. Called once, after `check_close` passed.
    pub fn close(&self) {
        if let Some(p) = &self.progressor {
            p.stop();
        }
        let spares = std::mem::take(&mut *self.spares.lock());
        drop(spares);
        self.fabric.users.remove(ObjectKind::Domain);
    }

    pub(crate) fn watch(&self, ep: &EpRef) {
        if let Some(p) = &self.progressor {
            p.add(ep);
        }
        self.set.attach(ep);
    }

    pub(crate) fn unwatch(&self, ep: &EpRef) {
        self.set.detach(ep);
        if let Some(p) = &self.progressor {
            p.remove(ep);
        }
    }

    pub(super) fn progress_set(&self) -> &ProgressSet {
        &self.set
    }

    /// True if a thread of the library makes progress on the endpoints.
    pub(crate) fn is_auto(&self) -> bool {
        self.progressor.is_some()
    }

    pub fn register(self: &Arc<Domain>, attr: &Attr<'_>) -> Result<Box<Mr>> {
        self.owner.check()?;
        if attr.access.contains(Access::ATOMIC) {
            self.prov.check_card_atomics()?;
        }
        let id = self.prov.register(attr)?;
        if let Some(described) = &self.described {
            described.open(id.desc, if let Source::Iov(pieces) = attr.source { pieces } else { &[] });
        }
        let mut mr = Mr::spare(self, || self.clone());
        mr.id = id;
        Ok(mr)
    }

    /// As `register`, for one range of host memory that the caller has checked. `None`: nothing was done. `own` is that of
    /// `Mr::spare`.
    #[inline]
    pub fn register_fast(&self, iov: Iov, access: Access, own: impl FnOnce() -> Arc<Domain>) -> Option<Box<Mr>> {
        if !self.owner.is_here() || self.described.is_some() {
            return None;
        }
        let mut mr = Mr::spare(self, own);
        if self.prov.register_fast(iov, access, &mut mr.id) {
            return Some(mr);
        }
        mr.put_back();
        None
    }

    pub fn allocate(&self, len: usize) -> Result<usize> {
        self.owner.check()?;
        self.prov.allocate(len)
    }

    /// Allocates memory of a device, for regions; for the host, as `allocate`.
    pub fn allocate_on(&self, iface: Iface, device: u32, len: usize) -> Result<usize> {
        if iface == Iface::System {
            return match device {
                0 => self.allocate(len),
                n => Err(Error::new(errno::ENODEV, format!("device: {n}; host memory is device 0 of iface 0"))),
            };
        }
        self.owner.check()?;
        super::hmem::device(iface, device)?;
        if len == 0 {
            return Err(Error::invalid("len: 0 bytes cannot be allocated"));
        }
        let addr = hmem::get(iface)?.alloc(device, len as u64)?;
        self.device_memory.lock().insert(addr, (iface, len as u64));
        Ok(addr as usize)
    }

    pub fn free(&self, addr: usize) -> Result<()> {
        self.owner.check()?;
        let key = addr as u64;
        // Removed before the driver is called, so that two threads cannot free the same memory.
        let Some((iface, len)) = self.device_memory.lock().remove(&key) else { return self.prov.free(addr) };
        let freed = match self.prov.regions_covering(key, len) {
            0 => hmem::get(iface).and_then(|up| up.free(key)),
            n => Err(Error::new(errno::EBUSY, format!("addr: {n} open region(s) cover this memory; close them first"))),
        };
        if freed.is_err() {
            self.device_memory.lock().insert(key, (iface, len));
        }
        freed
    }
}

/// A registered region. The domain keeps handles of closed regions for later registrations. Such handles refer to the domain,
/// so the domain drops them when it is closed.
pub struct Mr {
    pub context: Context,
    pub(super) domain: Arc<Domain>,
    pub(super) id: RegionId,
}

/// The most handles that a domain keeps.
const SPARES: usize = 4096;

impl Mr {
    /// A handle of `domain` without a region. `own` gives a reference to the domain, if a new handle has to be made.
    #[inline]
    fn spare(domain: &Domain, own: impl FnOnce() -> Arc<Domain>) -> Box<Mr> {
        let spare = domain.spares.lock().pop();
        spare.unwrap_or_else(|| Box::new(Mr { context: Context::default(), domain: own(), id: RegionId::NONE }))
    }

    /// Takes back the handle of a region that is closed.
    #[inline]
    pub fn put_back(mut self: Box<Mr>) {
        self.id = RegionId::NONE;
        let domain: *const Domain = Arc::as_ptr(&self.domain);
        // SAFETY: the domain outlives this call, because the C caller may not close it while a call on its region runs.
        let domain = unsafe { &*domain };
        let mut spares = domain.spares.lock();
        if spares.len() < SPARES {
            spares.push(self);
        }
    }

    /// Closes the region. If this fails, the region stays, closed to new operations.
    #[inline]
    pub fn close(&self) -> Result<()> {
        self.domain.owner.check()?;
        if let Some(described) = &self.domain.described {
            described.close(self.id.desc);
        }
        self.domain.prov.close_region(self.id)
    }

    pub fn key(&self) -> u64 {
        self.id.key
    }

    /// The descriptor that operations take as `desc`: a number, never followed as a pointer.
    pub fn desc(&self) -> u64 {
        self.id.desc
    }

    pub fn facts(&self) -> Result<Facts> {
        self.domain.prov.facts(self.id)
    }

    pub fn explain(&self) -> Result<String> {
        self.domain.prov.explain_region(self.id)
    }
}
