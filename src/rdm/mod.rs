// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connectionless endpoints over connected ones: each peer is reached by a lane, an endpoint of a provider that is connected
//! when the peer is first used. Providers do not know this layer; it uses their contract, and implements it for `fabric`.
//!
//! `provider`, `domain` and `endpoint` answer the calls of the layer above, `ops` its posting calls. `state` holds the data of one
//! endpoint, on which the rooms work: `connect` finds and reaches peers, `transfer` moves messages and operations, `matching` joins
//! messages and receives, `peers` has the records, `memory` what peers may read, and `wire` what endpoints say to each other.
//! `connected_provider` is the same for endpoints of type MSG with tags: one lane, and no names. Read `state` first.

mod connect;
mod connected_provider;
mod cq_reader;
mod domain;
mod endpoint;
mod limits;
pub mod matching;
mod memory;
mod ops;
mod peers;
mod provider;
mod state;
#[cfg(test)]
mod tests;
mod transfer;
pub mod wire;

pub use connected_provider::{candidates as connected_candidates, get as connected};
pub use limits::EAGER_MAX;
pub use provider::{candidates, get};
