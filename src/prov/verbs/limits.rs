// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times, sizes and paths that both discovery and posting use.

use crate::mr::Paths;

/// Paths by which a region can be registered.
pub const PATHS: Paths = Paths::NIC.union(Paths::DMABUF).union(Paths::PEER_MEM).union(Paths::STAGED);
/// Largest message or RMA operation that the transport can carry.
pub const MAX_MSG: usize = 1 << 31;
/// Most bytes that hints may ask to travel inside the work request.
pub const INLINE_MAX: usize = 1024;
/// Time in which operations may still be answered after the peer's goodbye, which can overtake the answers.
pub const ANSWER_NS: u64 = 1_000_000_000;
/// Interval at which a peer is asked for a sign of life where no connection manager watches it, or the first rail is lost.
pub const ALIVE_NS: u64 = 1_000_000_000;
/// Time that a queue pair in the error state may take to return everything before it is destroyed.
pub const DRAIN_NS: u64 = 1_000_000_000;
