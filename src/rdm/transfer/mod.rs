// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages and operations: sending, receiving, RMA, atomics and lists, and the progress that drives them.
//!
//! The input is calls of the program and whatever the lanes bring. The output is parcels and operations on the lanes, and
//! entries in the program's queues. Read `send` and `recv` first, then `progress`. `fast` is the short way of small
//! messages, `cancel` ends operations early, and `probe` carries out PEEK, CLAIM and DISCARD. `loopback` copies from an endpoint to itself, `atomic` and `list` hand their
//! operations to the lane, and `fault` is fault injection. Most functions are methods of `state::State`.

pub mod atomic;
pub mod cancel;
pub mod fast;
pub mod fault;
pub mod list;
pub mod loopback;
pub mod probe;
pub mod progress;
pub mod recv;
pub mod send;
