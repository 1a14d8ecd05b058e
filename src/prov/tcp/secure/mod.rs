// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys, the Noise handshake, and sealed records: all cryptography of the provider.
//!
//! In: a key of the program (`auth_key`) or of a file, and the bytes of the handshake. Out: a proof that the peer knows the
//! key, and a pair of ciphers for the connection's two directions. Without a key none of this is used.
//!
//! - `auth`: the key that a domain's connections begin with; read this file first
//! - `known`: a host's own key pair and the hosts that it trusts, as a file
//! - `noise`: the Noise handshake, in memory
//! - `seal`: records that are encrypted and authenticated, in memory
//! - `sealed`: records written to and read from a socket

pub mod auth;
pub mod known;
pub mod noise;
pub mod seal;
pub(in crate::prov::tcp) mod sealed;
