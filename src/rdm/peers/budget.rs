// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that the endpoints of a domain count together, so that many of them take no more than one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An endpoint's share, which it gives back when it ends.
#[derive(Default)]
pub struct BudgetShare {
    all: Arc<AtomicU64>,
    own: u64,
}

impl BudgetShare {
    pub fn of(all: &Arc<AtomicU64>) -> BudgetShare {
        BudgetShare { all: all.clone(), own: 0 }
    }

    /// What all have. Relaxed, here and below: a number, by which nothing else is ordered.
    pub fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    pub fn add(&mut self, more: u64) {
        self.all.fetch_add(more, Ordering::Relaxed);
        self.own += more;
    }

    /// As `add`, unless all would have more than `most` then.
    pub fn add_within(&mut self, more: u64, most: u64) -> bool {
        let sum = |all: u64| all.checked_add(more).filter(|sum| *sum <= most);
        let added = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok();
        self.own += if added { more } else { 0 };
        added
    }

    /// Gives so much back, if it has as much.
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
