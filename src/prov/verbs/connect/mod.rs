// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning of a connection.
//!
//! `cm.rs` connects an endpoint, by rdma_cm or by addresses that the caller exchanged, and handles the events of the
//! connection manager until the end of the connection; read it first. `pep.rs` is the listening side: it turns
//! connection requests into `Request`s, which `cm.rs` accepts. `mpa.rs` makes the two sides of a lane over iWARP send
//! their first parcels in the required order.
//!
//! Addresses, connection requests and the events of rdma_cm come in; a connected queue pair and events for the caller
//! go out. The state of an attempt is in `state/conn.rs`, and the header of the private data is in `wire/greeting.rs`.

pub(in crate::prov::verbs) mod cm;
pub(in crate::prov::verbs) mod mpa;
pub(in crate::prov::verbs) mod pep;
