// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations: posting them to the device, and ending them with the device's completions.
//!
//! `post.rs` turns a read, write or message into a work request, and `recv.rs` posts receives and handles arrivals;
//! read these two first. `fast.rs` and `poll.rs` are their short forms for the usual case: one registered piece and one
//! plain completion. `table.rs` puts the short forms into the tables of entry points through which the C functions
//! jump. `atomic.rs` posts atomics, and `list.rs` posts lists of blocks. `staged_transfer.rs` moves bytes through
//! buffers of the peer where the peer's device does not reach the memory; operations that must not overtake such a
//! transfer wait behind it. `held_operations.rs` applies fault injection.
//!
//! Operations come from `calls.rs` and `table.rs`; completions come from `cq.rs` by `shared.rs`. Most functions are methods of `State`.

pub(in crate::prov::verbs) mod atomic;
pub(in crate::prov::verbs) mod fast;
pub(in crate::prov::verbs) mod held_operations;
pub(in crate::prov::verbs) mod list;
pub(in crate::prov::verbs) mod poll;
pub(in crate::prov::verbs) mod post;
pub(in crate::prov::verbs) mod recv;
pub(in crate::prov::verbs) mod staged_transfer;
pub(in crate::prov::verbs) mod table;
