// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of operations, which discovery reports and posting checks.

use crate::mr::Paths;

/// The paths that this provider has.
pub const PATHS: Paths = Paths::SOCKET.union(Paths::STAGED);
/// Largest message or RMA operation.
pub const MAX_MSG: usize = 1 << 40;
/// Bytes that an inject call takes.
pub const INJECT_SIZE: usize = 1024;
/// Operations that can be outstanding at once.
pub const TX_SIZE: usize = 1024;
/// Receives that can be posted at once.
pub const RX_SIZE: usize = 16384;
