// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles the peer's frames one by one, in order: each frame is checked, carried out and answered before the next one.
//! A frame that has to wait, for room in a completion queue or for a device, stops the handling until the next turn.

use super::arrival::sink_of;
use super::target::{TargetMemory, check_sum, hold_device_memory, refused};
use crate::error::{Code, Error, Result, errno};
use crate::mr::Access;
use crate::prov::tcp::conn::{Conn, WriteStatus};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::memory::staging::DeviceSink;
use crate::prov::tcp::recv::Unexpected;
use crate::prov::tcp::refusal;
use crate::prov::tcp::state::State;
use crate::prov::tcp::stream::incoming::{BodyEnd, BodySink, Incoming};
use crate::prov::tcp::stream::rx::ReadResult;
use crate::prov::tcp::wire::frame;
use crate::prov::tcp::wire::frame::{
    ACK, DATA, FAILED, HEADER, Header, Kind, LIST, PARTS, PROMPT, STRIPED, STRIPED_MIN, error_of, error_of_list, list_status,
    protocol_error, status_of, word,
};

/// Most times that the socket is read in one turn.
const BUDGET: usize = 16;

/// The error for a socket that has failed. The peer counts as gone, whichever error the kernel gives; the words have
/// the kernel's error.
pub fn gone(e: &Error) -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, format!("the peer is gone: {}", e.words))
}

impl State {
    /// Reads and handles arrived frames; true: something arrived.
    pub fn receive(&mut self, domain: &Domain) -> Result<bool> {
        let came = self.receive_first(domain)?;
        Ok(self.conn.as_deref_mut().is_some_and(|c| std::mem::take(&mut c.rx.moved)) || came)
    }

    /// As `receive`, for the first stream. While a body comes over further streams, `parse` reads these streams.
    fn receive_first(&mut self, domain: &Domain) -> Result<bool> {
        let mut came = false;
        for _ in 0..BUDGET {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(came) };
            if (conn.rx.has_bytes() || conn.rx.body.is_some()) && !self.parse(domain)? {
                return Ok(came);
            }
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(came) };
            let Conn { fd, rx, .. } = conn;
            match rx.read(std::os::fd::AsFd::as_fd(fd)) {
                Ok(ReadResult::Some(more)) => {
                    came = true;
                    if !self.parse(domain)? || !more {
                        return Ok(came);
                    }
                }
                Ok(ReadResult::Nothing) => return Ok(came),
                Ok(ReadResult::Ended) => {
                    let why = "the peer closed the connection or died";
                    conn.end_reason.get_or_insert(Error::coded(errno::ECONNRESET, Code::PeerGone, why));
                    return Ok(came);
                }
                // After a record that fails authentication, or a violation of the protocol, nothing is handled or sent any more.
                Err(e) if e.code == Code::PeerBroke => return Err(e),
                Err(e) => {
                    conn.end_reason.get_or_insert(gone(&e));
                    return Ok(came);
                }
            }
        }
        if let Some(member) = self.conn.as_ref().and_then(|conn| conn.member.as_ref()) {
            member.put_back();
        }
        Ok(came)
    }

    /// Handles the frames in the buffer. False: a frame has to wait for room in a queue or for a device.
    pub fn parse(&mut self, domain: &Domain) -> Result<bool> {
        loop {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
            if conn.rx.body.is_some() {
                if conn.rx.streams.is_some() {
                    conn.rx.gather()?;
                }
                if !conn.rx.feed() {
                    return Ok(!conn.rx.has_bytes());
                }
                let Some(mut body) = conn.rx.body.take() else { continue };
                if !body.settled(&mut conn.rx.lanes) {
                    conn.rx.body = Some(body);
                    return Ok(false);
                }
                if let (BodyEnd::Atomic(request), BodySink::Buffer(operands)) = (&body.at_end, &body.sink) {
                    conn.serve(domain, request, operands);
                    continue;
                }
                if let (BodyEnd::List(header, data), BodySink::Buffer(blocks)) = (&body.at_end, &body.sink) {
                    self.on_list(domain, header, *data, blocks)?;
                    continue;
                }
                self.finish(*body)?;
                continue;
            }
            let bytes = conn.rx.bytes();
            let Some(head) = bytes.first_chunk::<HEADER>() else { return Ok(true) };
            let header = Header::decode(head)?;
            let size = HEADER + 8 * header.words();
            if bytes.len() < size {
                return Ok(true);
            }
            // These frames put an entry into the completion queue of receives.
            let gives_entry = matches!(header.kind, Kind::Send | Kind::Offer | Kind::Taken) || header.has(DATA);
            if gives_entry && self.bind.rx.as_ref().is_some_and(|q| !q.has_room()) {
                return Ok(false);
            }
            self.handle(domain, &header, size)?;
            self.conn.as_ref().map_or(Ok(()), |c| c.check_unsent_answers())?;
        }
    }

    /// Handles a frame whose header and words are complete in the buffer; `size`: the bytes of both.
    #[inline]
    fn handle(&mut self, domain: &Domain, h: &Header, size: usize) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if !conn.ready && h.kind != Kind::Ready {
            return Err(protocol_error("another frame before READY"));
        }
        if h.done != conn.acked {
            self.acknowledge(h.done)?;
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let is_fast = match h.kind {
            Kind::Write => h.pieces == 1 && !h.has(PARTS) && self.write_fast(domain, h, size)?,
            Kind::Send => self.recv_fast(h, size)?,
            Kind::Read => self.answer_fast(domain, h, size),
            Kind::Answered => self.end_read_fast(h, size),
            Kind::Atomic => self.atomic_fast(domain, h, size)?,
            Kind::Nothing => {
                conn.rx.consume(size);
                true
            }
            _ => false,
        };
        if is_fast {
            return Ok(());
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let mut words = [0u8; 8 * frame::WORDS];
        let count = size - HEADER;
        words[..count].copy_from_slice(&conn.rx.bytes()[HEADER..size]);
        conn.rx.consume(size);
        conn.rx.expect(h.len);
        // With DATA, the first word is the remote data.
        let (data, words) = match h.has(DATA) {
            true => (Some(word(&words, 0)), &words[8..count]),
            false => (None, &words[..count]),
        };
        match h.kind {
            Kind::Write | Kind::Read if h.has(LIST) => conn.expect_list(h, data, word(words, 0)),
            Kind::Write => self.on_write(domain, h, data, words),
            Kind::Read => self.on_read(domain, h, words),
            Kind::Atomic => self.on_atomic(h, words),
            Kind::Answered => self.on_answer(h, words),
            Kind::Send => self.on_send(h, data, h.has(ACK).then(|| word(words, 0))),
            Kind::Offer => self.on_offer(h, data, word(words, 0)),
            Kind::Take => self.on_take(h, word(words, 0)),
            Kind::Taken => self.on_taken(h, words),
            Kind::Report => self.on_report(word(words, 0), word(words, 1)),
            Kind::Got => self.on_got(word(words, 0), word(words, 1)),
            Kind::Matched => conn.freed(word(words, 0), word(words, 1)),
            Kind::Nothing => Ok(()),
            Kind::Ready if conn.ready => Err(protocol_error("a second READY")),
            Kind::Ready => {
                conn.ready = true;
                self.on_ready();
                Ok(())
            }
            Kind::Streams => self.on_streams(h.len),
            Kind::Door => self.on_door(h.len, word(words, 0), word(words, 1)),
            Kind::Bye => {
                conn.end_reason = Some(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection"));
                Ok(())
            }
        }
    }

    /// Takes note that the peer has carried out the first `done` of this side's writes, and completes the writes.
    #[inline]
    fn acknowledge(&mut self, done: u32) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let news = done.wrapping_sub(conn.acked) as usize;
        if news > conn.writes.len() {
            return Err(protocol_error("an acknowledgement of writes that this side never sent"));
        }
        // To accept this acknowledgement would complete a write whose memory is still being sent.
        if conn.tx.first_write().is_some_and(|first| (first.wrapping_sub(conn.acked) as usize) <= news) {
            return Err(protocol_error("an acknowledgement of a write that this side is still sending"));
        }
        conn.acked = done;
        for _ in 0..news {
            let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
            let Some(op) = conn.writes.pop_front() else { return Ok(()) };
            match (op.status, op.refused) {
                (WriteStatus::Pending, None) => self.bind.succeed(&op.end),
                (WriteStatus::Pending | WriteStatus::Reported, Some(why)) => self.fail(&op.end, *why),
                _ => {}
            }
        }
        Ok(())
    }

    /// Begins to receive the body behind header `h`. `failed`: the reason for which the body's bytes are not stored.
    pub fn begin(&mut self, sink: BodySink, at_end: BodyEnd, h: &Header, failed: Option<Error>) -> Result<()> {
        let mut body = Incoming::new(sink, at_end, h.len, h.has(PARTS));
        body.failed = failed;
        if let Some(conn) = self.conn.as_deref_mut()
            && h.len >= STRIPED_MIN
        {
            conn.wants_more = true;
            if h.has(STRIPED) {
                body.stripes = Some(conn.rx.announce(h.len)?);
            }
        }
        if body.all_came() {
            return self.finish(body);
        }
        if let Some(conn) = self.conn.as_deref_mut() {
            conn.rx.body = Some(Box::new(body));
        }
        Ok(())
    }

    fn on_write(&mut self, domain: &Domain, h: &Header, data: Option<u64>, words: &[u8]) -> Result<()> {
        check_sum(h, words)?;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let target = conn.target(domain, h, words, Access::REMOTE_WRITE).map_err(refused);
        self.write_to(target, h, data)
    }

    /// Receives the body of a WRITE into its target. If the target was refused, the body is discarded and the refusal reported.
    pub fn write_to(&mut self, target: Result<TargetMemory>, h: &Header, data: Option<u64>) -> Result<()> {
        let into = target.and_then(|target| match target {
            TargetMemory::Host(runs) => {
                let regions = runs.regions().cloned().collect();
                Ok((BodySink::Regions(runs), regions))
            }
            TargetMemory::Device(site, runs) => {
                let place = hold_device_memory(site, &runs).map_err(refused)?;
                Ok((BodySink::Device(DeviceSink::new(place, h.len), h.len), runs.regions().cloned().collect()))
            }
        });
        let (sink, regions, failed) = match into {
            Ok((sink, regions)) => (sink, regions, None),
            Err(why) => (BodySink::Nothing, Box::default(), Some(why)),
        };
        self.begin(sink, BodyEnd::Write { data, regions, prompt: h.has(PROMPT) }, h, failed)
    }

    fn on_read(&mut self, domain: &Domain, h: &Header, words: &[u8]) -> Result<()> {
        check_sum(h, words)?;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let target = conn.target(domain, h, words, Access::REMOTE_READ).map_err(refused);
        conn.answer_from(target, h);
        Ok(())
    }

    /// Handles ANSWERED: the body goes into the memory of the oldest READ.
    fn on_answer(&mut self, h: &Header, words: &[u8]) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let Some(read) = conn.reads.front() else { return Err(protocol_error("an answer to a read that this side never sent")) };
        if h.has(FAILED) {
            let said = if read.end.part { error_of_list(word(words, 0)) } else { error_of(word(words, 0)) };
            let why = said.err().ok_or_else(|| protocol_error("a failure report with the status of success"))?;
            let why = refusal::refused(why, &read.end, read.at);
            return self.begin(BodySink::Nothing, BodyEnd::Answer, h, Some(why));
        }
        if h.len != read.end.len as u64 {
            return Err(protocol_error("an answer of another length than the read's"));
        }
        let sink = if read.over { BodySink::Nothing } else { sink_of(read.pieces.clone(), read.site, h.len) };
        self.begin(sink, BodyEnd::Answer, h, None)
    }

    /// Handles TAKE: sends the bytes of an offer.
    fn on_take(&mut self, h: &Header, number: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let Some(at) = conn.sent(number)? else {
            conn.put_words(Kind::Taken, FAILED, 0, &[number, status_of(Code::Canceled)]);
            return Ok(());
        };
        let Some(offered) = conn.sends.get_mut(at).and_then(|op| op.offered.take()) else {
            return Err(protocol_error("a second TAKE for one message"));
        };
        if h.len > offered.len {
            return Err(protocol_error("a TAKE of more bytes than were offered"));
        }
        let (end, ack) = conn.sends.get(at).map(|op| (op.end, op.ack)).unwrap_or_default();
        if !ack {
            conn.sends.remove(at);
        }
        self.send_taken(number, offered, h.len, (!ack).then_some(end));
        Ok(())
    }

    /// Handles REPORT: a WRITE was refused. The WRITE completes when it is acknowledged.
    fn on_report(&mut self, sequence: u64, status: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let at = (sequence as u32).wrapping_sub(conn.acked).wrapping_sub(1) as usize;
        let Some(op) = conn.writes.get_mut(at) else { return Err(protocol_error("a failure report of a write that this side never sent")) };
        let said = if op.end.part { error_of_list(status) } else { error_of(status) };
        let why = said.err().ok_or_else(|| protocol_error("a failure report with the status of success"))?;
        op.refused = Some(Box::new(refusal::refused(why, &op.end, op.at)));
        Ok(())
    }

    /// Handles GOT: completes the message that the receiver confirms.
    fn on_got(&mut self, number: u64, status: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let Some(at) = conn.sent(number)? else { return Ok(()) };
        if !conn.sends.get(at).is_some_and(|op| op.ack && op.offered.is_none()) {
            return Err(protocol_error("a GOT for a message that it has not received"));
        }
        if conn.tx.holds_message(number) {
            return Err(protocol_error("a GOT for a message that this side is still sending"));
        }
        if let Some(op) = conn.sends.remove(at) {
            self.end(&op.end, error_of(status));
        }
        Ok(())
    }

    /// Carries out the action at the end of a body. The body has arrived completely, or its sender has given it up.
    fn finish(&mut self, mut body: Incoming) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let mut result = match body.status {
            0 => Ok(()),
            status => error_of(status),
        };
        if body.status != 0 {
            body.divert(&mut conn.rx.lanes, refused(Code::Canceled));
        } else if let Some(why) = body.failed.take() {
            result = Err(why);
        }
        match body.at_end {
            BodyEnd::Write { data, regions, prompt } => {
                let sequence = conn.done.wrapping_add(1);
                if let Err(why) = &result {
                    conn.put_words(Kind::Report, 0, 0, &[u64::from(sequence), list_status(why)]);
                }
                conn.done = sequence;
                conn.prompt |= prompt;
                if result.is_ok() {
                    regions.iter().for_each(|r| r.count_write());
                    if let Some(data) = data {
                        self.bind.remote_data(body.len as usize, data);
                    }
                }
            }
            // `parse` has carried out these two already.
            BodyEnd::Atomic(_) | BodyEnd::List(..) => {}
            BodyEnd::Answer => {
                if let Some(read) = conn.reads.pop_front()
                    && !read.over
                {
                    self.end(&read.end, result);
                }
            }
            BodyEnd::Message { recv, len, data, number } => self.end_message(recv, len, data, number, result),
            BodyEnd::Unexpected { data, number } => match (result, body.sink) {
                (Ok(()), BodySink::Buffer(bytes)) => self.keep(Unexpected::Buffered { bytes, data, number }),
                // The sender gave the message up before a receive matched it.
                _ => conn.count_match(body.len),
            },
        }
        Ok(())
    }
}
