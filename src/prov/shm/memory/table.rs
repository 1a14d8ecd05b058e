// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The region table of a domain: the regions that peers may reach. The table is a memory file that only its owner can
//! write (sealed against later writable mappings) and that every connected peer maps to read.
//!
//! An entry's gate word is the generation of its region: unique for each registration, 0 when closed. To look a region
//! up, a peer reads the gate, the fields, and the gate again. Before each copy, the peer sets its busy mark and reads
//! the gate once more.

use super::exports::Exports;
use super::window::RowWindow;
use crate::error::{Error, Result, errno};
use crate::hmem::{Export, HANDLE_BYTES, Iface, Offer};
use crate::mr::registry::{CHOSEN_KEY, Reserved};
use crate::mr::{Access, Paths};
use crate::sync::gate;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sys::mem::{self, Mapping, Protection};
use crate::sys::process;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bits of a provider key that hold the entry's index.
pub use crate::mr::key::INDEX_BITS;
use crate::mr::key::OWN_REGIONS;
pub const MAX_REGIONS: usize = OWN_REGIONS;
/// Entries for the program's regions, and for regions that the library itself exposes to peers.
const ENTRIES: usize = 1 << INDEX_BITS;
const _: () = assert!(INDEX_BITS < gate::PLACE_BITS);
pub const MAX_EXTENTS: usize = 1 << 15;
pub const MAX_FILES: usize = 4096;
/// Places of the hash table of keys: twice the regions, so that the first place of a key is seldom taken.
const KEY_PLACES: usize = 2 * MAX_REGIONS;
/// Most places that a look-up of one key reads.
const MAX_REACH: u64 = 256;

/// The region counts remote writes: initiators send a notice (`NOTIFY`) of each write.
pub const EVENT: u64 = 1 << 32;
/// The region has several extents: `Entry::addr` is the index of the first one, `Entry::file_offset` the count of
/// extents.
pub const MULTI: u64 = 1 << 33;

/// The entry of a region.
#[repr(C, align(64))]
pub struct Entry {
    /// The region's generation; 0: the entry has no open region.
    pub gate: AtomicU64,
    pub key: AtomicU64,
    /// The address by which remote operations name the first byte.
    pub base: AtomicU64,
    pub len: AtomicU64,
    /// access:16 (bits 8.. of libfabric's, shifted down) | paths:16 | EVENT | MULTI
    pub rights: AtomicU64,
    /// The address in the owner of a region of one piece; see [`MULTI`].
    pub addr: AtomicU64,
    /// The id of the file in which the bytes lie; 0: private memory.
    pub file: AtomicU64,
    pub file_offset: AtomicU64,
}

impl Entry {
    /// Writes the location of the bytes: one piece, or the first index and the count of a run of extents ([`MULTI`]).
    #[inline(always)]
    pub fn place(&self, addr: u64, file: u64, file_offset: u64) {
        self.addr.store(addr, Ordering::Relaxed);
        self.file.store(file, Ordering::Relaxed);
        self.file_offset.store(file_offset, Ordering::Relaxed);
    }

    /// Publishes a region. `place` must have written the location before.
    #[inline(always)]
    pub fn open(&self, of: Reserved, base: u64, len: u64, rights: u64) {
        self.key.store(of.key, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.rights.store(rights, Ordering::Relaxed);
        // Release: a peer that sees the generation sees the fields.
        self.gate.store(of.generation, Ordering::Release);
    }
}

/// One piece of a region that has several; the words have the meaning that they have in an [`Entry`].
#[repr(C)]
pub struct Extent {
    pub addr: AtomicU64,
    pub len: AtomicU64,
    pub file: AtomicU64,
    pub file_offset: AtomicU64,
}

/// A file in which extents lie: a memory file, or an allocation of a device. `id` 0: unused. Its row is `id % MAX_FILES`.
#[repr(C, align(64))]
pub struct File {
    pub id: AtomicU64,
    pub size: AtomicU64,
    /// The descriptor's number in the owner's process, for pidfd_getfd; [`NO_FD`]: no descriptor.
    pub fd: AtomicU64,
    /// 0: a memory file. Else the number of the device interface and, from bit 32 on, the interface's kind of handle.
    pub how: AtomicU64,
    /// The device's identity, the same in all processes.
    pub device: [AtomicU64; 2],
    pad: [u64; 2],
    /// The vendor's handle.
    pub handle: [AtomicU64; HANDLE_BYTES / 8],
}

/// Stands for the number of a descriptor that does not exist.
pub const NO_FD: u64 = u64::MAX;

impl File {
    /// Writes a device allocation's record. The caller writes the id last.
    pub fn describe(&self, iface: Iface, export: &Export) {
        self.how.store(iface as u64 | u64::from(export.how) << 32, Ordering::Relaxed);
        words_into(&self.device, &export.device);
        words_into(&self.handle, &export.handle);
    }

    /// The record of a device allocation as the peer wrote it, unchecked. `None`: a memory file.
    pub fn offer<'a>(&self, fd: Option<BorrowedFd<'a>>) -> Option<(u32, Offer<'a>)> {
        let how = self.how.load(Ordering::Relaxed);
        if how == 0 {
            return None;
        }
        let (mut device, mut handle) = ([0; 16], [0; HANDLE_BYTES]);
        words_out_of(&self.device, &mut device);
        words_out_of(&self.handle, &mut handle);
        Some((how as u32, Offer { how: (how >> 32) as u32, device, handle, fd, len: self.size.load(Ordering::Relaxed) }))
    }
}

fn words_into(words: &[AtomicU64], bytes: &[u8]) {
    for (word, eight) in words.iter().zip(bytes.chunks_exact(8)) {
        word.store(eight.try_into().map_or(0, u64::from_ne_bytes), Ordering::Relaxed);
    }
}

fn words_out_of(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, eight) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        eight.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}

#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    /// One more than the largest distance, in places, that a listed key ever had from its home place.
    reach: AtomicU64,
    pad: [u64; 6],
}

/// The whole file, as `docs/shm-format.md` specifies it.
#[repr(C, align(64))]
struct Layout {
    head: Head,
    files: [File; MAX_FILES],
    extents: [Extent; MAX_EXTENTS],
    entries: [Entry; ENTRIES],
    /// Hash table of keys that callers chose: each place holds an entry's index + 1, or 0.
    keys: [AtomicU64; KEY_PLACES],
}

const MAGIC: u64 = u64::from_le_bytes(*b"gdrfabT4");

/// The word [`Entry::rights`].
pub fn pack_rights(access: Access, paths: Paths, extra: u64) -> u64 {
    access.bits() >> 8 & 0xffff | (paths.bits() & 0xffff) << 16 | extra
}

pub fn unpack_rights(raw: u64) -> (Access, Paths) {
    (Access::from_bits_truncate((raw & 0xffff) << 8), Paths::from_bits_truncate(raw >> 16 & 0xffff))
}

/// The table. The owner maps the whole file; a peer maps the rows that it uses.
pub struct Table {
    files: RowWindow<File>,
    extents: RowWindow<Extent>,
    entries: RowWindow<Entry>,
    keys: RowWindow<AtomicU64>,
    /// The beginning of the file, or all of it.
    map: Mapping,
    /// The owner's device allocations, if a domain of this process made the table. Read them by [`Table::exports_of`].
    pub exports: Option<Arc<Exports>>,
}

impl Table {
    /// Makes the table of a new domain, and its memory file.
    pub fn create() -> Result<(Table, OwnedFd)> {
        let fd = mem::memfd("gdrfab-table", size_of::<Layout>())?;
        let map = Mapping::new(fd.as_fd(), 0, size_of::<Layout>(), Protection::ReadWrite)?;
        mem::seal_against_writers(fd.as_fd())?;
        let table = Table::of(map, Some(Exports::announce(mem::file_id(fd.as_fd())?.0)));
        table.head().magic.store(MAGIC, Ordering::Release);
        Ok((table, fd))
    }

    /// Maps the beginning of a peer's table, after checks of the file.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Table> {
        mem::check_peer_file(fd, size_of::<Layout>() as u64)?;
        let len = if mem::maps_again() { mem::page_size() } else { size_of::<Layout>() };
        let table = Table::of(Mapping::new(fd, 0, len, Protection::ReadOnly)?, Exports::find(mem::file_id(fd)?.0));
        if table.head().magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::fixed(errno::EPROTO, "the peer's region table is of another version or damaged"));
        }
        Ok(table)
    }

    fn of(map: Mapping, exports: Option<Arc<Exports>>) -> Table {
        let whole = (map.len() == size_of::<Layout>()).then_some(&map);
        // SAFETY: the rows of all four windows are atomic words (and padding that is never read). The file has all rows and never
        // shrinks, and the mapping moves into the table, where it is dropped after them.
        unsafe {
            Table {
                files: RowWindow::new(offset_of!(Layout, files), MAX_FILES, whole),
                extents: RowWindow::new(offset_of!(Layout, extents), MAX_EXTENTS, whole),
                entries: RowWindow::new(offset_of!(Layout, entries), ENTRIES, whole),
                keys: RowWindow::new(offset_of!(Layout, keys), KEY_PLACES, whole),
                map,
                exports,
            }
        }
    }

    /// The owner's device allocations, if the peer is a domain of this process. Both conditions are needed: a domain of
    /// this process made the table, and the kernel says that the process at the other end of the socket, `pid`, is this
    /// one. Another process can meet either condition alone: a peer of this process has the table, and a forked child
    /// or a receiver of descriptors has the socket.
    pub fn exports_of(&self, pid: i32) -> Option<Arc<Exports>> {
        self.exports.clone().filter(|_| pid == process::pid())
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: the mapping has at least a page, is page aligned, and lives as long as self; the fields are atomics. A peer's
        // mapping is read-only, and a peer only loads.
        unsafe { &*self.map.as_ptr().cast::<Head>() }
    }

    /// The entry `index`, in this process's own table, or in a peer's table after `find` has returned `index`.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> &Entry {
        self.entries.get(index as usize)
    }

    /// The extent `index`, mapped now if it was not.
    pub fn extent(&self, index: u64) -> Result<&Extent> {
        self.extents.reach(index as usize, &self.map)
    }

    /// A file's record. If the record cannot be mapped, an unused one.
    pub fn file(&self, id: u64) -> &File {
        self.files.reach(id as usize, &self.map).unwrap_or_else(|e| {
            crate::log!(Error, "the record of a peer's memory file cannot be mapped: {e}");
            RowWindow::nothing()
        })
    }

    /// The first `reach` places at which a key that a caller chose may be listed, from the key's home place on, each
    /// with its distance from there.
    fn places(&self, key: u64, reach: u64) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let home = scatter(key);
        (0..reach).map(move |distance| (distance, self.keys.get(home.wrapping_add(distance) as usize)))
    }

    /// Lists a key that a caller chose, so that peers find the entry by the key.
    pub fn list_key(&self, key: u64, index: u32) -> Result<()> {
        let free = self.places(key, MAX_REACH).find(|(_, place)| place.load(Ordering::Relaxed) == 0);
        let (distance, place) =
            free.ok_or(Error::fixed(errno::ENOSPC, "requested_key: the domain's table of chosen keys is full; use another key"))?;
        place.store(u64::from(index) + 1, Ordering::Relaxed);
        if distance >= self.head().reach.load(Ordering::Relaxed) {
            self.head().reach.store(distance + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Removes a key that `list_key` has listed for the entry `index`.
    pub fn unlist_key(&self, key: u64, index: u32) {
        if let Some((_, place)) = self.places(key, MAX_REACH).find(|(_, place)| place.load(Ordering::Relaxed) == u64::from(index) + 1) {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// The index of the open entry that `key` names. A key that the library chose has the index in its low bits; a key
    /// that a caller chose is looked up in the hash table.
    pub fn find(&self, key: u64) -> Result<Option<u32>> {
        let named = |i: u32| -> Result<bool> {
            let e = self.entries.reach(i as usize, &self.map)?;
            Ok(e.gate.load(Ordering::Acquire) != 0 && e.key.load(Ordering::Relaxed) == key)
        };
        let index = (key & ((1 << INDEX_BITS) - 1)) as u32;
        if key & CHOSEN_KEY != 0 && named(index)? {
            return Ok(Some(index));
        }
        // The owner may be hostile, so `MAX_REACH` bounds the look-up whatever the owner has written.
        let reach = self.head().reach.load(Ordering::Acquire).min(MAX_REACH);
        if reach > 0 {
            // The places of a key can lie anywhere in the hash table, so the whole hash table is mapped.
            self.keys.reach(KEY_PLACES - 1, &self.map)?;
        }
        let listed = self.places(key, reach).filter_map(|(_, place)| place.load(Ordering::Relaxed).checked_sub(1));
        for index in listed.map(|i| (i % ENTRIES as u64) as u32) {
            if named(index)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

/// The hash of a key: the finalizer of MurmurHash3. Callers choose keys as they like, so the bits must be spread.
fn scatter(key: u64) -> u64 {
    let x = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hmem::Allocation;

    #[test]
    fn keys_of_the_callers_choice_are_found_with_little_work() {
        let (table, fd) = Table::create().unwrap();
        let peer = Table::attach(fd.as_fd()).unwrap();
        // Half of what fits, numbered so that the low bits say nothing.
        let keys: Vec<u64> = (0..MAX_REGIONS as u64 / 2).map(|i| i << 32 | 5).collect();
        for (i, key) in keys.iter().enumerate() {
            table.list_key(*key, i as u32).unwrap();
            table.entry(i as u32).key.store(*key, Ordering::Relaxed);
            table.entry(i as u32).gate.store(1, Ordering::Release);
        }
        assert!(keys.iter().enumerate().all(|(i, key)| peer.find(*key).unwrap() == Some(i as u32)));
        assert_eq!((peer.find(1).unwrap(), peer.find(u64::MAX).unwrap()), (None, None));
        assert!(table.head().reach.load(Ordering::Relaxed) < MAX_REACH);
        table.entry(7).gate.store(0, Ordering::Release);
        table.unlist_key(keys[7], 7);
        assert_eq!((peer.find(keys[7]).unwrap(), peer.find(keys[8]).unwrap()), (None, Some(8)));
        // One key listed again and again, as by an owner that never closes: an error after `MAX_REACH` places, and no
        // longer look-up.
        for i in 0..300 {
            let full = table.list_key(3, i).is_err();
            assert!(!full || i >= 100, "{i}");
        }
        assert!(table.list_key(3, 0).is_err_and(|e| e.errno == errno::ENOSPC));
        // Hostile values of an owner are bounded.
        table.head().reach.store(u64::MAX, Ordering::Release);
        table.places(9, 1).for_each(|(_, place)| place.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(peer.find(9).unwrap(), None);
    }

    #[test]
    fn a_peer_maps_what_it_uses() {
        let (table, fd) = Table::create().unwrap();
        let peer = Table::attach(fd.as_fd()).unwrap();
        drop(fd);
        // Rows of every part, near and far; what was seen first is still there.
        let first = |index: usize| CHOSEN_KEY | index as u64;
        let seen: Vec<&Entry> = [0, 1023, 1024, 70_000, MAX_REGIONS, ENTRIES - 1]
            .into_iter()
            .map(|index| {
                table.entry(index as u32).key.store(first(index), Ordering::Relaxed);
                table.entry(index as u32).gate.store(1, Ordering::Release);
                assert_eq!(peer.find(first(index)).unwrap(), Some(index as u32));
                peer.entry(index as u32)
            })
            .collect();
        table.entry(0).gate.store(7, Ordering::Release);
        assert!(seen[0].gate.load(Ordering::Acquire) == 7 && peer.entry(0).gate.load(Ordering::Acquire) == 7);
        for id in [1, 500, MAX_FILES as u64 - 1] {
            table.file(id).size.store(id, Ordering::Relaxed);
            assert_eq!(peer.file(id).size.load(Ordering::Relaxed), id);
        }
        for index in [0, MAX_EXTENTS as u64 - 1] {
            table.extent(index).unwrap().len.store(index + 5, Ordering::Relaxed);
            assert_eq!(peer.extent(index).unwrap().len.load(Ordering::Relaxed), index + 5);
        }
    }

    #[test]
    fn only_a_table_of_this_process_has_exports() {
        let (table, fd) = Table::create().unwrap();
        let of = Allocation { base: 4096, len: 8192, ..Allocation::default() };
        table.exports.as_ref().unwrap().note(77, of);
        let seen = Table::attach(fd.as_fd()).unwrap();
        assert_eq!(seen.exports.as_ref().unwrap().allocation(77), Some(of));
        assert_eq!(seen.exports.as_ref().unwrap().allocation(78), None);
        assert!(seen.exports_of(process::pid()).is_some());
        assert!(seen.exports_of(process::pid() + 1).is_none() && seen.exports_of(0).is_none());
        table.exports.as_ref().unwrap().forget(77);
        assert_eq!(seen.exports.as_ref().unwrap().allocation(77), None);
        // The owner is gone. After the last mapping of its table, the table is not found any more.
        drop((table, seen));
        let orphan = Table::attach(fd.as_fd()).unwrap();
        assert!(orphan.exports.is_none() && orphan.exports_of(process::pid()).is_none());
    }
}
