// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds, flags and words of messages in the ring and of reports in the slots, and the errors for messages that make no sense.

use super::layout::SLOTS;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::sync::ring::RingError;

/// Kinds of ring messages. `docs/shm-format.md` lists the words and flags of each kind.
pub mod kind {
    /// A short message with its bytes.
    pub const SEND: u8 = 1;
    /// The announcement of a long message, whose bytes the receiver fetches.
    pub const RENDEZVOUS: u8 = 2;
    /// A part of a long message that the receiver cannot fetch.
    pub const FRAGMENT: u8 = 3;
    /// The notice of a finished write, for the region's counter or with remote CQ data.
    pub const NOTIFY: u8 = 4;
    /// A request to copy a part of a large write or read, while the initiator copies other parts.
    pub const COOP: u8 = 5;
    /// A part of a write that the owner of the region copies into the region.
    pub const STAGED_WRITE: u8 = 6;
    /// A request for the bytes of a read, which the owner of the region sends as `STAGED_DATA`.
    pub const STAGED_READ: u8 = 7;
    /// A part of the answer to a `STAGED_READ`.
    pub const STAGED_DATA: u8 = 8;
    /// A message of the layer above, which this provider does not interpret.
    pub const PARCEL: u8 = 9;
    /// An atomic operation that the owner of the region executes.
    pub const ATOMIC: u8 = 10;
    /// As `COOP`, for a list of blocks.
    pub const COOP_LIST: u8 = 11;
}

/// Flags of ring messages.
pub mod mark {
    /// The message carries remote CQ data.
    pub const DATA: u8 = 1;
    /// The sender wants a report in a slot.
    pub const ACK: u8 = 2;
    /// The last part of a staged write.
    pub const LAST: u8 = 4;
    /// A write to a region is complete. The owner counts the write if the region has a counter.
    pub const EVENT: u8 = 8;
    /// The shared work is a read; without the flag, a write (kinds `COOP` and `COOP_LIST`).
    pub const READ: u8 = 16;
    /// The buffer of a `RENDEZVOUS` is device memory, which the receiver reaches only by mapping its file.
    pub const DEVICE: u8 = 32;
}

/// Bytes of a staged fragment.
pub const FRAGMENT_BYTES: usize = config::RING_MOST;

/// The status of a report by which a receiver asks for fragments, because the receiver cannot fetch the message; no
/// error code.
pub const STATUS_SEND_FRAGMENTS: u16 = 0x100;

/// The status by which a report in a slot names an error code.
pub fn status_of(code: Code) -> u16 {
    code.0 as u16
}

/// The error that a report's status names; 0 is success. The inverse of [`status_of`].
pub fn error_of(status: u16) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::reported(Code(status.into()))) }
}

/// The connection's error for trouble with the shared ring.
pub fn broken(trouble: RingError) -> Error {
    match trouble {
        RingError::Broken => protocol("the peer wrote invalid data into the shared ring or a slot"),
        RingError::Unmapped => Error::fixed(errno::ENOMEM, "more of the connection's ring cannot be mapped (RLIMIT_AS, vm.max_map_count)"),
    }
}

/// The error of a connection whose peer broke the protocol.
pub fn protocol(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

/// Packs a slot's index and generation into a ring word.
pub fn slot_word(index: u16, generation: u16) -> u64 {
    u64::from(index) | u64::from(generation) << 16
}

/// The index and generation that [`slot_word`] packed. The word comes from the peer, so the index is checked.
pub fn unpack_slot(word: u64) -> Result<(u16, u16)> {
    let index = word as u16;
    if word >> 32 != 0 || index as usize >= SLOTS {
        return Err(protocol("the peer named a slot that does not exist"));
    }
    Ok((index, (word >> 16) as u16))
}

/// The error of operations on a connection that has ended.
pub fn gone() -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, "the connection is over")
}
