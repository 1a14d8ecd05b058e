// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a device reads and writes, or that the library reads and writes on the device's behalf.
//!
//! `mr.rs` keeps the regions of a domain and turns the pieces of an operation into the device's scatter/gather entries;
//! read it first. `registered.rs` adds the library's own buffers and holds regions and buffers for a domain.
//! `bounce.rs` gives an operation one of these buffers where the device does not reach the caller's memory, and
//! `backing.rs` copies to and from such memory. `keys.rs` holds the keys of one region on every rail. `steps.rs`
//! records for `mr_explain` which ways to register a region were tried. `populate.rs` gives pages to fresh memory
//! before the memory is pinned.
//!
//! `attach.rs`, one folder up, tries the ways to register memory, because they depend on the domain.

pub(in crate::prov::verbs) mod backing;
pub(in crate::prov::verbs) mod bounce;
pub(in crate::prov::verbs) mod keys;
pub(in crate::prov::verbs) mod mr;
pub(in crate::prov::verbs) mod populate;
pub(in crate::prov::verbs) mod registered;
pub(in crate::prov::verbs) mod steps;
