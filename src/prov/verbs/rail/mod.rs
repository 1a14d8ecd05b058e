// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol of a connection over several ports (rails).
//!
//! `join.rs` makes, connects and probes the queue pair of a rail. `protocol.rs` brings further rails up and down, and
//! handles the messages about rails and keys between the two sides. `striping.rs` cuts long reads and writes into parts
//! and gives each part to the rail that will finish the part first. `failover.rs` keeps the connection when the first
//! rail is lost, and posts its operations again when the port of the first rail is back.
//!
//! The data of these files is in `state/rails.rs`, `state/rail.rs`, `state/stripe.rs` and `state/rail_keys.rs`.
//! Progress and completions come in (`rails_turn`, `failover_turn`, `complete_rail`); work requests and messages to the
//! peer go out. Read `protocol.rs` first and `failover.rs` last.

pub(in crate::prov::verbs) mod failover;
pub(in crate::prov::verbs) mod join;
pub(in crate::prov::verbs) mod protocol;
pub(in crate::prov::verbs) mod striping;
