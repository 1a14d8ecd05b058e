// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint as a lane: an endpoint that serves a connectionless endpoint (rdm). A lane exchanges parcels with its
//! peer, which are messages in registered memory of the library's own.
//!
//! `parcels.rs` sends and receives parcels and implements `prov::Lane`; read it first. `rma.rs` is the initiator's side
//! of RMA and atomics over a lane, and `target.rs` answers the requests of the peer. The queues of a lane and the kinds
//! of its parcels are in `state/lane.rs`. The credits, by which a side knows how many parcels it may send, are in
//! `wire/credit.rs`.
//!
//! Parcels and operations come from the layer above; work requests go out through the queue pair of the endpoint.

pub(in crate::prov::verbs) mod parcels;
pub(in crate::prov::verbs) mod rma;
pub(in crate::prov::verbs) mod target;
