// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies between memory of this side and of the peer, by each path that shm has.
//!
//! In: an operation or a list whose regions were looked up. Out: the bytes in place and a notice for the peer, or a
//! copy in flight that later turns of progress end. The room `ops` has the operations themselves, their order and their
//! completions.
//!
//! `direct.rs` copies at once, through a mapping or by cross-memory attach; read it first. `mixed_paths.rs` serves operations
//! whose regions are reached by different paths. `device.rs` gives copies to a device's driver. `list.rs` copies the blocks of a
//! list. `coop.rs` and `coop_list.rs` share a large operation or a list with the target's core, by the rules of
//! `shared_copy.rs`.

pub(in crate::prov::shm) mod coop;
pub(in crate::prov::shm) mod coop_list;
pub(in crate::prov::shm) mod device;
pub(in crate::prov::shm) mod direct;
pub(in crate::prov::shm) mod list;
pub(in crate::prov::shm) mod mixed_paths;
pub(in crate::prov::shm) mod shared_copy;
