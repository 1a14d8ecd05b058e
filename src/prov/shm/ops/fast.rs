// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The variants in which the body of an operation is compiled, by what is known of its operations. Each operation has one generic
//! body; `table.rs` makes one function of it for each variant.

/// Any operation; the library locks.
pub const LOCKED: u8 = 0;
/// Any operation; the caller serialises its threads. The variants below also do without locks, and serve endpoints on which each
/// operation gives one entry and nothing else.
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
