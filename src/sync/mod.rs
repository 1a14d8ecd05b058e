// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State that several threads or processes access at the same time, with the memory ordering that this needs. The loom
//! models (`tests/loom`) check this very code.
//!
//! `ring.rs` describes the message ring between two processes: `producer.rs` writes it, `consumer.rs` and `cursor.rs`
//! read it, over `header.rs`, `cache_line.rs` and `area.rs` (bytes of longer messages). `gate.rs` is the gate between a
//! copy and a closing region, `claim.rs` the shared claims on the chunks of a large copy, `sleep.rs` and `wakeup.rs`
//! wake a peer or a thread of this process, `serial.rs` is the lock that a caller may promise not to need, and
//! `primitive.rs` selects the atomics. Read `ring.rs` first.

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
