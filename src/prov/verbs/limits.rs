// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long, how many and by which paths: what discovery tells and posting checks.

use crate::mr::Paths;

/// Paths that a region may have been registered by.
pub const PATHS: Paths = Paths::NIC.union(Paths::DMABUF).union(Paths::PEER_MEM).union(Paths::STAGED);
/// Largest message or RMA operation: what the packets of the transport count.
pub const MAX_MSG: usize = 1 << 31;
/// The most bytes that hints may ask to have travel inside the work request.
pub const INLINE_MAX: usize = 1024;
/// How long operations may still be answered after the goodbye of a peer, which their answers may follow late.
pub const ANSWER_NS: u64 = 1_000_000_000;
/// How often a peer is asked for a sign of life that no connection manager watches, or that the first rail does not reach.
pub const ALIVE_NS: u64 = 1_000_000_000;
/// How long a queue pair in error may take to give everything back before it is destroyed.
pub const DRAIN_NS: u64 = 1_000_000_000;
