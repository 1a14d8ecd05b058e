// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registration, apart from any provider: what was asked for, what the memory is, and the names that it goes by. A provider
//! only publishes what is registered here.

pub mod access;
pub mod alloc;
pub mod attr;
pub mod key;
pub mod location;
pub mod path;
pub mod piece;

pub use access::Access;
pub use attr::{Attr, Facts, MR_IOV_LIMIT, Memory, RegionId, Source};
pub use key::{DEVICE_DESC, KeySource};
pub use path::{PathPolicy, Paths};
pub use piece::{Iov, parts};
