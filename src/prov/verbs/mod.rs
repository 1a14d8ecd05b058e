// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RDMA NICs through libibverbs: InfiniBand, RoCE and iWARP. `docs/verbs.md` follows an operation through it.

mod abi;
pub mod address;
mod attach;
mod backing;
mod bounce;
pub mod cm_event;
pub mod cm_id;
mod conn;
mod constants;
mod cq;
pub mod device;
mod domain;
mod endpoint;
mod entry_points;
pub mod event;
pub mod ext;
mod fault;
pub mod gid;
mod greeting;
mod info;
pub mod library;
mod mr;
pub mod near;
pub mod netdev;
mod nic;
mod object;
mod ops;
mod pep;
mod populate;
mod post;
mod qp;
mod quick;
mod ring;
mod service;
mod staged;
mod state;
pub mod status;
mod steps;
mod take;
mod watch;

pub use cq::Cq;
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use greeting::DATA_MAX;
pub use pep::Listener;

use super::info::{Ask, Info, Nic};
use super::{Offer, Provider};
use crate::error::Result;
use crate::sync::serial::Threading;
use std::sync::Arc;

/// Largest message or RMA operation: what the packets of the transport count.
pub const MAX_MSG: usize = 1 << 31;
/// The most bytes that hints may ask to have travel inside the work request.
pub const INLINE_MAX: usize = 1024;
/// How long operations may still be answered after the peer's goodbye.
const ANSWER_NS: u64 = 250_000_000;
/// How long a queue pair in error may take to give everything back before it is destroyed.
const DRAIN_NS: u64 = 1_000_000_000;

/// The provider.
pub struct Verbs;

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn offer(&self) -> Offer {
        info::offer()
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        info::candidates(ask)
    }

    fn check_address(&self, address: &str) -> Result<()> {
        info::check_address(address)
    }

    fn nic(&self, info: &Info, near: Option<&str>) -> Result<Nic> {
        nic::nic(info, near)
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn super::Domain>> {
        Ok(Domain::open(info, threading)?)
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn super::Listener>> {
        Ok(Box::new(Listener::open(info.src_addr.as_deref())?))
    }
}
