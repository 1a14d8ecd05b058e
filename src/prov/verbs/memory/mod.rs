// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a device, or the library on its behalf, reads and writes.
//!
//! `mr.rs` keeps the regions of a domain and turns the pieces of an operation into the device's scatter/gather entries; read it
//! first. `registered.rs` adds the library's own buffers and holds both for a domain. `bounce.rs` gives an operation one of these
//! buffers where the device does not reach the caller's memory, and `backing.rs` copies to and from such memory. `keys.rs` holds
//! the keys of one region on every rail. `steps.rs` records which ways to register a region were tried, for `mr_explain`, and
//! `populate.rs` gives fresh pages to a range before it is pinned.
//!
//! The ways themselves are tried in `attach.rs`, one folder up, because they depend on the domain.

pub(in crate::prov::verbs) mod backing;
pub(in crate::prov::verbs) mod bounce;
pub(in crate::prov::verbs) mod keys;
pub(in crate::prov::verbs) mod mr;
pub(in crate::prov::verbs) mod populate;
pub(in crate::prov::verbs) mod registered;
pub(in crate::prov::verbs) mod steps;
