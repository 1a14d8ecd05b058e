// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tcp provider: the same fabric where there is no RDMA NIC, over plain sockets, between hosts.
//!
//! `docs/tcp-wire.md` describes what two endpoints say to each other. A connection begins in `shake` (dialer) and
//! `stranger` (listener), in the words of `hello`, proven by `auth`, and is a stream of frames from then on: `tx` and `body`
//! send them, `rx` and `handle` take them, `slots` bring device memory to and from them. `streams` are further connections
//! for long bodies, which `scatter` and `gather` send and take.

pub mod address;
pub mod auth;
mod body;
mod cm;
mod conn;
mod crowd;
mod domain;
mod endpoint;
mod fault;
pub mod frame;
mod gather;
pub mod greeter;
mod handle;
pub mod hello;
pub mod info;
mod locate;
mod mr;
mod msg;
mod ops;
mod pep;
mod progress;
mod quick;
mod rma;
mod rx;
mod scatter;
pub mod shake;
mod slots;
mod state;
pub mod stranger;
mod streams;
mod tx;

pub use address::{Address, SCHEME};
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use greeter::{Greeter, Request};
pub use hello::{ADDRESS_MAX, DATA_MAX, Purpose, Terms};
pub use mr::MAX_REGIONS;
pub use pep::Listener;
pub use shake::{Dial, Dialed};
pub use stranger::Stranger;

use super::info::{Ask, Info};
use super::{Offer, Provider};
use crate::error::Result;
use crate::sync::serial::Threading;
use std::sync::Arc;

/// Largest message or RMA operation.
pub const MAX_MSG: usize = 1 << 40;
/// Bytes that an inject call takes.
pub const INJECT_SIZE: usize = 1024;
/// Operations that can be outstanding.
pub const TX_SIZE: usize = 1024;
/// Receives that can be posted.
pub const RX_SIZE: usize = 16384;

/// The provider.
pub struct Tcp;

impl Provider for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
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

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn super::Domain>> {
        Ok(Arc::new(Domain::open(info, threading)?))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn super::Listener>> {
        Ok(Box::new(Listener::open(info)?))
    }
}
