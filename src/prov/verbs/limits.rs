// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times, sizes and paths that both discovery and posting use.

use crate::mr::Paths;

/// The paths that this provider offers for a region.
pub const PATHS: Paths = Paths::NIC.union(Paths::DMABUF).union(Paths::PEER_MEM).union(Paths::STAGED);
/// Operations that can be outstanding on an endpoint, unless hints ask for more.
pub const TX_SIZE: usize = 512;
/// Receives that can be posted on an endpoint, unless hints ask for more.
pub const RX_SIZE: usize = 512;
/// The number of repeats that stands for endless ones, if the peer has posted no receive.
pub const RNR_WITHOUT_END: u8 = 7;
/// Code of the time that a sender waits if no receive is posted: 0.64 ms.
pub const MIN_RNR_TIMER: u8 = 12;
/// Largest message or RMA operation that the transport can carry.
pub const MAX_MSG: usize = 1 << 31;
/// Most bytes that hints may ask to travel inside the work request.
pub const INLINE_MAX: usize = 1024;
/// Time for which operations in flight may still be answered after the peer's goodbye has arrived, because the goodbye
/// can overtake the answers. A lane that shuts down waits at most this long until its sends have gone out.
pub const ANSWER_NS: u64 = 1_000_000_000;
/// Interval at which an endpoint asks its peer for a sign of life. An endpoint asks where no connection manager watches
/// the peer, and while the first rail is lost.
pub const ALIVE_NS: u64 = 1_000_000_000;
/// Time that a queue pair in the error state may take to return all its work requests. The queue pair is destroyed
/// after this time.
pub const DRAIN_NS: u64 = 1_000_000_000;
