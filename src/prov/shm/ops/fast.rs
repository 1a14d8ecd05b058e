// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The variants of the functions that post operations. Each operation has one generic function (`rma_fast`,
//! `send_fast`); `table.rs` compiles it once for each variant. A variant says which operations may come and if locks
//! are needed.

/// Any operation; the function takes the locks.
pub const LOCKED: u8 = 0;
/// Any operation; no locks, because the caller serialises its threads. The variants below take no locks either, and
/// serve only endpoints on which an operation gives one completion entry and has no other effect, such as a counter.
pub const UNLOCKED: u8 = 1;
/// RMA of one word.
pub const COPY_8: u8 = 2;
/// RMA of a few bytes.
pub const COPY_SHORT: u8 = 3;
/// A message of one line of the ring.
pub const SEND_LINE: u8 = 4;
/// A message whose bytes lie out of line.
pub const SEND_OUT_OF_LINE: u8 = 5;

/// True if the variant takes any operation.
pub const fn is_generic(variant: u8) -> bool {
    matches!(variant, LOCKED | UNLOCKED)
}
