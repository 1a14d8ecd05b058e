// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer of a connection: its memory, and what both sides share.
//!
//! `link.rs` is what two connected endpoints share: segments, the peer's table, its process, the control socket. Read it first.
//! `regions.rs` looks the peer's regions up and keeps them in a cache that is checked at every use. `import.rs` maps the peer's
//! files and device allocations. `quiesce.rs` waits until no peer copies in a region of ours that is being closed.
//!
//! In: a region key and an address of the peer's. Out: memory that this side can copy to or from, or the reason why it cannot.

pub(in crate::prov::shm) mod import;
pub(in crate::prov::shm) mod link;
pub(in crate::prov::shm) mod quiesce;
pub(in crate::prov::shm) mod regions;
