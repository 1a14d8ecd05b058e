// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists that are prepared once and posted many times.

use super::endpoint::Endpoint;
use crate::error::Result;
use crate::prov::flags;
use crate::prov::op::{Common, Dir};
use std::sync::Arc;

pub use crate::prov::list::{Block, LIST_MAX, List};

/// A prepared list, and the endpoint on which it is posted.
pub struct Prepared {
    ep: Arc<Endpoint>,
    list: Arc<List>,
    /// The fields that all posts of the list have in common.
    common: Common,
}

impl Prepared {
    pub fn new(ep: Arc<Endpoint>, mut list: List, common: Common) -> Arc<Prepared> {
        list.keep();
        Arc::new(Prepared { ep, list: Arc::new(list), common })
    }

    /// Posts the list as a read or a write.
    pub fn post(&self, dir: Dir, op_flags: u64, data: u64, context: usize) -> Result<()> {
        let data = if op_flags & flags::REMOTE_CQ_DATA != 0 { data } else { 0 };
        self.ep.list(dir, &self.list, &Common { context, flags: op_flags, data, ..self.common })
    }
}
