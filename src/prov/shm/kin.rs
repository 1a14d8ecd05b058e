// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that are domains of this very process. A driver does not open a handle in the process that made it, and need
//! not: the owner's address serves. It is taken from the owner's private notes, never from shared memory, so whoever
//! presents another's table gains nothing.

use super::table::Table;
use crate::hmem::Allocation;
use crate::sys::mem::FileId;
use crate::sys::process;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a domain has exported of devices, by file id.
#[derive(Default)]
pub struct Kin(Mutex<HashMap<u64, Allocation>>);

/// The domains of this process, by the file of their tables. While somebody holds one of these, he holds a mapping
/// of that file too, so its number names no other.
static ALL: Mutex<Vec<(FileId, Weak<Kin>)>> = Mutex::new(Vec::new());

/// A child of fork() may find the lock held by a thread that it does not have; then it has no kin.
const PATIENCE: Duration = Duration::from_secs(1);

impl Kin {
    /// A domain's notes, found from now on by its table.
    pub fn announce(table: FileId) -> Arc<Kin> {
        let kin = Arc::new(Kin::default());
        if let Some(mut all) = ALL.try_lock_for(PATIENCE) {
            all.retain(|(_, other)| other.strong_count() > 0);
            all.push((table, Arc::downgrade(&kin)));
        }
        kin
    }

    /// The domain whose table this is, if this process made it.
    pub fn find(table: FileId) -> Option<Arc<Kin>> {
        ALL.try_lock_for(PATIENCE)?.iter().find(|(id, _)| *id == table).and_then(|(_, kin)| kin.upgrade())
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

/// The peer's notes, if it is a domain of this process: the kernel says that the other end of its socket is this
/// process's, and its table was made here. Either alone may be another process's, which has a table as a peer of it, or
/// a socket by fork or as a passed descriptor.
pub fn of_peer(table: &Table, pid: i32) -> Option<Arc<Kin>> {
    table.kin.clone().filter(|_| pid == process::pid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_a_table_of_this_process_has_kin() {
        let (table, fd) = Table::create().unwrap();
        let of = Allocation { base: 4096, len: 8192, ..Allocation::default() };
        table.kin.as_ref().unwrap().note(77, of);
        let seen = Table::attach(fd.as_fd()).unwrap();
        assert_eq!(seen.kin.as_ref().unwrap().allocation(77), Some(of));
        assert_eq!(seen.kin.as_ref().unwrap().allocation(78), None);
        assert!(of_peer(&seen, process::pid()).is_some());
        assert!(of_peer(&seen, process::pid() + 1).is_none() && of_peer(&seen, 0).is_none());
        table.kin.as_ref().unwrap().forget(77);
        assert_eq!(seen.kin.as_ref().unwrap().allocation(77), None);
        // The owner is gone, and with the last of its table nobody finds it.
        drop((table, seen));
        let orphan = Table::attach(fd.as_fd()).unwrap();
        assert!(orphan.kin.is_none() && of_peer(&orphan, process::pid()).is_none());
    }
}
