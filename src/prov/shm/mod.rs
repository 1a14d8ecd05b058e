// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shm provider: the fabric between processes of one host, with nothing installed and nothing left behind.
//!
//! In: the calls of the layer above, through the traits of `crate::prov`. Out: messages, reports and copied bytes in memory that
//! the peer shares, specified by `docs/shm-format.md`, and completions in the caller's queues.
//!
//! `provider` and `endpoint` implement the traits; `lane` makes an endpoint a lane of a connectionless one. `domain` is the data
//! of a domain. Each room uses only the rooms that stand before it in this list (and `mod.rs` of each says more):
//!
//! - `wire`: formats of addresses, of the control socket, and of shared memory
//! - `handshake`: accepting a connection and checking the peer
//! - `memory`: regions, and the table in which peers find them
//! - `peer`: the peer's memory, and what two connected endpoints share
//! - `state`: the data of an endpoint and of its connection
//! - `copy`: moving bytes by each path
//! - `connect`: from a connect or accept call to a connection, and its end
//! - `ops`: operations, those of this side and of the peer, and progress

mod connect;
mod copy;
mod domain;
mod endpoint;
mod fault;
mod handshake;
mod lane;
mod limits;
mod memory;
mod ops;
mod peer;
mod provider;
mod state;
mod wire;

pub use connect::pep::Listener;
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use handshake::acceptor::Request;
pub use limits::{INJECT_SIZE, MAX_MSG, RX_SIZE, TX_SIZE};
pub use memory::table::MAX_REGIONS;
pub use provider::Shm;
pub use wire::address::{SCHEME, check_address};
pub use wire::frame::{DATA_MAX, NAME_MAX};

const _: () = assert!(DATA_MAX == super::info::CM_DATA_MAX && NAME_MAX + SCHEME.len() < super::info::ADDR_MAX);
