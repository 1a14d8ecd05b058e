// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an address to a connected lane, and back: finding a peer, dialing it, accepting its call, and losing it.
//!
//! In come indexes of the address vector, names, and requests of callers. Out goes a peer whose lane is ready, or the reason why there is
//! none. Read `wireup` first: it dials and accepts, and ends everything that concerns a peer when its lane is lost. `peer_table` finds the
//! record of a peer, `listen` opens the listeners of all lanes at one address, and `same_host` explains when the shm lane does not lead to
//! a peer. `connected` connects endpoints of type MSG, which have one lane only; `matching_listener` is their passive endpoint.

pub mod connected;
pub mod listen;
pub mod matching_listener;
pub mod peer_table;
pub mod same_host;
pub mod wireup;
