// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rails: several TCP connections, over different addresses of both hosts, that carry one stream of frames together.
//!
//! In: the bytes of that stream, and the pairs of addresses to use. Out: the same bytes in the same order at the peer, as long
//! as one rail works: the stream is cut into numbered segments, and segments that were lost with a rail are sent again over
//! another.
//!
//! - `set`: `Rails`, all rails of a connection: sending, receiving, losing and measuring them; read this file first
//! - `schedule`: the rail that carries the next segment
//! - `reorder`: segments put back into order
//! - `connection`: one rail's TCP connection
//! - `connector`: dials and accepts rails, and dials lost ones again
//! - `transport`: the stream's two ends (`tx`, `rx`) see rails and sealed sockets through this interface

pub mod connection;
pub mod connector;
pub mod reorder;
pub mod schedule;
pub mod set;
pub mod transport;
