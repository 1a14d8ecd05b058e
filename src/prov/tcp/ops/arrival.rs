// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages and offers that arrive. Each is matched with a receive, or waits until a receive is posted.

use super::msg::store;
use crate::error::{Code, Result};
use crate::fallible::granted;
use crate::hmem::Site;
use crate::prov::op::Pieces;
use crate::prov::tcp::conn::Fetch;
use crate::prov::tcp::memory::staging::{DeviceMemory, DeviceSink};
use crate::prov::tcp::recv::{Recv, Unexpected};
use crate::prov::tcp::state::State;
use crate::prov::tcp::stream::incoming::{BodyEnd, BodySink};
use crate::prov::tcp::wire::frame::{ACK, FAILED, Header, Kind, error_of, protocol_error, status_of, word};

/// The sink for a body of at most `room` bytes that goes into local memory.
pub fn sink_of(pieces: Pieces, site: Site, room: u64) -> BodySink {
    match site.is_host() {
        true => BodySink::Pieces(pieces, room),
        false => BodySink::Device(DeviceSink::new(DeviceMemory::new(site, pieces, Vec::new()), room), room),
    }
}

impl State {
    /// Handles SEND: the message goes to its receive, or into a buffer until a receive is posted.
    pub fn on_send(&mut self, h: &Header, data: Option<u64>, number: Option<u64>) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        conn.count_arrival(h.len)?;
        if let Some(recv) = self.next_receive() {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
            conn.count_match(h.len);
            let sink = sink_of(recv.pieces.clone(), recv.site, h.len.min(recv.room as u64));
            return self.begin(sink, BodyEnd::Message { recv: Some(recv), len: h.len, data, number }, h, None);
        }
        self.stats.unexpected += 1;
        // The length is within the budget that this side granted, so the allocation is bounded.
        self.begin(BodySink::Buffer(granted(h.len as usize)?), BodyEnd::Unexpected { data, number }, h, None)
    }

    /// Takes the receive for a message that arrives now. `None`: no receive is posted, or earlier messages still wait
    /// for receives.
    fn next_receive(&mut self) -> Option<Recv> {
        if !self.unexpected.is_empty() {
            return None;
        }
        let mut recv = self.recvs.pop_front()?;
        recv.ticket = self.bind.matched(false);
        Some(recv)
    }

    /// Handles OFFER: asks for the bytes if there is a receive, or keeps the offer until a receive is posted.
    pub fn on_offer(&mut self, h: &Header, data: Option<u64>, number: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        conn.count_arrival(0)?;
        let offer = Unexpected::Offered { number, len: h.len, data, ack: h.has(ACK) };
        match self.next_receive() {
            Some(recv) => self.deliver(recv, offer),
            None => {
                self.stats.unexpected += 1;
                self.unexpected.push_back(offer);
            }
        }
        Ok(())
    }

    /// Gives a waiting message to its receive.
    pub fn deliver(&mut self, mut recv: Recv, message: Unexpected) {
        match message {
            Unexpected::Buffered { bytes, data, number } => {
                if let Some(conn) = self.conn.as_deref_mut() {
                    conn.count_match(bytes.len() as u64);
                }
                let n = bytes.len().min(recv.room);
                let placed = store(recv.site, &recv.pieces, &bytes[..n]);
                self.end_message(Some(recv), bytes.len() as u64, data, number, placed);
            }
            Unexpected::Offered { number, len, data, ack } => {
                recv.ticket = recv.ticket.or_else(|| self.bind.matched(true));
                let Some(conn) = self.conn.as_deref_mut() else { return };
                conn.count_match(0);
                let want = len.min(recv.room as u64);
                conn.put_words(Kind::Take, 0, want, &[number]);
                conn.fetches.push_back(Fetch { number, recv: Some(recv), want, len, data, ack });
            }
        }
    }

    /// Ends a message: confirms the message, if its sender wants a confirmation (`number`), and completes its receive.
    pub fn end_message(&mut self, recv: Option<Recv>, len: u64, data: Option<u64>, number: Option<u64>, result: Result<()>) {
        if let (Some(number), Some(conn)) = (number, self.conn.as_deref_mut()) {
            let status = match (&recv, &result) {
                (None, _) => status_of(Code::Canceled),
                (_, Err(e)) => status_of(e.code),
                _ => 0,
            };
            conn.put_words(Kind::Got, 0, 0, &[number, status]);
        }
        match (recv, result) {
            (Some(recv), Ok(())) => self.received(&recv, len, data),
            (Some(recv), Err(e)) => self.abandon(&recv, e),
            (None, _) => {}
        }
    }

    /// Handles TAKEN: the bytes of an offer that this side has asked for, or the sender's failure to send them.
    pub fn on_taken(&mut self, h: &Header, words: &[u8]) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let number = word(words, 0);
        let at = conn
            .fetches
            .iter()
            .position(|t| t.number == number)
            .ok_or_else(|| protocol_error("data of a message that this side did not request"))?;
        let want = conn.fetches.get(at).map_or(0, |t| t.want);
        let failed = match h.has(FAILED) {
            true => Some(error_of(word(words, 1)).err().ok_or_else(|| protocol_error("a failure report with the status of success"))?),
            false if h.len != want => return Err(protocol_error("another number of bytes than this side requested")),
            false => None,
        };
        let Some(t) = conn.fetches.remove(at) else { return Ok(()) };
        let sink = match &t.recv {
            Some(recv) if failed.is_none() => sink_of(recv.pieces.clone(), recv.site, t.want),
            _ => BodySink::Nothing,
        };
        let number = t.ack.then_some(t.number);
        self.begin(sink, BodyEnd::Message { recv: t.recv, len: t.len, data: t.data, number }, h, failed)
    }

    /// Stores a complete message that no receive matched when it began. If a receive was posted meanwhile, delivers the
    /// message instead.
    pub fn keep(&mut self, message: Unexpected) {
        match self.next_receive() {
            Some(recv) => self.deliver(recv, message),
            None => self.unexpected.push_back(message),
        }
    }
}
