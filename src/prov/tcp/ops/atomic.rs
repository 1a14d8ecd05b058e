// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomic operations. The target's CPU carries them out during its progress, in the order of the frames. An operation
//! that fetches is answered as a READ is; every other operation is acknowledged as a WRITE is.

use super::target::paths_of;
use crate::error::{Code, Error, Result, errno};
use crate::fallible::granted;
use crate::hmem::Site;
use crate::prov::atomic::{Atomic, AtomicOp, Operands, carry_out, need};
use crate::prov::flags;
use crate::prov::op::{Common, Iov, Pieces};
use crate::prov::tcp::conn::{Conn, READS, ReadOp, WriteOp, WriteStatus};
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::limits::TX_SIZE;
use crate::prov::tcp::refusal::RemoteAddr;
use crate::prov::tcp::state::State;
use crate::prov::tcp::stream::incoming::{AtomicRequest, BodyEnd, BodySink};
use crate::prov::tcp::stream::tx::QUEUE_MAX;
use crate::prov::tcp::wire::frame;
use crate::prov::tcp::wire::frame::{FAILED, HEADER, Header, Kind, PROMPT, protocol_error, status_of, word};

impl State {
    /// Posts an atomic operation, which the layer above has checked.
    pub fn atomic(&mut self, domain: &Domain, op: &AtomicOp, c: &Common) -> Result<()> {
        let (fetches, bytes) = (op.what.fetches(), op.what.bytes());
        if self.bind.tx.is_none() && fetches && self.bind.counters.read.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for reads"));
        }
        let wanted = self.bind.wants_entry(c.flags);
        // Fault injection does not hold atomic operations, so an atomic operation that would overtake held ones gets `EAGAIN`.
        let held = self.held();
        let conn = self.up()?;
        if !conn.has_atomics {
            return Err(Error::fixed(errno::EOPNOTSUPP, "ep: the peer's protocol version has no atomic operations; update gdrfab there"));
        }
        let waits = conn.tx.waiting() > QUEUE_MAX || conn.keeps_back(c.flags) || held > 0;
        let full = conn.outstanding() >= TX_SIZE || waits || (fetches && conn.reads.len() >= READS);
        let fenced = c.flags & flags::FENCE != 0 && !conn.reads.is_empty();
        if full || fenced || !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c);
        let end = self.bind.place(op.ending(c, wanted, deadline));
        let paths = self.paths_bits(domain, Site::HOST);
        self.stats.moved(super::rma::path_of(Site::HOST, op.key), bytes);
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let prompt = if c.flags & flags::DELIVERY_COMPLETE != 0 && !fetches { PROMPT } else { 0 };
        let header = Header { paths, ..Header::new(Kind::Atomic, prompt, op.what.operands() as u64) };
        conn.put_with(header, &[op.what.encode(), op.addr, op.key]);
        conn.tx.put_pieces(&[op.with.operand, op.with.compare]);
        let at = RemoteAddr { addr: op.addr, key: op.key };
        if fetches {
            conn.reads.push_back(ReadOp { end, at, pieces: Pieces::One(op.with.old), site: Site::HOST, over: false });
        } else {
            conn.sequence = conn.sequence.wrapping_add(1);
            conn.writes.push_back(WriteOp { end, at, status: WriteStatus::Pending, refused: None });
        }
        self.send_or_batch(domain, c.flags);
        Ok(())
    }

    /// Carries out a peer's operation whose operands are in the buffer already. False: the operands are still to come.
    #[inline]
    pub fn atomic_fast(&mut self, domain: &Domain, h: &Header, size: usize) -> Result<bool> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(false) };
        let bytes = conn.rx.bytes();
        let request = decode_request(h, &bytes[HEADER..size])?;
        let Some(operands) = bytes.get(size..size + h.len as usize) else { return Ok(false) };
        let operands: Box<[u8]> = operands.into();
        conn.rx.consume(size + operands.len());
        conn.serve(domain, &request, &operands);
        Ok(true)
    }

    /// Begins to receive the operands of a peer's operation.
    pub fn on_atomic(&mut self, h: &Header, words: &[u8]) -> Result<()> {
        let request = decode_request(h, words)?;
        self.begin(BodySink::Buffer(granted(h.len as usize)?), BodyEnd::Atomic(request), h, None)
    }
}

/// Decodes and checks the words of an ATOMIC.
fn decode_request(h: &Header, words: &[u8]) -> Result<AtomicRequest> {
    match Atomic::decode(word(words, 0)) {
        Some(what) if what.operands() as u64 == h.len && !(what.fetches() && h.has(PROMPT)) => {
            Ok(AtomicRequest { what, addr: word(words, 1), key: word(words, 2), paths: h.paths, prompt: h.has(PROMPT) })
        }
        _ => Err(protocol_error("an unknown atomic operation")),
    }
}

impl Conn {
    /// Carries out a peer's operation and answers it.
    pub fn serve(&mut self, domain: &Domain, request: &AtomicRequest, operands: &[u8]) {
        let what = request.what;
        let mut old = vec![0; if what.fetches() { what.bytes() } else { 0 }];
        let done = self.carry_out(domain, request, operands, &mut old);
        if what.fetches() {
            let answered = done.and_then(|()| {
                self.answer(old.len() as u64, |out| {
                    out.extend_from_slice(&old);
                    Ok(())
                })
            });
            if let Err(code) = answered {
                self.put_words(Kind::Answered, FAILED, 0, &[status_of(code)]);
            }
            return;
        }
        let sequence = self.done.wrapping_add(1);
        if let Err(code) = done {
            self.put_words(Kind::Report, 0, 0, &[u64::from(sequence), status_of(code)]);
        }
        self.done = sequence;
        self.prompt |= request.prompt;
    }

    /// Carries out a peer's operation on its region. `old`: room for the old values, if the operation fetches them.
    fn carry_out(&mut self, domain: &Domain, request: &AtomicRequest, operands: &[u8], old: &mut [u8]) -> std::result::Result<(), Code> {
        let what = request.what;
        let region = self.look_up(domain, request.key).ok_or(Code::Key)?;
        let skip = region.check(request.addr, what.bytes() as u64, need(what), paths_of(request.paths))?;
        if region.is_stale() {
            return Err(Code::Fault);
        }
        region.enter()?;
        let pieces: Vec<Iov> = region.parts(skip, what.bytes() as u64).collect();
        // SAFETY: `operands` and `old` outlive the use of `with`.
        let with = unsafe { Operands::joined(what, Iov::of(operands), Iov::of_mut(old)) };
        let done = region.begin_cpu(what.writes()).and_then(|()| {
            let done = carry_out(what, region.site(), &pieces, region.may_be_gone(), with);
            done.and(region.end_cpu(what.writes()))
        });
        region.leave();
        match done {
            Ok(()) => {
                if what.writes() {
                    region.count_write();
                }
                Ok(())
            }
            Err(e) => {
                crate::log!(Warn, "a peer's atomic operation failed: {e}");
                Err(if e.code == Code::Bounds { Code::Bounds } else { Code::Fault })
            }
        }
    }
}

const _: () = assert!(crate::prov::atomic::OPERANDS_MAX as u64 <= frame::WHOLE_MAX);
