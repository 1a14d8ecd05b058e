// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that this side posts. Within the window and budget that the receiver grants, a message is sent at once; beyond the
//! budget it is offered, and its bytes follow when the receiver asks for them.

use super::rma::{COPY_MAX, measure_op, site_of};
use crate::error::{Error, Result, errno};
use crate::fallible::MakeRoom;
use crate::hmem::Site;
use crate::mr::DEVICE_DESC;
use crate::mr::piece;
use crate::prov::bind::Ending;
use crate::prov::fast::Fast;
use crate::prov::flags;
use crate::prov::op::{Common, Iov, Pieces, measure};
use crate::prov::tcp::conn::{Offered, SentOp};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::fault::{AcceptedOp, PostedOp};
use crate::prov::tcp::limits::{MAX_MSG, RX_SIZE, TX_SIZE};
use crate::prov::tcp::memory::source::{BodySource, gather, load, source_of};
use crate::prov::tcp::recv::Recv;
use crate::prov::tcp::state::{Phase, State};
use crate::prov::tcp::stream::body::{Body, Owner};
use crate::prov::tcp::stream::tx::QUEUE_MAX;
use crate::prov::tcp::wire::frame::{ACK, DATA, Header, Kind};

/// Copies bytes of the library's own into pieces of memory at `site`.
pub fn store(site: Site, pieces: &Pieces, bytes: &[u8]) -> Result<()> {
    piece::store(site, pieces.as_slice(), 0, bytes)
}

impl State {
    /// Posts a message.
    pub fn send(&mut self, domain: &Domain, local: &[Iov], c: &Common) -> Result<()> {
        if let [one] = local {
            match self.send_fast(domain, one, c) {
                Fast::Done => return Ok(()),
                Fast::Again => return Err(Error::AGAIN),
                Fast::Declined => {}
            }
        }
        let total = measure_op(local, c, false)?;
        self.up()?;
        let site = site_of(domain, c.desc, local)?;
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count: too many pieces"))?;
        let wanted = self.bind.wants_entry(c.flags);
        let held = self.held();
        let conn = self.up()?;
        let fenced = c.flags & flags::FENCE != 0 && !conn.reads.is_empty();
        let waits = conn.tx.waiting() > QUEUE_MAX || conn.keeps_back(c.flags) || conn.waits_for_budget(c.flags, total as u64);
        let full = conn.outstanding() + held >= TX_SIZE || waits || !conn.has_window();
        if full || fenced || !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c);
        let kind = flags::SEND | flags::MSG;
        let end = self.bind.place(Ending::of(c, kind, total, pieces.first(), wanted, deadline));
        self.stats.sends += 1;
        if self.faults.is_some() {
            if let Some(accepted) = self.apply_faults(domain, AcceptedOp::Send(PostedOp::new(pieces, site, c, end))) {
                self.start(domain, accepted);
            }
            return Ok(());
        }
        self.start_send(domain, pieces, c, end, site);
        Ok(())
    }

    /// Sends or offers an accepted message.
    #[inline]
    pub fn start_send(&mut self, domain: &Domain, pieces: Pieces, c: &Common, end: Ending, site: Site) {
        let whole = self.conn.as_deref_mut().is_some_and(|conn| conn.admit(end.len as u64));
        let put = match whole {
            true => self.put_send(c, end, pieces, site),
            false => self.put_offer(c, end, pieces, site),
        };
        match put {
            Err(e) => {
                if let Some(conn) = self.conn.as_deref_mut() {
                    conn.take_back(end.len as u64, whole);
                }
                self.fail(&end, e);
            }
            Ok(ends_when_out) => {
                self.send_or_batch(domain, c.flags);
                if ends_when_out {
                    self.end_when_out(&end);
                }
            }
        }
    }

    /// Completes an operation when everything that is queued now has left.
    #[inline]
    pub fn end_when_out(&mut self, end: &Ending) {
        match self.conn.as_deref_mut() {
            Some(conn) if !conn.tx.is_empty() => conn.tx.mark(*end, Owner::Send(None)),
            Some(_) => self.bind.succeed(end),
            None => {
                let why = self.not_connected();
                self.fail(end, Error::coded(errno::ECANCELED, why.code, why.words));
            }
        }
    }

    /// Queues a whole message. True: the caller calls `end_when_out`. False: the message completes with its body, or by
    /// the peer's confirmation.
    fn put_send(&mut self, c: &Common, end: Ending, pieces: Pieces, site: Site) -> Result<bool> {
        let stream = self.options.stream;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        let (total, ack) = (end.len, c.flags & flags::DELIVERY_COMPLETE != 0);
        let owned = c.flags & flags::INJECT != 0;
        let source = match total > 0 && (total > COPY_MAX || !site.is_host()) {
            true => Some(source_of(&mut conn.tx.lanes, pieces.clone(), site, total, owned, stream)?),
            false => None,
        };
        let has_data = c.flags & flags::REMOTE_CQ_DATA != 0;
        let number = if ack { Some(conn.number()) } else { None };
        let body = source.map(|s| conn.body(Body::new(s, Owner::Send(number), (!ack).then_some(end), total as u64)));
        let bits = if has_data { DATA } else { 0 } | if ack { ACK } else { 0 } | body.as_ref().map_or(0, Body::flag);
        conn.put(Header::new(Kind::Send, bits, total as u64));
        if has_data {
            conn.tx.put_word(c.data);
        }
        if let Some(number) = number {
            conn.tx.put_word(number);
            conn.sends.push_back(SentOp { number, end, ack, offered: None });
        }
        let copied = body.is_none();
        match body {
            Some(body) => conn.tx.put_body(body),
            None => conn.tx.put_pieces(pieces.as_slice()),
        }
        Ok(copied && !ack)
    }

    /// Queues the offer of a message. Never returns true: an offered message completes later.
    fn put_offer(&mut self, c: &Common, end: Ending, pieces: Pieces, site: Site) -> Result<bool> {
        let stream = self.options.stream;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        let ack = c.flags & flags::DELIVERY_COMPLETE != 0;
        if !site.is_host() {
            conn.tx.lanes.after(site, stream)?;
        }
        let owned = match c.flags & flags::INJECT != 0 {
            true if site.is_host() => Some(gather(pieces.as_slice(), 0, end.len as u64)),
            true => Some(load(site, pieces.as_slice(), end.len)?),
            false => None,
        };
        let has_data = c.flags & flags::REMOTE_CQ_DATA != 0;
        let number = conn.number();
        let bits = if has_data { DATA } else { 0 } | if ack { ACK } else { 0 };
        conn.put(Header::new(Kind::Offer, bits, end.len as u64));
        if has_data {
            conn.tx.put_word(c.data);
        }
        conn.tx.put_word(number);
        let offered = Some(Offered { pieces, site, owned, len: end.len as u64 });
        conn.sends.push_back(SentOp { number, end, ack, offered });
        Ok(false)
    }

    /// Sends the first `want` bytes of an offered message, for which the receiver has asked. `end`: completes when
    /// these bytes are out.
    pub fn send_taken(&mut self, number: u64, offered: Offered, want: u64, end: Option<Ending>) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if want == 0 {
            conn.put_words(Kind::Taken, 0, 0, &[number]);
            if let Some(end) = end {
                conn.tx.mark(end, Owner::Send(Some(number)));
            }
            return;
        }
        let source = match offered.owned {
            Some(bytes) => Ok(BodySource::Owned(bytes, 0)),
            None => source_of(&mut conn.tx.lanes, offered.pieces, offered.site, want as usize, false, 0),
        };
        match source {
            Ok(source) => {
                let body = conn.body(Body::new(source, Owner::Send(Some(number)), end, want));
                conn.put_words(Kind::Taken, body.flag(), want, &[number]);
                conn.tx.put_body(body);
            }
            Err(e) => {
                let status = crate::prov::tcp::wire::frame::status_of(e.code);
                conn.put_words(Kind::Taken, crate::prov::tcp::wire::frame::FAILED, 0, &[number, status]);
                let waiting = conn.sends.iter().position(|s| s.number == number).and_then(|at| conn.sends.remove(at));
                if let Some(end) = end.or(waiting.map(|op| op.end)) {
                    self.fail(&end, e);
                }
            }
        }
    }

    /// Posts a receive.
    pub fn recv(&mut self, domain: &Domain, local: &[Iov], c: &Common) -> Result<()> {
        if self.bind.rx.is_none() && self.bind.counters.recv.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for receives"));
        }
        match &self.phase {
            Phase::Fresh => return Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable before posting receives")),
            Phase::Down(_) if self.unexpected.is_empty() => return Err(self.not_connected()),
            _ => {}
        }
        if let ([one], Phase::Connected, 0, None) = (local, &self.phase, c.timeout_ns | self.options.recv_deadline_ns, &self.faults)
            && c.desc & DEVICE_DESC == 0
            && (one.addr() != 0 || one.is_empty())
            && one.len() <= MAX_MSG
            && self.recvs.len() < RX_SIZE
        {
            let wanted = self.bind.wants_receive(c.flags);
            let pieces = Pieces::One(*one);
            self.start_recv(
                domain,
                Recv { pieces, site: Site::HOST, room: one.len(), context: c.context, wanted, deadline: 0, ticket: None },
            );
            return Ok(());
        }
        let room = measure(local, MAX_MSG)?;
        let site = site_of(domain, c.desc, local)?;
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count: too many pieces"))?;
        if self.recvs.len() + self.held() >= RX_SIZE {
            return Err(Error::AGAIN);
        }
        self.recvs.room(1)?;
        let deadline = self.recv_deadline(c);
        let recv = Recv { pieces, site, room, context: c.context, wanted: self.bind.wants_receive(c.flags), deadline, ticket: None };
        if let Some(AcceptedOp::Recv(recv)) = self.apply_faults(domain, AcceptedOp::Recv(recv)) {
            self.start_recv(domain, recv);
        }
        Ok(())
    }

    /// Makes an accepted receive available, and matches waiting messages.
    pub fn start_recv(&mut self, domain: &Domain, recv: Recv) {
        self.recvs.push_back(recv);
        if !self.unexpected.is_empty() {
            self.match_unexpected();
            // The sender may wait for the room that this match frees in its window. The program has its message and may
            // not call again soon, so the report is sent now.
            self.send_or_batch(domain, flags::INJECT);
        }
    }

    /// Matches waiting messages with receives, while the completion queue has room.
    pub fn match_unexpected(&mut self) {
        while !self.recvs.is_empty() && !self.unexpected.is_empty() && self.bind.rx.as_ref().is_none_or(|q| q.has_room()) {
            if let (Some(mut recv), Some(message)) = (self.recvs.pop_front(), self.unexpected.pop_front()) {
                recv.ticket = self.bind.matched(false);
                self.deliver(recv, message);
            }
        }
    }
}
