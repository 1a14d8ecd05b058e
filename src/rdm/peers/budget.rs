// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A count of bytes that all endpoints of a domain share. A limit on the count holds for all of them together, so that
//! many endpoints take no more memory than a single endpoint may.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One endpoint's part of a shared count. The drop gives the part back.
#[derive(Default)]
pub struct BudgetShare {
    all: Arc<AtomicU64>,
    own: u64,
}

impl BudgetShare {
    pub fn of(all: &Arc<AtomicU64>) -> BudgetShare {
        BudgetShare { all: all.clone(), own: 0 }
    }

    /// The count of all endpoints. All accesses are relaxed: the count is only compared with limits, and orders nothing else.
    pub fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    pub fn add(&mut self, more: u64) {
        self.all.fetch_add(more, Ordering::Relaxed);
        self.own += more;
    }

    /// Adds `more` unless the shared count would exceed `most`.
    pub fn add_within(&mut self, more: u64, most: u64) -> bool {
        let sum = |all: u64| all.checked_add(more).filter(|sum| *sum <= most);
        let added = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok();
        self.own += if added { more } else { 0 };
        added
    }

    /// Gives back up to `less` bytes of this endpoint's part.
    pub fn give_back(&mut self, less: u64) {
        let less = less.min(self.own);
        self.all.fetch_sub(less, Ordering::Relaxed);
        self.own -= less;
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.give_back(self.own);
    }
}
