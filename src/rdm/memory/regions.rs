// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a domain.

use super::registration_cache::Cache;
use crate::error::{Error, Result};
use crate::mr::key::{desc_fits, desc_index};
use crate::mr::{RegionId, region};
use crate::prov::queue::Counter;
use std::collections::HashMap;
use std::sync::Arc;

/// A region as this process itself reaches it; it has no pieces if it was given as a descriptor. Who copies enters it, without
/// the regions' lock: a driver may take its time.
pub type LocalRegion = region::Region<(), ()>;

pub struct Region {
    pub generation: u64,
    /// By lane; `None` once it is closed there.
    pub ids: Vec<Option<RegionId>>,
    pub start: usize,
    pub local: Arc<LocalRegion>,
    /// Counts writes to it.
    pub counter: Option<Arc<Counter>>,
    /// Peers may read it, and it is in one piece.
    pub readable: bool,
}

#[derive(Default)]
pub struct Regions {
    pub all: Vec<Option<Region>>,
    pub free: Vec<u32>,
    pub count: u64,
    /// Open ones by their keys.
    pub by_key: HashMap<u64, u32>,
    /// What of them was registered once more for messages.
    pub cache: Cache,
}

impl Regions {
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
