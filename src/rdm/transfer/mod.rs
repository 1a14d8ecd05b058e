// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages and operations: sending, receiving, RMA, atomics and lists, and the progress that drives them.
//!
//! The input is calls of the program, and parcels and results of the lanes. The output is parcels and operations on the
//! lanes, and entries in the program's queues. Read `send` and `recv` first, where operations and receives are posted, then
//! `progress`. `arrive` takes the parcels of the lanes, `deliver` brings a message into its receive, `results` takes the
//! results of the lanes, and `complete` ends operations and receives. `fast` and `fast_arrive` are the short way of small
//! messages, `cancel` ends operations early, and `probe` carries out PEEK, CLAIM and DISCARD. `loopback` copies from an
//! endpoint to itself, `atomic` and `list` hand their operations to the lane, and `fault` is fault injection.
//!
//! Most functions are methods of `state::State`. A file calls only methods of files below it: `progress` and the files that
//! post stand at the top, below them the folder `connect`, then `arrive` and `results`, then `deliver`, and `complete` at
//! the bottom.

pub mod arrive;
pub mod atomic;
pub mod cancel;
pub mod complete;
pub mod deliver;
pub mod fast;
pub mod fast_arrive;
pub mod fault;
pub mod list;
pub mod loopback;
pub mod probe;
pub mod progress;
pub mod recv;
pub mod results;
pub mod send;
