// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What several threads or processes touch at once: the ring, the gate between a copy and a
//! closing region, shared claims on a large copy, who sleeps here and at the peer, and the lock that a caller may promise
//! away.

pub mod area;
pub mod cache_line;
pub mod claim;
pub mod consumer;
pub mod cursor;
pub mod gate;
pub mod header;
pub mod primitive;
pub mod producer;
pub mod ring;
pub mod serial;
pub mod sleep;
pub mod wakeup;
