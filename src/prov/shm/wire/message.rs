// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds, flags and words of messages in the ring and of reports in the slots, and the errors for messages that make no sense.

use super::layout::SLOTS;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::sync::ring::RingError;

/// Kinds of ring messages.
pub mod kind {
    pub const SEND: u8 = 1;
    pub const RENDEZVOUS: u8 = 2;
    pub const FRAGMENT: u8 = 3;
    pub const NOTIFY: u8 = 4;
    pub const COOP: u8 = 5;
    pub const STAGED_WRITE: u8 = 6;
    pub const STAGED_READ: u8 = 7;
    pub const STAGED_DATA: u8 = 8;
    pub const PARCEL: u8 = 9;
    pub const ATOMIC: u8 = 10;
    pub const COOP_LIST: u8 = 11;
}

/// Flags of ring messages.
pub mod mark {
    /// Remote CQ data travels with it.
    pub const DATA: u8 = 1;
    /// The sender wants a report in a slot.
    pub const ACK: u8 = 2;
    /// The last part of a staged write.
    pub const LAST: u8 = 4;
    /// The region counts writes.
    pub const EVENT: u8 = 8;
    /// Cooperation on a read instead of a write.
    pub const READ: u8 = 16;
    /// The offered buffer is device memory.
    pub const DEVICE: u8 = 32;
}

/// Bytes of a staged fragment.
pub const FRAGMENT_BYTES: usize = config::RING_MOST;

/// The status by which a receiver, which cannot fetch the message itself, asks for fragments; not an error code.
pub const STATUS_SEND_FRAGMENTS: u16 = 0x100;

/// A report's status for an error. `error_of` is the inverse.
pub fn status_of(code: Code) -> u16 {
    code.0 as u16
}

pub fn error_of(status: u16) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::reported(Code(status.into()))) }
}

pub fn broken(trouble: RingError) -> Error {
    match trouble {
        RingError::Broken => protocol("the peer wrote nonsense into the shared ring or a slot"),
        RingError::Unmapped => Error::fixed(errno::ENOMEM, "more of the connection's ring cannot be mapped (RLIMIT_AS, vm.max_map_count)"),
    }
}

/// The peer broke the protocol.
pub fn protocol(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

/// Packs a slot's index and generation into a ring word.
pub fn slot_word(index: u16, generation: u16) -> u64 {
    u64::from(index) | u64::from(generation) << 16
}

pub fn unpack_slot(word: u64) -> Result<(u16, u16)> {
    let index = word as u16;
    if word >> 32 != 0 || index as usize >= SLOTS {
        return Err(protocol("the peer named a slot that does not exist"));
    }
    Ok((index, (word >> 16) as u16))
}

pub fn gone() -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, "the connection is over")
}
