// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posted receives, and messages that arrived before their receive.

pub use crate::prov::outstanding::Recv;

/// A message that arrived before its receive.
pub enum Unexpected {
    /// A whole message. `number`: the sender wants a confirmation by this number.
    Buffered { bytes: Vec<u8>, data: Option<u64>, number: Option<u64> },
    /// An offer, whose bytes wait at the sender. `ack`: the sender wants a confirmation.
    Offered { number: u64, len: u64, data: Option<u64>, ack: bool },
}
