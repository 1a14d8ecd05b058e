// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning of a connection.
//!
//! `cm.rs` connects an endpoint, by rdma_cm or by addresses that the caller exchanged, and handles the events of the connection
//! manager until the end; read it first. `pep.rs` is the listening side: it turns connection requests into `Request`s, which
//! `cm.rs` accepts. `mpa.rs` adds the order in which the two sides of a lane over iWARP must send their first parcels.
//!
//! Addresses, listeners' requests and rdma_cm's events come in; a connected queue pair and events for the caller go out. The state of
//! an attempt is in `state/conn.rs`, the header of the private data in `wire/greeting.rs`.

pub(in crate::prov::verbs) mod cm;
pub(in crate::prov::verbs) mod mpa;
pub(in crate::prov::verbs) mod pep;
