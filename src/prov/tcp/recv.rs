// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives and messages that wait for one another.

use crate::hmem::Site;
use crate::prov::op::Pieces;
use crate::prov::order::Ticket;

/// A posted receive.
pub struct Recv {
    pub pieces: Pieces,
    pub site: Site,
    pub room: usize,
    pub context: usize,
    pub wanted: bool,
    pub deadline: u64,
    /// Its place among arrivals, once it is matched.
    pub ticket: Option<Ticket>,
}

/// A message that came before its receive.
pub enum Unexpected {
    Kept { bytes: Vec<u8>, data: Option<u64>, number: Option<u64> },
    Offered { number: u64, len: u64, data: Option<u64>, ack: bool },
}
