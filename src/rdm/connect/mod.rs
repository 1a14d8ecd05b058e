// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an address to a connected lane, and back: finding a peer, dialing it, accepting its call, and losing it.
//!
//! In come indexes of the address vector, names, and requests of callers; out goes a peer whose lane is ready, or the reason why there
//! is none. Read `wireup` first: it dials, accepts, and ends what concerns a peer that is gone. `peer_table` finds the record of
//! a peer, `listen` opens the listeners of all lanes at one address, and `same_host` decides whether the local lane may lead to a peer.
//! `connected` does the same for an endpoint of type MSG, which has one lane only; `matching_listener` is its passive endpoint.

pub mod connected;
pub mod listen;
pub mod matching_listener;
pub mod peer_table;
pub mod same_host;
pub mod wireup;
