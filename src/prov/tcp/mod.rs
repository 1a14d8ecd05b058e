// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tcp provider: the fabric over plain sockets, between any two hosts, without an RDMA card.
//!
//! In: the calls of the layer above, through the traits of `crate::prov`. Out: frames on TCP connections, specified by
//! `docs/tcp-wire.md`, and completions in the caller's queues.
//!
//! `provider` and `endpoint` implement the traits. `state` is an endpoint's data, and `conn` the data of its
//! connection. An endpoint's methods are in the rooms below. A room uses only rooms that stand before it in this list
//! (and the room's `mod.rs` says more):
//!
//! - `wire`: formats of addresses, handshake, frames and segments
//! - `secure`: keys, the Noise handshake, sealed records
//! - `handshake`: dialing and accepting one connection
//! - `rail`: several connections that carry one stream of frames
//! - `memory`: regions, and staging of device memory
//! - `stream`: sending and receiving frames and their bodies
//! - `connect`: from a connect or accept call to a connection, and its further streams
//! - `ops`: operations, those of this side and of the peer, and progress

mod conn;
mod connect;
mod domain;
mod endpoint;
mod fault;
mod handshake;
mod lane;
mod limits;
mod locked;
mod memory;
mod ops;
mod pollset;
mod provider;
mod rail;
mod recv;
mod refusal;
pub mod secure;
mod state;
mod stream;
pub mod wire;

pub use connect::pep::Listener;
pub use domain::Domain;
pub use handshake::acceptor::{HandshakeAcceptor, Request};
pub use handshake::dial::{Dial, Dialed};
pub use handshake::exchange::Link;
pub use locked::Endpoint;
pub use memory::mr::MAX_REGIONS;
pub use provider::Tcp;
pub use wire::address::{Address, SCHEME};
pub use wire::hello::{ADDRESS_MAX, DATA_MAX, HIGHEST, Purpose, Terms};
