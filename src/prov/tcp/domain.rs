// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the tcp provider: its regions, its allocations, its key, and its endpoints.

use super::pollset::PollSet;
use super::state::State;
use crate::error::Result;
use crate::hmem::Site;
use crate::mr::alloc::Allocations;
use crate::mr::region::Modes;
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::info::{Info, PROGRESS_AUTO, permitted};
use crate::prov::op::Iov;
use crate::prov::tcp::limits::PATHS;
use crate::prov::tcp::memory::mr::Regions;
use crate::prov::tcp::secure::auth;
use crate::prov::tcp::secure::auth::Key;
use crate::sync::serial::{Rank, Serial, Threading};
use crate::sys::usercopy::UserCopy;
use std::sync::Arc;

/// A domain, shared by its endpoints.
pub struct Domain {
    pub threading: Threading,
    pub modes: Modes,
    /// A thread of the library drives the endpoints, so posted operations are sent at once.
    pub auto: bool,
    pub regions: Serial<Regions>,
    /// Fault injection.
    pub(super) faults: Option<Box<Plan>>,
    /// The key that both sides of a connection must prove, if there is one.
    pub key: Option<Key>,
    pub(super) memory: Allocations,
    pub pollset: PollSet,
    /// The domain's endpoints. A region that closes may have to wait for their copies.
    pub(super) endpoints: Serial<Vec<Arc<Serial<State>>>>,
}

impl Domain {
    pub fn open(info: &Info, threading: Threading) -> Result<Domain> {
        let modes = Modes {
            virt_addr: info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0,
            prov_key: info.mr_mode & flags::MR_MODE_PROV_KEY != 0,
            paths: permitted(PATHS),
        };
        Ok(Domain {
            threading,
            modes,
            auto: info.progress == PROGRESS_AUTO,
            regions: Serial::new(threading, Rank::Regions, Regions::new(Arc::new(UserCopy::new()?))?),
            faults: Plan::of("tcp"),
            key: auth::key(info)?,
            memory: Allocations::doubled(),
            pollset: PollSet::default(),
            endpoints: Serial::new(threading, Rank::Leaf, Vec::new()),
        })
    }

    pub fn add(&self, state: &Arc<Serial<State>>) {
        self.endpoints.lock().push(state.clone());
    }

    pub fn remove(&self, state: &Arc<Serial<State>>) {
        self.endpoints.lock().retain(|s| !Arc::ptr_eq(s, state));
    }

    /// The device or host that an operation's local pieces lie on, by its `desc`. Fails if the region's memory was freed meanwhile.
    pub fn local_site(&self, desc: u64, local: &[Iov]) -> Result<Site> {
        let found = self.regions.lock().local(desc, local)?;
        found.check()
    }
}
