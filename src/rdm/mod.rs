// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connectionless endpoints (type RDM). One endpoint reaches many peers: each peer is reached by a lane, a connected endpoint of a
//! provider, which is opened when the peer is first used. The providers do not know this layer. It is built on their contract (`prov`), and
//! implements the same contract for `fabric`.
//!
//! `provider`, `domain` and `endpoint` answer the calls of `fabric`, and `ops` those that post. `state` holds the data of one endpoint, on
//! which the rooms work: `connect` finds and reaches peers, `transfer` moves messages and operations, `matching` joins messages and
//! receives, `peers` has the records, `memory` registers what peers may read, and `wire` is the format of what endpoints send each other.
//! `connected_provider` adds tags to endpoints of type MSG, with one lane and no names. Read `state` first.

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
