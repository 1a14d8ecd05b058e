// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the shm provider: its regions, its memory files, and the links of its endpoints.

use crate::config;
use crate::error::{Code, Result};
use crate::hmem::copier::Copier;
use crate::hmem::{Export, Offer, Site};
use crate::mr::region::{Local, Modes, is_stale};
use crate::mr::{Access, Iov};
use crate::prov::info::permitted;
use crate::prov::shm::limits::PATHS;
use crate::prov::shm::memory::locate;
use crate::prov::shm::memory::mr::Regions;
use crate::prov::shm::memory::region::Pin;
use crate::prov::shm::memory::table::Table;
use crate::prov::shm::peer::link::Link;
use crate::prov::shm::peer::quiesce;
use crate::sync::serial::{Rank, Serial, Threading};
use crate::sys::process;
use crate::sys::time;
use crate::sys::usercopy::UserCopy;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The links of this domain's endpoints, and the links of ended endpoints whose peers may still copy.
#[derive(Default)]
pub struct Links {
    pub all: Vec<Arc<Link>>,
    /// Regions whose closing has begun and is not finished, by index and generation: the gate is closed, and these
    /// peers may still copy in the region.
    pub closing: HashMap<(u32, u64), quiesce::Initiators>,
    /// The count of links at which `sweep_links` sweeps before `SWEEP_TICKS` have passed.
    sweep_at: usize,
    /// The time of the last sweep, in ticks.
    swept: u64,
}

/// Least ticks between two sweeps, unless the links are few or have doubled.
const SWEEP_TICKS: u64 = 2_000_000;
/// Up to this many links, each call of `sweep_links` sweeps.
const FEW_LINKS: usize = 64;

impl Links {
    /// Drops links that have ended on both sides.
    fn sweep(&mut self) {
        self.all.retain(|l| !(l.is_torn() && quiesce::is_finished(l)));
        self.sweep_at = (2 * self.all.len()).max(16);
        self.swept = time::ticks();
    }

    /// Drops links that have ended on both sides, if some have ended on this side and the last sweep is more than
    /// `SWEEP_TICKS` ago.
    pub fn sweep_late(&mut self) {
        if self.all.iter().any(|l| l.is_torn()) && time::ticks().wrapping_sub(self.swept) > SWEEP_TICKS {
            self.sweep();
        }
    }
}

/// The shm provider's part of a domain.
pub struct Domain {
    pub threading: Threading,
    pub modes: Modes,
    pub table: Table,
    pub table_fd: OwnedFd,
    pub regions: Serial<Regions>,
    pub links: Serial<Links>,
    /// Copies for peers in memory whose pages the program may have unmapped.
    pub user: UserCopy,
    /// True if this process has registered for membarrier. The peers' barriers then reach this process, and its copies
    /// need no fences.
    pub remote_fences: bool,
}

impl Domain {
    pub fn open(threading: Threading, virt_addr: bool, prov_key: bool) -> Result<Domain> {
        let (table, table_fd) = Table::create().map_err(|e| e.context("opening a shm domain"))?;
        let config = config::get();
        Ok(Domain {
            threading,
            modes: Modes { virt_addr, prov_key, paths: permitted(PATHS) },
            table,
            table_fd,
            regions: Serial::new(threading, Rank::Regions, Regions::new(virt_addr && prov_key && config.faults.is_empty())?),
            links: Serial::new(threading, Rank::Leaf, Links::default()),
            user: UserCopy::new()?,
            remote_fences: !config.debug.no_membarrier && process::barrier_register(),
        })
    }

    pub fn add_link(&self, link: Arc<Link>) {
        self.links.lock().all.push(link);
    }

    /// Drops links that have ended on both sides. With more than `FEW_LINKS` links, most calls do nothing, so that the
    /// end of many links costs little.
    pub fn sweep_links(&self) {
        let mut links = self.links.lock();
        if links.all.len() <= FEW_LINKS || links.all.len() >= links.sweep_at || time::ticks().wrapping_sub(links.swept) > SWEEP_TICKS {
            links.sweep();
        }
    }

    /// As `Regions::pin`; also checks that device memory is still the allocation that was registered.
    pub fn pin(&self, key: u64, addr: u64, len: usize, need: Access, drivers: bool) -> std::result::Result<Pin, Code> {
        let pin = self.regions.lock().pin(key, addr, len, need, drivers)?;
        if pin.pieces.iter().zip(&pin.ids).any(|(iov, id)| is_stale(pin.site, iov.addr(), *id)) {
            self.regions.lock().unpin(pin);
            return Err(Code::Fault);
        }
        Ok(pin)
    }

    /// The site of the local pieces of an operation with descriptor `desc`. With `drivers`, checks that the pieces
    /// still lie in the allocations that were registered.
    pub fn local_site(&self, desc: u64, local: &[Iov], drivers: bool) -> Result<Site> {
        let found = self.regions.lock().local(desc, local)?;
        if drivers { found.check() } else { Ok(found.site) }
    }

    /// All pieces of the region that `desc` names.
    pub fn local_pieces(&self, desc: u64) -> Result<Local> {
        self.regions.lock().local_pieces(desc)
    }

    /// The local pieces at their addresses in the copier process. The first call for a file has the copier process map
    /// the file for device `device`.
    pub fn pieces_in_copier(&self, desc: u64, local: &[Iov], copier: &'static Copier, device: u32) -> Result<Vec<Iov>> {
        loop {
            let unmapped = match self.regions.lock().pieces_in_copier(desc, local, copier)? {
                Ok(runs) => return Ok(runs),
                Err(unmapped) => unmapped,
            };
            let Export { how, device: of, handle, len, fd, .. } = &unmapped.export;
            let offer = Offer { how: *how, device: *of, handle: *handle, fd: fd.as_ref().map(OwnedFd::as_fd), len: *len };
            let import = copier.import(unmapped.iface, &offer, Some(device));
            let import = import.map_err(|e| e.context("mapping the local memory in the copier process (gdrfab-copier)"))?;
            let spare = match self.regions.lock().files.get_mut(unmapped.file) {
                Some(file) => file.keep_copier_mapping(copier, import),
                None => Some(import),
            };
            drop(spare);
        }
    }

    /// As `Regions::keeps_pinned`.
    pub fn keeps_pinned(&self, desc: u64, site: Site) -> bool {
        self.regions.lock().keeps_pinned(desc, site)
    }

    /// Pins the host memory of the region that `desc` names for copies by the driver of `site`, unless pinning was
    /// tried before.
    pub fn pin_host(&self, desc: u64, site: Site) {
        let Some(held) = self.regions.lock().begin_pin(desc, site) else { return };
        let pins = held.pieces.iter().map(|iov| (site, locate::pin(site, iov.addr() as u64, iov.len() as u64))).collect();
        self.regions.lock().pinned(held, pins);
    }
}
