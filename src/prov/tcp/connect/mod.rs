// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting an endpoint: from the call to a connection, and from the connection to its further streams.
//!
//! In: the calls connect, connect by address, accept and listen; links from `handshake`. Out: `Conn` in the endpoint's state,
//! events of the connection, or the reason why there is none.
//!
//! - `cm`: the phases of an endpoint from connect to its end; read this file first
//! - `pep`: the passive endpoint
//! - `info`: answers to `gdrfab_getinfo()`
//! - `streams`: further streams: agreed on, dialed, watched and given up

pub mod cm;
pub mod info;
pub mod pep;
pub mod streams;
