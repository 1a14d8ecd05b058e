// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connectionless endpoints (type RDM), and connected endpoints with tags. One connectionless endpoint reaches many
//! peers. A lane leads to each peer: a connected endpoint of a provider (shm, verbs, tcp), which this layer opens when
//! the program first uses the peer. The providers do not know this layer. This layer uses the contract of the providers
//! (`prov`), and implements the same contract for `fabric`.
//!
//! The files use these words:
//!
//! * lane: a way to reach peers. A domain has a list of lanes, one per provider, in which `lane_index` names one. The lane to
//!   one peer is a connected endpoint of that provider (`peers::link`);
//! * parcel: a packet on a lane (`wire::parcel`);
//! * eager message: a message whose bytes are in its parcel;
//! * offer: a parcel that announces a longer message. The sender exposes the message's memory to the peer, the receiver
//!   reads it by RMA and answers with the parcel DONE;
//! * grant: the bytes of eager messages that one side lets the other send before they are received. Credit is the unused
//!   part of a grant;
//! * source: the peer's index in the address vector, or a number from `peer::UNKNOWN` on if the vector does not name the
//!   peer;
//! * call: a connection request from a peer. An unlisted caller is a peer that the address vector does not name;
//! * turn: one call of progress. Only some turns poll rare matters: callers, lanes that are being connected, events,
//!   deadlines.
//!
//! `provider`, `domain` and `endpoint` answer the calls of `fabric`, and `ops` the calls that post. `state` holds the
//! data of one endpoint, which is made of `parts`. The folders work on this data: `connect` finds and reaches peers,
//! `transfer` moves messages and operations, `matching` joins messages and receives, `peers` has the records, `memory`
//! registers memory that peers may read, and `wire` is the format of the packets between endpoints. `connected_provider`
//! adds tags to endpoints of type MSG, which have one lane, and neither names nor an address vector. Read `state` first.

mod connect;
mod connected_provider;
mod cq_reader;
mod domain;
mod endpoint;
mod limits;
pub mod matching;
mod memory;
mod ops;
mod parts;
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
