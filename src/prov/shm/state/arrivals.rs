// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that came before their receive, and long messages whose bytes arrive in fragments.

pub use crate::prov::outstanding::Recv;

/// A message that came before its receive.
pub enum Unexpected {
    Eager { bytes: Box<[u8]>, data: Option<u64>, ack: Option<(u16, u16)> },
    Rendezvous(OfferedMessage),
}

/// A long message that the peer offers (`RENDEZVOUS`): this side fetches its bytes.
pub struct OfferedMessage {
    pub slot: u16,
    pub generation: u16,
    pub total: usize,
    pub data: Option<u64>,
    pub file: u64,
    pub file_offset: u64,
    /// True if the buffer is device memory, which only a mapping of `file` reaches.
    pub on_device: bool,
    /// Address and length of each piece in the peer's address space.
    pub pieces: Vec<(u64, usize)>,
}

/// A long message that arrives in fragments, because this side cannot fetch it.
pub struct RendezvousIn {
    pub generation: u16,
    pub recv: Recv,
    pub total: usize,
    pub got: usize,
    pub data: Option<u64>,
}
