// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device allocations that each domain of this process has exported, for peers in the same process.
//!
//! A driver refuses to open an exported handle in the process that exported the allocation. A peer in that process
//! needs no handle: the owner's address is valid there too. The address comes from the owner's own list and never from
//! shared memory, so a process that presents the table of another process gains nothing.

use crate::hmem::Allocation;
use crate::sys::mem::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The device allocations that a domain has exported, by file id.
#[derive(Default)]
pub struct Exports(Mutex<HashMap<u64, Allocation>>);

/// The domains of this process, each by the identity of the memory file of its region table. The holder of an `Exports`
/// also holds a mapping of that file, so the kernel gives the file's inode number to no other file.
static ALL: Mutex<Vec<(FileId, Weak<Exports>)>> = Mutex::new(Vec::new());

/// Longest wait for the lock. In a child of fork(), a thread that exists only in the parent may hold the lock for ever;
/// the child then finds no exports.
const PATIENCE: Duration = Duration::from_secs(1);

impl Exports {
    /// The list of a new domain, which others find by the domain's table.
    pub fn announce(table: FileId) -> Arc<Exports> {
        let exports = Arc::new(Exports::default());
        if let Some(mut all) = ALL.try_lock_for(PATIENCE) {
            all.retain(|(_, other)| other.strong_count() > 0);
            all.push((table, Arc::downgrade(&exports)));
        }
        exports
    }

    /// The list of the domain whose table this is, if this process made it.
    pub fn find(table: FileId) -> Option<Arc<Exports>> {
        ALL.try_lock_for(PATIENCE)?.iter().find(|(id, _)| *id == table).and_then(|(_, exports)| exports.upgrade())
    }

    pub fn note(&self, file: u64, of: Allocation) {
        self.0.lock().insert(file, of);
    }

    pub fn forget(&self, file: u64) {
        self.0.lock().remove(&file);
    }

    pub fn allocation(&self, file: u64) -> Option<Allocation> {
        self.0.lock().get(&file).copied()
    }
}
