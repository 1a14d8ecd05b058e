// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path: operations with one short piece of host memory that need no more than a plain completion, and the
//! handling of their frames. The fast path declines everything else, which `rma`, `msg` and `inbound` then handle. An
//! operation that both ways can carry out must have the same effects on both.

use super::rma::{COPY_MAX, path_of};
use super::target::{ANSWER_COPY, paths_of};
use crate::error::Result;
use crate::hmem::Site;
use crate::mr::Access;
use crate::mr::DEVICE_DESC;
use crate::prov::bind::{Ending, SILENT};
use crate::prov::fast::Fast;
use crate::prov::flags;
use crate::prov::op::{Common, Iov, Pieces};
use crate::prov::tcp::conn::{Conn, READS, ReadOp, WriteOp, WriteStatus};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::limits::{INJECT_SIZE, TX_SIZE};
use crate::prov::tcp::recv::Recv;
use crate::prov::tcp::refusal::RemoteAddr;
use crate::prov::tcp::state::{Phase, State};
use crate::prov::tcp::stream::incoming::scatter;
use crate::prov::tcp::stream::rx::ReadResult;
use crate::prov::tcp::stream::tx::QUEUE_MAX;
use crate::prov::tcp::wire::frame::{ACK, DATA, HEADER, Header, Kind, PROMPT, word};
use std::os::fd::AsFd;

/// Flags that the fast path handles.
const FAST_FLAGS: u64 = SILENT | flags::INJECT | flags::COMPLETION | flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE;

impl State {
    /// The connection, if the fast path may take the operation. `Fast::Declined`: the operation takes the other way.
    /// `Fast::Again`: there is no room for the operation now.
    #[inline(always)]
    fn fast_conn(&self, len: usize, op_flags: u64) -> std::result::Result<&Conn, Fast> {
        let Some(conn) = self.conn.as_deref() else { return Err(Fast::Declined) };
        let open = matches!(self.phase, Phase::Connected) & self.faults.is_none() & (self.options.deadline_ns == 0);
        let most = if op_flags & flags::INJECT != 0 { INJECT_SIZE } else { COPY_MAX };
        if !open || op_flags & !FAST_FLAGS != 0 || len > most {
            return Err(Fast::Declined);
        }
        if conn.outstanding() >= TX_SIZE || conn.tx.waiting() > QUEUE_MAX || conn.keeps_back(op_flags) {
            return Err(Fast::Again);
        }
        Ok(conn)
    }

    /// Posts an RMA operation with one piece of host memory.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    pub fn rma_fast<const WRITE: bool>(&mut self, domain: &Domain, local: Iov, addr: u64, key: u64, context: usize, op_flags: u64) -> Fast {
        let len = local.len();
        let conn = match self.fast_conn(len, op_flags) {
            Ok(conn) => conn,
            Err(why) => return why,
        };
        if local.is_missing() || (!WRITE && (conn.reads.len() >= READS || self.bind.tx.is_none())) {
            return Fast::Declined;
        }
        let wanted = self.bind.wants_entry(op_flags);
        if !self.bind.reserve(wanted) {
            return Fast::Again;
        }
        let paths = self.paths_bits(domain, Site::HOST);
        self.stats.moved(path_of(Site::HOST, key), len);
        let Some(conn) = self.conn.as_deref_mut() else { return Fast::Declined };
        let kind = flags::RMA | if WRITE { flags::WRITE } else { flags::READ };
        let end = self.bind.place(Ending {
            context,
            kind,
            len,
            buf: local.addr(),
            wanted,
            deadline: 0,
            silent: op_flags & SILENT != 0,
            part: false,
            ticket: None,
        });
        let (frame, bits) = match WRITE {
            true if op_flags & flags::DELIVERY_COMPLETE != 0 => (Kind::Write, PROMPT),
            true => (Kind::Write, 0),
            false => (Kind::Read, 0),
        };
        let header = Header { pieces: 1, paths, ..Header::new(frame, bits, len as u64) };
        conn.put_with(header, &[addr, len as u64, key]);
        if WRITE {
            conn.sequence = conn.sequence.wrapping_add(1);
            conn.tx.put_pieces(&[local]);
            conn.writes.push_back(WriteOp { end, at: RemoteAddr { addr, key }, status: WriteStatus::Pending, refused: None });
        } else {
            conn.reads.push_back(ReadOp { end, at: RemoteAddr { addr, key }, pieces: Pieces::One(local), site: Site::HOST, over: false });
        }
        self.send_or_batch(domain, op_flags);
        Fast::Done
    }

    /// Posts a message of one piece of host memory.
    #[inline]
    pub fn send_fast(&mut self, domain: &Domain, one: &Iov, c: &Common) -> Fast {
        let conn = match self.fast_conn(one.len(), c.flags) {
            Ok(conn) => conn,
            Err(why) => return why,
        };
        let simple = c.flags & flags::DELIVERY_COMPLETE == 0 && c.desc & DEVICE_DESC == 0 && c.timeout_ns == 0;
        if !simple || one.is_missing() || !conn.may_go_whole(one.len() as u64) {
            return Fast::Declined;
        }
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Fast::Again;
        }
        let kind = flags::SEND | flags::MSG;
        let end = self.bind.place(Ending {
            context: c.context,
            kind,
            len: one.len(),
            buf: one.addr(),
            wanted,
            deadline: 0,
            silent: c.flags & SILENT != 0,
            part: false,
            ticket: None,
        });
        self.stats.sends += 1;
        let Some(conn) = self.conn.as_deref_mut() else { return Fast::Declined };
        conn.admit(one.len() as u64);
        conn.put(Header::new(Kind::Send, 0, one.len() as u64));
        conn.tx.put_pieces(std::slice::from_ref(one));
        self.send_or_batch(domain, c.flags);
        self.end_when_out(&end);
        Fast::Done
    }

    /// Carries out a WRITE to one piece of host memory, if the WRITE is complete in the buffer. False: declined.
    #[inline]
    pub fn write_fast(&mut self, domain: &Domain, h: &Header, size: usize) -> Result<bool> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        let data_words = usize::from(h.has(DATA));
        let bytes = conn.rx.bytes();
        if ((bytes.len() - size) as u64) < h.len {
            return Ok(false);
        }
        let words = &bytes[HEADER..size];
        let data = if data_words == 1 { Some(word(words, 0)) } else { None };
        let (addr, len, key) = (word(words, data_words), word(words, data_words + 1), word(words, data_words + 2));
        let permitted = paths_of(h.paths);
        let Some(region) = conn.look_up(domain, key) else { return Ok(false) };
        let Ok(skip) = region.check(addr, h.len, Access::REMOTE_WRITE, permitted) else { return Ok(false) };
        if len != h.len || !region.site().is_host() || region.enter().is_err() {
            return Ok(false);
        }
        if let Err(e) = region.begin_cpu(true) {
            crate::log!(Warn, "{e}");
            region.leave();
            return Ok(false);
        }
        let wrote = region.write(skip, conn.rx.bytes().get(size..size + h.len as usize).unwrap_or(&[]));
        let ended = region.end_cpu(true);
        region.leave();
        if let Err(e) = ended {
            crate::log!(Warn, "{e}");
        }
        if wrote.is_err() {
            // `on_write` then fails in the same way, and reports the failure.
            return Ok(false);
        }
        conn.rx.consume(size + h.len as usize);
        conn.done = conn.done.wrapping_add(1);
        conn.prompt |= h.has(PROMPT);
        region.count_write();
        if let Some(data) = data {
            self.bind.remote_data(h.len as usize, data);
        }
        Ok(true)
    }

    /// Handles a message that is complete in the buffer and matches a receive in host memory. False: declined.
    #[inline]
    pub fn recv_fast(&mut self, h: &Header, size: usize) -> Result<bool> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        if h.flags & !DATA != 0
            || ((conn.rx.bytes().len() - size) as u64) < h.len
            || !self.unexpected.is_empty()
            || !self.bind.none_arriving()
        {
            return Ok(false);
        }
        let fits = |r: &&Recv| r.site.is_host() && h.len <= r.room as u64;
        if self.recvs.front().as_ref().filter(|r| fits(r)).is_none() {
            return Ok(false);
        }
        debug_assert!(h.flags & ACK == 0);
        conn.count_arrival(h.len)?;
        conn.count_match(h.len);
        let Some(recv) = self.recvs.pop_front() else { return Ok(false) };
        let bytes = conn.rx.bytes();
        let data = h.has(DATA).then(|| word(&bytes[HEADER..], 0));
        scatter(&recv.pieces, 0, &bytes[size..size + h.len as usize]);
        conn.rx.consume(size + h.len as usize);
        self.received(&recv, h.len, data);
        Ok(true)
    }

    /// Answers a short READ of one region in host memory at once. False: declined.
    #[inline]
    pub fn answer_fast(&mut self, domain: &Domain, h: &Header, size: usize) -> bool {
        let Some(conn) = self.conn.as_deref_mut() else { return false };
        if h.pieces != 1 || h.len > ANSWER_COPY {
            return false;
        }
        let words = &conn.rx.bytes()[HEADER..size];
        let (addr, len, key) = (word(words, 0), word(words, 1), word(words, 2));
        let Some(region) = conn.look_up(domain, key) else { return false };
        let Ok(skip) = region.check(addr, h.len, Access::REMOTE_READ, paths_of(h.paths)) else { return false };
        // CPU access to a dma-buf needs a call before and one after, which can fail.
        if len != h.len || !region.site().is_host() || region.is_file() || region.enter().is_err() {
            return false;
        }
        let answered = conn.answer(h.len, |out| region.read(skip, h.len, out));
        region.leave();
        if answered.is_err() {
            // `on_read` then fails in the same way, and reports the failure.
            return false;
        }
        conn.rx.consume(size);
        true
    }

    /// Handles an answer to the oldest READ that is complete in the buffer and goes to host memory. False: declined.
    #[inline]
    pub fn end_read_fast(&mut self, h: &Header, size: usize) -> bool {
        let Some(conn) = self.conn.as_deref_mut() else { return false };
        let Some(read) = conn.reads.front() else { return false };
        let came = ((conn.rx.bytes().len() - size) as u64) >= h.len;
        if h.flags != 0 || !came || h.len != read.end.len as u64 || read.over || !read.site.is_host() {
            return false;
        }
        let Some(read) = conn.reads.pop_front() else { return false };
        scatter(&read.pieces, 0, &conn.rx.bytes()[size..size + h.len as usize]);
        conn.rx.consume(size + h.len as usize);
        self.bind.succeed(&read.end);
        true
    }

    /// Takes a turn of a connection on which nothing waits: reads the socket, which in most turns is all there is to
    /// do. `None`: a full turn is needed.
    #[inline(always)]
    pub fn quiet_turn(&mut self, domain: &Domain) -> Option<Result<()>> {
        let conn = self.conn.as_deref_mut()?;
        if !conn.is_quiet() || (conn.member.is_some() && !domain.pollset.is_small()) {
            return None;
        }
        let Conn { fd, rx, .. } = conn;
        match rx.read(fd.as_fd()) {
            Ok(ReadResult::Nothing) if !conn.owes_ack() => Some(Ok(())),
            Ok(ReadResult::Nothing) => Some(self.end_turn(false, self.is_unattended(domain))),
            Ok(ReadResult::Some(more)) => Some(self.handle_arrived(domain, more)),
            // The full turn reads again and handles the error or the end.
            _ => None,
        }
    }

    /// Handles the bytes that `quiet_turn` has read. `more`: the socket may have more.
    fn handle_arrived(&mut self, domain: &Domain, more: bool) -> Result<()> {
        if self.parse(domain)? && more {
            self.receive(domain)?;
        }
        self.end_turn(true, self.is_unattended(domain))
    }
}
