// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connectionless endpoints over connected ones: each peer is reached by a lane, an endpoint of a provider that is connected
//! when the peer is first used. Providers do not know this layer; it uses their contract, and implements it for `fabric`.
//!
//! `wire` is what two endpoints say, `matcher` joins messages and receives, `peer` and `state` are the data on which `send`,
//! `recv`, `list`, `own`, `known`, `wireup` and `progress` work, and `fast` for short messages; `ops`, `endpoint` and `provider` are
//! what the layer above calls. `connected` is an endpoint with one lane and no names, which `tagged` and `door` give tags.

mod atomic;
mod budget;
mod cache;
mod connected;
mod credit;
mod domain;
mod door;
mod endpoint;
mod fast;
mod fault;
mod kept;
mod known;
mod lent;
mod limits;
mod link;
mod list;
mod listen;
mod local;
pub mod matcher;
mod mix;
mod multi;
mod nodes;
mod ops;
mod outstanding;
mod own;
mod peer;
mod posted;
mod probe;
mod progress;
mod provider;
mod reader;
mod recv;
mod regions;
mod room;
mod rota;
mod rounds;
mod send;
mod state;
mod tagged;
#[cfg(test)]
mod tests;
pub mod wire;
mod wireup;

pub use limits::EAGER_MAX;
pub use provider::{candidates, get};
pub use tagged::{candidates as connected_candidates, get as connected};
