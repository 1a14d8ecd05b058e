// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer's memory files and device allocations, mapped into this process.
//!
//! A mapping stays as long as it has a holder: the set of imports (until the peer frees the memory), a cached region,
//! or an operation in flight. The peer decides when the set drops a mapping, so code that takes an address from a
//! mapping must hold the mapping too.

use super::link::Link;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{self, Allocation, Iface, Pinned, Site};
use crate::prov::shm::memory::table::NO_FD;
use crate::sync::primitive::Ordering;
use crate::sys::mem::{Mapping, Protection, check_peer_memory};
use crate::sys::process;
use crate::sys::time::now_ns;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// Most bytes of address space that the files of all peers may take together: half of a 47-bit address space.
const MOST_BYTES: u64 = 1 << 46;
/// Most mappings that the files of all peers may take together: a quarter of the kernel's usual limit
/// (vm.max_map_count, 65530).
const MOST_FILES: u64 = 1 << 14;

static BYTES: AtomicU64 = AtomicU64::new(0);
static FILES: AtomicU64 = AtomicU64::new(0);

/// One mapping's part of `MOST_BYTES` and `MOST_FILES`; given back when dropped.
pub struct MappingQuota(u64);

impl MappingQuota {
    fn claim(size: u64) -> Result<MappingQuota> {
        // Relaxed: the counters order no other memory.
        let quota = MappingQuota(size);
        let bytes = BYTES.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        let files = FILES.fetch_add(1, Ordering::Relaxed) + 1;
        if bytes <= MOST_BYTES && files <= MOST_FILES {
            return Ok(quota);
        }
        Err(Error::new(errno::ENOMEM, format!("peers have {files} memory files of {bytes} bytes, more than this process may map")))
    }
}

impl Drop for MappingQuota {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A peer's memory file or device allocation, mapped here.
pub enum Import {
    Host {
        /// The pin of the mapping, released before the mapping because fields are dropped in order. `Some(None)`:
        /// pinning failed.
        pinned: OnceLock<Option<Pinned>>,
        map: Mapping,
        writable: bool,
        _quota: MappingQuota,
    },
    Device(hmem::Import),
    /// Memory of a peer in this process: used at the owner's address, and copied by `device`.
    Own {
        of: Allocation,
        device: u32,
    },
}

impl Import {
    fn base(&self) -> usize {
        match self {
            Import::Host { map, .. } => map.as_ptr() as usize,
            Import::Device(import) => import.base as usize,
            Import::Own { of, .. } => of.base as usize,
        }
    }

    fn len(&self) -> u64 {
        match self {
            Import::Host { map, .. } => map.len() as u64,
            Import::Device(import) => import.len,
            Import::Own { of, .. } => of.len,
        }
    }

    pub fn site(&self) -> Site {
        match self {
            Import::Host { .. } => Site::HOST,
            Import::Device(import) => Site { iface: import.iface, device: import.device },
            Import::Own { of, device } => Site { iface: of.iface, device: *device },
        }
    }

    /// The identity of memory that is used at the owner's address ([`Import::Own`]), where the owner may free it; 0: a
    /// mapping of this side's own, which stays.
    pub fn id(&self) -> u64 {
        if let Import::Own { of, .. } = self { of.id } else { 0 }
    }

    /// Address of `[offset, offset+len)`, if the range lies inside.
    pub fn at(&self, offset: u64, len: u64) -> Option<usize> {
        (offset.checked_add(len)? <= self.len()).then(|| self.base() + offset as usize)
    }

    /// Pins a file of host memory for copies by the driver of `site`, at the first call. Device memory needs no pin.
    pub fn pin(&self, site: Site) {
        if let Import::Host { map, pinned, .. } = self {
            pinned.get_or_init(|| crate::prov::shm::memory::locate::pin(site, map.as_ptr() as u64, map.len() as u64));
        }
    }

    /// True if kernels of a device can access the memory as long as it is mapped: device memory, or pinned host memory.
    pub fn stays_reachable(&self) -> bool {
        if let Import::Host { pinned, .. } = self { matches!(pinned.get(), Some(Some(_))) } else { true }
    }
}

/// The reason why a peer's file is not mapped.
#[derive(Clone, Debug)]
enum Missing {
    /// The peer was asked for the file over the control socket.
    Asked,
    /// The file cannot be mapped.
    Never(Error),
    /// This process had no descriptor or memory left; mapping is tried again from this time on.
    Later(Error, u64),
}

impl Missing {
    /// Delay before a new attempt, after this process lacked a descriptor or memory for a file.
    const REST_NS: u64 = 100_000_000;

    fn of(e: Error) -> Missing {
        match e.is_shortage() {
            true => Missing::Later(e, now_ns() + Missing::REST_NS),
            false => Missing::Never(e),
        }
    }

    fn is_due(&self) -> bool {
        matches!(self, Missing::Later(_, from) if now_ns() >= *from)
    }

    fn reason(&self) -> Option<&Error> {
        if let Missing::Never(e) | Missing::Later(e, _) = self { Some(e) } else { None }
    }
}

/// The device for which a mapping is made; `None`: any device.
pub type MappedFor = Option<u32>;

/// The imports of one peer: its mapped files, and the files that could not be mapped.
#[derive(Default)]
pub struct Imports {
    /// The mappings, by file and, for device memory, by the device for which the file was mapped. A driver copies at
    /// full speed only through a mapping that was made for the copying device.
    all: HashMap<(u64, MappedFor), Arc<Import>>,
    missing: HashMap<u64, Missing>,
    /// Files that the endpoint must ask the peer for over the control socket.
    pub to_ask: Vec<u64>,
    /// The device for which new mappings are made.
    pub mapped_for: MappedFor,
    /// The last reason why a descriptor could not be fetched by pidfd, for reports.
    pidfd_refused: Option<Error>,
    /// The copier process, if that process maps device memory instead of this one.
    pub copier: Option<&'static Copier>,
}

impl Imports {
    fn place(&self, link: &Link, file: u64) -> (u64, MappedFor) {
        let on_device = link.table.file(file).how.load(Ordering::Relaxed) != 0;
        (file, self.mapped_for.filter(|_| on_device))
    }

    /// True if the file is neither mapped nor known to be missing, so that `get` would try to map it.
    pub fn is_new(&self, link: &Link, file: u64) -> bool {
        !self.all.contains_key(&self.place(link, file)) && !self.missing.contains_key(&file)
    }

    /// The mapping of `file`, made now if the file can be mapped without waiting for the peer. `None`: the file is not
    /// mapped.
    pub fn get(&mut self, link: &Link, file: u64, write: bool) -> Option<&Arc<Import>> {
        let place = self.place(link, file);
        if self.all.get(&place).is_some_and(|i| write && matches!(**i, Import::Host { writable: false, .. })) {
            // Cached regions that may only be read keep the read-only mapping.
            self.all.remove(&place);
        }
        if self.is_new(link, file) {
            let record = link.table.file(file);
            if file == 0 || record.id.load(Ordering::Acquire) != file {
                self.missing.insert(file, Missing::Never(Error::fixed(errno::ENOENT, "the peer freed the memory")));
            } else {
                self.obtain(link, file, write);
            }
        }
        self.all.get(&place)
    }

    /// Maps a file by the peer's record of it, or notes why that is not possible.
    fn obtain(&mut self, link: &Link, file: u64, write: bool) {
        if let Some(own) = self.own(link, file) {
            self.all.insert((file, self.mapped_for), Arc::new(own));
            return;
        }
        let record = link.table.file(file);
        let without = record.fd.load(Ordering::Relaxed) == NO_FD;
        let result = if without { self.map_device(link, file, None) } else { self.fetch(link, file, write) };
        match result {
            Ok(()) => {}
            // Asking the peer would not help: there is no descriptor to send, or this process lacks the resources to
            // take one.
            Err(e) if without || e.is_shortage() => drop(self.missing.insert(file, Missing::of(e))),
            // Without ptrace permission the peer itself sends the descriptor, at its next progress.
            Err(e) => {
                self.pidfd_refused = Some(e);
                self.missing.insert(file, Missing::Asked);
                self.to_ask.push(file);
            }
        }
    }

    /// Device memory of a peer in this same process, if the vendor's driver reaches it at the owner's address.
    fn own(&self, link: &Link, file: u64) -> Option<Import> {
        let of = link.exports.as_ref().filter(|_| self.copier.is_none())?.allocation(file)?;
        match hmem::get(of.iface).and_then(|up| up.reach(&of, self.mapped_for)) {
            Ok(device) => Some(Import::Own { of, device }),
            Err(e) => {
                crate::log!(Debug, "memory of this process (file {file}) is mapped like a peer's: {e}");
                None
            }
        }
    }

    /// Fetches the descriptor by pidfd_getfd, and maps the file.
    fn fetch(&mut self, link: &Link, file: u64, write: bool) -> Result<()> {
        if config::get().debug.no_pidfd {
            return Err(Error::fixed(errno::EPERM, "switched off by GDRFAB_DEBUG=no-pidfd"));
        }
        let pidfd = link.pidfd().ok_or(Error::fixed(errno::ESRCH, "the kernel gives no pidfd of the peer"))?;
        let record = link.table.file(file);
        let (size, number) = (record.size.load(Ordering::Relaxed), record.fd.load(Ordering::Relaxed));
        let fd = process::fetch_fd(pidfd, number as i32)?;
        match self.map_host(link, file, size, fd.as_fd(), write) {
            // The descriptor is here, and its driver refuses it. A descriptor sent by the peer would be refused too, so
            // the peer is not asked.
            Err(e) if record.how.load(Ordering::Relaxed) != 0 => {
                self.missing.insert(file, Missing::of(e));
                Ok(())
            }
            other => other,
        }
    }

    fn map_host(&mut self, link: &Link, file: u64, size: u64, fd: BorrowedFd<'_>, write: bool) -> Result<()> {
        if link.table.file(file).how.load(Ordering::Relaxed) != 0 {
            return self.map_device(link, file, Some(fd));
        }
        check_peer_memory(fd, size)?;
        if size == 0 || size > isize::MAX as u64 {
            return Err(table_error("a file's size"));
        }
        let quota = MappingQuota::claim(size)?;
        let map = match Mapping::new(fd, 0, size as usize, if write { Protection::ReadWrite } else { Protection::ReadOnly }) {
            Ok(map) => map,
            Err(e) => return Err(e.context("mapping the peer's memory")),
        };
        crate::log!(Debug, "mapped {size} bytes of the peer (file {file})");
        self.all.insert((file, None), Arc::new(Import::Host { map, writable: write, pinned: OnceLock::new(), _quota: quota }));
        Ok(())
    }

    fn map_device(&mut self, link: &Link, file: u64, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let (iface, offer) = link.table.file(file).offer(fd).ok_or_else(|| table_error("the descriptor of a file"))?;
        let iface = Iface::from_raw(iface).filter(|i| *i != Iface::System).ok_or_else(|| table_error("a device interface"))?;
        if offer.len == 0 || offer.len > isize::MAX as u64 {
            return Err(table_error("an allocation's size"));
        }
        let import = match self.copier {
            Some(copier) => copier.import(iface, &offer, self.mapped_for),
            None => hmem::get(iface).and_then(|up| up.import(&offer, self.mapped_for)),
        };
        let import = import.map_err(|e| e.context("mapping the peer's device memory"))?;
        if import.len < offer.len {
            return Err(table_error("an allocation's size"));
        }
        crate::log!(Debug, "mapped {} bytes of the peer's {} memory (file {file})", import.len, iface.name());
        self.all.insert((file, self.mapped_for), Arc::new(Import::Device(import)));
        Ok(())
    }

    /// Takes the peer's answer to a request for a file. With `found`, the peer has the file and has sent the
    /// descriptor; `fd` is then `None` only if this process could receive no descriptor.
    pub fn answered(&mut self, link: &Link, file: u64, size: u64, found: bool, fd: Option<BorrowedFd<'_>>) {
        if !matches!(self.missing.get(&file), Some(Missing::Asked)) {
            return;
        }
        let result = match fd {
            Some(fd) => self.map_host(link, file, size, fd, true).or_else(|_| self.map_host(link, file, size, fd, false)),
            None if found => Err(Error::fixed(
                errno::EMFILE,
                "this process has no free descriptor for the peer's memory file; raise RLIMIT_NOFILE (ulimit -n)",
            )),
            None => Err(Error::fixed(errno::ENOENT, "the peer no longer has this memory file")),
        };
        match result {
            Ok(()) => self.missing.remove(&file),
            Err(e) => self.missing.insert(file, Missing::of(e)),
        };
    }

    /// Drops imports whose files the peer has freed, and failures whose time of rest is over. True: cached regions must
    /// be looked up again.
    pub fn sweep(&mut self, link: &Link) -> bool {
        let lives = |id: u64| link.table.file(id).id.load(Ordering::Acquire) == id;
        let is_due = self.missing.values().any(Missing::is_due);
        self.missing.retain(|id, why| lives(*id) && !why.is_due());
        self.to_ask.retain(|id| lives(*id));
        let before = self.all.len();
        self.all.retain(|(id, _), _| lives(*id));
        self.all.len() < before || is_due
    }

    /// True if the peer was asked for a file and has not answered yet.
    pub fn is_waiting(&self) -> bool {
        self.missing.values().any(|m| matches!(m, Missing::Asked))
    }

    /// A reason why a file of the peer is not mapped.
    pub fn why_not(&self) -> Error {
        if self.is_waiting() {
            return Error::fixed(errno::EAGAIN, "the peer has not sent its memory file yet");
        }
        let reason = self.missing.values().find_map(Missing::reason).cloned();
        reason.or_else(|| self.pidfd_refused.clone()).unwrap_or(Error::fixed(errno::EAGAIN, "not mapped yet"))
    }
}

/// Checks that memory used at the owner's address is still the memory that the owner registered.
#[inline]
pub fn check_identity(site: Site, here: usize, id: u64) -> Result<()> {
    if id == 0 || hmem::get(site.iface)?.identity(here as u64) == Some(id) {
        return Ok(());
    }
    Err(Error::coded(errno::EFAULT, Code::Fault, format!("the peer's {site} memory at {here:#x} was freed after it was registered")))
}

/// The error of a peer whose region table contradicts itself.
pub fn table_error(what: &str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, format!("the peer's region table is invalid: {what}"))
}
