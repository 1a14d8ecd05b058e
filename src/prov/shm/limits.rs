// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounds of a domain and its endpoints: sizes and counts that the provider reports, and the work of one turn of progress.

use crate::mr::Paths;

/// The paths that this provider has.
pub const PATHS: Paths = Paths::DIRECT.union(Paths::CMA).union(Paths::STAGED).union(Paths::IPC);
/// Largest message or RMA operation.
pub const MAX_MSG: usize = 1 << 40;
/// Bytes that an inject call takes.
pub const INJECT_SIZE: usize = 1024;
/// Receives that can be posted.
pub const RX_SIZE: usize = 16384;
/// Operations that can be outstanding on an endpoint.
pub const TX_SIZE: usize = 1024;
/// Messages that may wait unmatched at the receiver before the sender is held back.
pub const WINDOW: u64 = 1024;
/// Ring messages that one turn of progress takes.
pub const BUDGET: usize = 64;
/// Bytes of long messages that one turn of progress fetches before the turn ends.
pub const FETCH_BYTES: usize = 4 << 20;
