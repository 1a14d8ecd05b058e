// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formats that peers exchange while they connect, and the credits of a lane.
//!
//! `address.rs` is the text form of an address (`verbs://host:port`, `verbs+qp://?qpn=...`). `greeting.rs` is the
//! header before the caller's private data in a connection request. `credit.rs` counts the parcels that a side of a
//! lane may send because the peer has receives for them; the count travels in each parcel's header.
//!
//! All input here comes from outside the process and is checked here. The messages of an established connection are defined
//! beside the code that sends them: `queue/service.rs` (`kind`) and `state/lane.rs` (`kind`).

pub mod address;
pub(in crate::prov::verbs) mod credit;
pub(in crate::prov::verbs) mod greeting;
