// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the program's registered regions in one domain.

use super::registration_cache::RegistrationCache;
use crate::error::{Error, Result};
use crate::mr::key::{desc_fits, desc_index};
use crate::mr::{RegionId, region};
use crate::prov::queue::Counter;
use std::collections::HashMap;
use std::sync::Arc;

/// A region as the endpoints of this process copy from it and to it. A region that was given as a file descriptor has no
/// pieces. A copy holds the region open without the table's lock, because a driver may take long.
pub type LocalRegion = region::Region<(), ()>;

/// A region that is registered with all lanes.
pub struct Region {
    pub generation: u64,
    /// The region in each lane's domain; `None` once it is closed there.
    pub ids: Vec<Option<RegionId>>,
    pub start: usize,
    pub local: Arc<LocalRegion>,
    /// Counts writes to the region.
    pub counter: Option<Arc<Counter>>,
    /// Peers may read the region, and it is in one piece.
    pub readable: bool,
}

#[derive(Default)]
pub struct Regions {
    pub all: Vec<Option<Region>>,
    pub free: Vec<u32>,
    pub count: u64,
    /// Index in `all` of each open region, by key.
    pub by_key: HashMap<u64, u32>,
    /// Further registrations of the same memory with cards, made for messages.
    pub cache: RegistrationCache,
}

impl Regions {
    /// The region that a descriptor names.
    pub fn named(&self, desc: u64) -> Result<&Region> {
        let region = self.all.get(desc_index(desc) as usize).and_then(Option::as_ref);
        let found = region.filter(|r| desc_fits(desc, r.generation));
        found.ok_or_else(|| Error::invalid("desc: names no open region of this domain"))
    }

    pub fn get(&mut self, id: RegionId) -> Result<&mut Region> {
        let region = self.all.get_mut(id.index() as usize).and_then(Option::as_mut);
        region.filter(|r| r.generation == id.generation).ok_or_else(|| Error::invalid("mr: no open region of this domain"))
    }
}
