// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a domain: its regions, and the table through which peers find them.
//!
//! In: ranges, files and device allocations that the caller registers, or that `mem_alloc` makes. Out: entries of a table that
//! every peer maps, and pins of regions for copies that this process makes on a peer's behalf.
//!
//! `mr.rs` registers and closes regions; read it first. `region.rs` is the part of a region that only shm has. `locate.rs` finds
//! the file or device allocation in which a range lies, and the paths that this memory permits. `files.rs` keeps the files and
//! device allocations that peers can map. `table.rs` is the table in shared memory, of our own regions or of a peer's;
//! `window.rs` maps as much of a peer's table as is used; `exports.rs` lets domains of one process find each other's
//! device allocations.

pub(in crate::prov::shm) mod exports;
pub(in crate::prov::shm) mod files;
pub(in crate::prov::shm) mod locate;
pub(in crate::prov::shm) mod mr;
pub(in crate::prov::shm) mod region;
pub(in crate::prov::shm) mod table;
pub(in crate::prov::shm) mod window;
