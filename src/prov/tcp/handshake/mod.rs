// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The handshake by which a connection, a further stream or a rail begins: HELLO, CHALLENGE, INTRO, ANSWER.
//!
//! In: an address to dial, or a port to listen on, and a key if there is one. Out: a `Link`, the connected socket with the
//! version that both sides speak and the ciphers, and the peer's `Terms`. Nothing here blocks: every object has a descriptor
//! to wait for and a function that does what can be done now. Until its introduction has been checked, a caller is hostile.
//!
//! - `dial`: the dialer's side; read this file first
//! - `pending`: the listener's side of one connection attempt
//! - `acceptor`: a listening socket and its pending attempts, with their bounds
//! - `refused_keys`: reports of refused keys, at most one a second
//! - `exchange`: the parts that both sides share, and `Link`
//! - `lookup`: host names resolved on threads of the library
//! - `socket_options`: options of a connected socket

pub mod acceptor;
pub mod dial;
pub mod exchange;
pub mod lookup;
pub mod pending;
pub mod refused_keys;
pub mod socket_options;
