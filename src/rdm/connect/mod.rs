// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an address to a connected lane, and back: this folder finds a peer, dials it, accepts its call, and loses it.
//!
//! The input is indexes of the address vector, names, and requests of callers. The result is a peer whose lane is ready,
//! or the reason why there is none. Read `wireup` first: it dials and accepts. `events` handles the answers of the lanes,
//! and `end` ends everything that concerns a peer when its lane is lost. `peer_table` finds the record of a peer, `listen`
//! opens the listeners of all lanes at one address, and `same_host` explains why the shm lane does not lead to a peer.
//! `connected` connects endpoints of type MSG, which have one lane only, and `matching_listener` is the passive endpoint
//! for them.

pub mod connected;
pub mod end;
pub mod events;
pub mod listen;
pub mod matching_listener;
pub mod peer_table;
pub mod same_host;
pub mod wireup;
