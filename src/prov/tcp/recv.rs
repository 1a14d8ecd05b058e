// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives and messages that wait for one another.

pub use crate::prov::outstanding::Recv;

/// A message that came before its receive.
pub enum Unexpected {
    Buffered { bytes: Vec<u8>, data: Option<u64>, number: Option<u64> },
    Offered { number: u64, len: u64, data: Option<u64>, ack: bool },
}
