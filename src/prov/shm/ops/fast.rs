// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known of an operation when its entry is compiled. Each operation has one body, which is made for each of these.

/// Nothing is known of the operation; the library locks.
pub const LOCKED: u8 = 0;
/// As `LOCKED`, where the caller serialises its threads. So for all that follow, which are for endpoints that give each operation
/// its entry, and nothing else.
pub const UNLOCKED: u8 = 1;
/// RMA of one word.
pub const COPY_8: u8 = 2;
/// RMA of a few bytes.
pub const COPY_SHORT: u8 = 3;
/// A message of one line of the ring.
pub const SEND_LINE: u8 = 4;
/// A message whose bytes lie out of line.
pub const SEND_OUT_OF_LINE: u8 = 5;

/// Whether the operation may be any.
pub const fn is_generic(variant: u8) -> bool {
    matches!(variant, LOCKED | UNLOCKED)
}
