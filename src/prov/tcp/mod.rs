// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tcp provider: the same fabric where there is no RDMA NIC, over plain sockets, between hosts.
//!
//! `docs/tcp-wire.md` describes what two endpoints say to each other. A connection begins in `shake` (dialer) and
//! `stranger` (listener), in the words of `hello`, proven by `auth`, and is a stream of frames from then on.

pub mod address;
pub mod auth;
pub mod greeter;
pub mod hello;
pub mod info;
pub mod pep;
pub mod shake;
pub mod stranger;

pub use address::{Address, SCHEME};
pub use greeter::{Greeter, Request};
pub use hello::{ADDRESS_MAX, DATA_MAX, Purpose, Terms};
pub use info::{candidates, check_address, offer};
pub use pep::PassiveEndpoint;
pub use shake::{Dial, Dialed};
pub use stranger::Stranger;

/// Largest message or RMA operation.
pub const MAX_MSG: usize = 1 << 40;
/// Bytes that an inject call takes.
pub const INJECT_SIZE: usize = 1024;
/// Operations that can be outstanding.
pub const TX_SIZE: usize = 1024;
/// Receives that can be posted.
pub const RX_SIZE: usize = 16384;
/// Regions that a domain can have.
pub const MAX_REGIONS: usize = 1 << 20;
