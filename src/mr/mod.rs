// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registration, independent of any provider: what was asked for, what the memory is, the region with its
//! rights and names, and the domain's registry of them. A provider only publishes what is registered here.

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
