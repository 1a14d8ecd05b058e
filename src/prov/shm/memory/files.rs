// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of a domain that peers can map: memory files that `mem_alloc` made or that callers registered by
//! descriptor, and exported allocations of devices. Each file has a record in the region table (`table.rs`).

use super::table::{MAX_FILES, NO_FD, Table};
use crate::error::{Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{Allocation, Export, Iface, Import};
use crate::mr::Iov;
use crate::sync::primitive::Ordering;
use crate::sys::mem::{self, FileId, Mappable, Mapping, Protection};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One file of the domain.
pub struct MemFile {
    pub id: u64,
    pub backing: Backing,
    /// Open regions that lie in the file.
    pub regions: u32,
}

/// The memory behind a file.
pub enum Backing {
    Host(HostFile),
    Device {
        of: Allocation,
        export: Export,
        /// The copier process that has mapped the allocation, and the mapping there.
        mapped_by: Option<(&'static Copier, Import)>,
    },
}

/// The state of a file in the copier process.
pub enum CopierMapping {
    Mapped(u64),
    NotYet(Iface, Export),
}

/// A memory file: memory of `mem_alloc`, or a file that a caller registered by descriptor.
pub struct HostFile {
    fd: OwnedFd,
    pub map: Mapping,
    /// A second mapping of memory of `mem_alloc`, made when first needed. This process copies for peers in the second
    /// mapping, because the program may change the protection of pages of the first one.
    view: Option<Mapping>,
    identity: FileId,
    /// True if `mem_alloc` made the file. The program frees such a file by its address; other files end with their last
    /// region.
    allocated: bool,
    writable: bool,
    pub mappable: Mappable,
}

impl MemFile {
    pub fn size(&self) -> u64 {
        match &self.backing {
            Backing::Host(file) => file.map.len() as u64,
            Backing::Device { export, .. } => export.len,
        }
    }

    /// The descriptor that a peer needs to map the file.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Host(file) => Some(file.fd.as_fd()),
            Backing::Device { export, .. } => export.fd.as_ref().map(OwnedFd::as_fd),
        }
    }

    pub fn host(&self) -> Option<&HostFile> {
        match &self.backing {
            Backing::Host(file) => Some(file),
            Backing::Device { .. } => None,
        }
    }

    /// Finds the address of the file in the copier process, or the export that this process needs to map it.
    pub fn copier_mapping(&self, copier: &'static Copier) -> Result<CopierMapping> {
        match &self.backing {
            Backing::Device { mapped_by: Some((by, import)), .. } if std::ptr::eq(*by, copier) => Ok(CopierMapping::Mapped(import.base)),
            Backing::Device { of, export, .. } => {
                let fd = export.fd.as_ref().map(|fd| mem::duplicate(fd.as_fd())).transpose()?;
                Ok(CopierMapping::NotYet(of.iface, Export { fd, ..*export }))
            }
            Backing::Host(_) => Err(Error::fixed(errno::EOPNOTSUPP, "the copier process (gdrfab-copier) does not map host memory")),
        }
    }

    /// Keeps a mapping of the copier process, and returns the mapping that is not needed: the new one if another thread
    /// was first, or an old one of another copier. The caller must drop the returned mapping without the regions' lock.
    pub fn keep_copier_mapping(&mut self, copier: &'static Copier, import: Import) -> Option<Import> {
        match &mut self.backing {
            Backing::Device { mapped_by: Some((by, _)), .. } if std::ptr::eq(*by, copier) => Some(import),
            Backing::Device { mapped_by, .. } => mapped_by.replace((copier, import)).map(|(_, old)| old),
            Backing::Host(_) => Some(import),
        }
    }

    /// Checks that the copier process copies nothing in the file. `Err`: this process cannot find out.
    fn check_quiet(&self) -> Result<()> {
        match &self.backing {
            Backing::Device { mapped_by: Some((copier, _)), .. } => copier.check_quiet(),
            _ => Ok(()),
        }
    }

    fn is_allocated(&self) -> bool {
        self.host().is_some_and(|f| f.allocated)
    }
}

/// The files of a domain, by slot. A file's id names its slot: id modulo `MAX_FILES`.
#[derive(Default)]
pub struct Files {
    slots: Vec<Option<MemFile>>,
    /// Counts the files ever made; makes each file's id unique.
    generation: u64,
    /// Start address of each allocated file's mapping, and its slot.
    by_addr: BTreeMap<usize, usize>,
    /// Removed files that the copier process has mapped. The owner of `Files` drops them without the regions' lock.
    pub gone: Vec<MemFile>,
}

impl Files {
    /// Gives a file an id, writes its record into the table, and keeps the file; returns the id.
    fn insert(&mut self, table: &Table, mut file: MemFile) -> Result<u64> {
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.slots.len() < MAX_FILES => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return Err(Error::new(errno::ENOSPC, format!("this domain already has {MAX_FILES} shared memory files"))),
        };
        self.generation += 1;
        file.id = self.generation * MAX_FILES as u64 + slot as u64;
        let record = table.file(file.id);
        record.size.store(file.size(), Ordering::Relaxed);
        record.fd.store(file.fd().map_or(NO_FD, |fd| fd.as_raw_fd() as u64), Ordering::Relaxed);
        match &file.backing {
            Backing::Host(_) => record.how.store(0, Ordering::Relaxed),
            Backing::Device { of, export, .. } => {
                record.describe(of.iface, export);
                if let Some(exports) = &table.exports {
                    exports.note(file.id, *of);
                }
            }
        }
        // Release: a peer that sees the id sees size and descriptor.
        record.id.store(file.id, Ordering::Release);
        if let Backing::Host(HostFile { allocated: true, map, .. }) = &file.backing {
            self.by_addr.insert(map.as_ptr() as usize, slot);
        }
        let id = file.id;
        self.slots[slot] = Some(file);
        Ok(id)
    }

    /// Removes a file and its record. Peers' mappings of the file stay until the peers drop them.
    fn remove(&mut self, table: &Table, slot: usize) {
        if let Some(file) = self.slots[slot].take() {
            table.file(file.id).id.store(0, Ordering::Release);
            if let (Backing::Device { .. }, Some(exports)) = (&file.backing, &table.exports) {
                exports.forget(file.id);
            }
            if let Backing::Host(HostFile { allocated: true, map, .. }) = &file.backing {
                self.by_addr.remove(&(map.as_ptr() as usize));
            }
            if let Backing::Device { mapped_by: Some(_), .. } = &file.backing {
                self.gone.push(file);
            }
        }
    }

    #[inline]
    pub fn get(&self, id: u64) -> Option<&MemFile> {
        self.slots.get(id as usize % MAX_FILES)?.as_ref().filter(|f| f.id == id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut MemFile> {
        self.slots.get_mut(id as usize % MAX_FILES)?.as_mut().filter(|f| f.id == id)
    }

    /// Makes shared memory and maps it; returns its address.
    pub fn allocate(&mut self, table: &Table, len: usize) -> Result<usize> {
        let bytes = match mem::page_round(len) {
            Some(0) => return Err(Error::invalid("len: 0 bytes cannot be allocated")),
            Some(n) if n <= isize::MAX as usize => n,
            _ => return Err(Error::new(errno::ENOMEM, format!("len: {len} bytes exceed the address space"))),
        };
        let fd = mem::memfd("gdrfab-mem", bytes)?;
        let map = Mapping::new(fd.as_fd(), 0, bytes, Protection::ReadWrite)?;
        let addr = map.as_ptr() as usize;
        let (identity, _) = mem::file_id(fd.as_fd())?;
        let file = HostFile { fd, map, view: None, identity, allocated: true, writable: true, mappable: Mappable::Yes };
        self.insert(table, MemFile { id: 0, backing: Backing::Host(file), regions: 0 })?;
        Ok(addr)
    }

    /// Frees memory that `allocate` made. `EBUSY`: open regions cover it.
    pub fn free(&mut self, table: &Table, addr: usize) -> Result<()> {
        let Some(&slot) = self.by_addr.get(&addr) else {
            return Err(Error::invalid("addr: not an address that mem_alloc of this domain returned (or freed already)"));
        };
        let regions = self.slots[slot].as_ref().map_or(0, |f| f.regions);
        if regions > 0 {
            return Err(Error::new(errno::EBUSY, format!("addr: {regions} open region(s) cover this memory; close them first")));
        }
        self.remove(table, slot);
        Ok(())
    }

    /// The memory at byte `offset` of file `id`, at the address where this process copies for peers. For memory of
    /// `mem_alloc`, the address differs from the one that the program knows.
    pub fn view(&mut self, id: u64, offset: u64, len: usize) -> Result<Iov> {
        let gone = Error::fixed(errno::EIO, "internal error: the memory file of a region is missing");
        let Some(Backing::Host(file)) = self.get_mut(id).map(|f| &mut f.backing) else { return Err(gone) };
        let base = match &file.view {
            Some(view) => view,
            None if !file.allocated => &file.map,
            None => file.view.insert(Mapping::new(file.fd.as_fd(), 0, file.map.len(), Protection::ReadWrite)?),
        };
        let offset = (offset as usize).min(base.len());
        // SAFETY: the range is inside the mapping, which stays as long as regions use the file.
        Ok(unsafe { Iov::new(base.as_ptr() as usize + offset, len.min(base.len() - offset)) })
    }

    /// The allocated file that holds `[addr, addr+len)`, and the offset of `addr` in it.
    #[inline]
    pub fn find(&self, addr: usize, len: usize) -> Option<(u64, u64)> {
        if self.by_addr.is_empty() {
            return None;
        }
        let (_, &slot) = self.by_addr.range(..=addr).next_back()?;
        let file = self.slots[slot].as_ref()?;
        Some((file.id, file.host()?.map.offset_of(addr, len)? as u64))
    }

    /// Adopts a caller's descriptor, or finds the file that was adopted before; returns the file's id.
    pub fn adopt(&mut self, table: &Table, fd: BorrowedFd<'_>, write: bool) -> Result<u64> {
        let (identity, size) = mem::file_id(fd).map_err(|e| e.context("dmabuf->fd"))?;
        if size == 0 {
            return Err(Error::invalid("dmabuf->fd: the file holds no bytes"));
        }
        let same = |f: &HostFile| f.identity == identity && f.map.len() as u64 == size && (f.writable || !write);
        let known = self.slots.iter().flatten().find(|f| f.host().is_some_and(same));
        if let Some(file) = known {
            return Ok(file.id);
        }
        let own = mem::duplicate(fd).map_err(|e| e.context("dmabuf->fd"))?;
        let protection = if write { Protection::ReadWrite } else { Protection::ReadOnly };
        let map = Mapping::new(own.as_fd(), 0, size as usize, protection)
            .map_err(|e| e.context("dmabuf->fd cannot be mapped for the access asked"))?;
        let mappable = mem::make_mappable(own.as_fd());
        let file = HostFile { fd: own, map, view: None, identity, allocated: false, writable: write, mappable };
        self.insert(table, MemFile { id: 0, backing: Backing::Host(file), regions: 0 })
    }

    /// The file of a device allocation that was exported before.
    pub fn known_device(&self, of: &Allocation) -> Option<u64> {
        let same = |f: &&MemFile| matches!(&f.backing, Backing::Device { of: known, .. } if known == of && of.id != 0);
        self.slots.iter().flatten().find(same).map(|f| f.id)
    }

    /// Adopts a driver's export of a device allocation, unless the allocation has a file already; returns the file's id.
    pub fn adopt_device(&mut self, table: &Table, of: &Allocation, export: &mut Option<Export>) -> Result<u64> {
        if let Some(known) = self.known_device(of) {
            return Ok(known);
        }
        let export = export.take().ok_or(Error::fixed(errno::EIO, "the driver was not asked to export this allocation"))?;
        self.insert(table, MemFile { id: 0, backing: Backing::Device { of: *of, export, mapped_by: None }, regions: 0 })
    }

    /// Checks that the copier process copies nothing in file `id`. `Err`: this process cannot find out.
    pub fn check_quiet(&self, id: u64) -> Result<()> {
        self.get(id).map_or(Ok(()), MemFile::check_quiet)
    }

    /// Notes that a region of file `id` was closed. An adopted file is removed with its last region.
    pub fn release(&mut self, table: &Table, id: u64) {
        let Some(file) = self.get_mut(id) else { return };
        file.regions = file.regions.saturating_sub(1);
        if file.regions == 0 && !file.is_allocated() {
            self.remove(table, id as usize % MAX_FILES);
        }
    }

    /// Removes adopted files without regions, which a failed registration leaves behind.
    pub fn drop_unused(&mut self, table: &Table) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|f| f.regions == 0 && !f.is_allocated()) {
                self.remove(table, slot);
            }
        }
    }

    /// Count of files made by `mem_alloc` that were not freed.
    pub fn allocations(&self) -> usize {
        self.by_addr.len()
    }
}
