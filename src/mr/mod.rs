// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory registration, independent of any provider.
//!
//! A caller passes an [`Attr`]: the memory, access rights and paths that it asks for. The result is a
//! [`region::Region`] in the domain's [`registry::Registry`], with a [`RegionId`], a key for peers and a descriptor for
//! operations. A provider only publishes what is registered here.
//!
//! Read `attr.rs` and `region.rs` first, then `registry.rs`. `location.rs` finds out whose memory it is, `key.rs` makes
//! keys and descriptors, `piece.rs` walks over memory in pieces, `path.rs` names the paths, and `alloc.rs` and
//! `file.rs` hold memory that the library maps itself.

pub mod access;
pub mod alloc;
pub mod attr;
pub mod file;
pub mod key;
pub mod location;
pub mod path;
pub mod piece;
pub mod region;
pub mod registry;

pub use access::Access;
pub use attr::{Attr, Facts, MR_IOV_LIMIT, Memory, RegionId, Source};
pub use key::{DEVICE_DESC, KeySource};
pub use path::{PathPolicy, Paths};
pub use piece::{Iov, parts};
