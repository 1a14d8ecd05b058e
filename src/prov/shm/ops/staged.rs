// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RMA through the ring, with the target's progress: the path that always works. The initiator sends the bytes of a
//! write through the ring, and the target's progress copies them into its region. Or the initiator asks for the bytes
//! of a read, and the target's progress sends them.

use crate::error::{Code, Result};
use crate::fallible::zeroed;
use crate::hmem::Site;
use crate::mr::Access;
use crate::prov::op::{Dir, IOV_LIMIT, Iov, parts};
use crate::prov::shm::copy::direct::deliver;
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::{BUDGET, MAX_MSG};
use crate::prov::shm::memory::region::Pin;
use crate::prov::shm::state::State;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::{Flight, ReadOut};
use crate::prov::shm::state::job::{RmaJob, Step, gather};
use crate::prov::shm::wire::layout::{SLOTS, SegmentRef};
use crate::prov::shm::wire::message::{broken, kind, mark, protocol, slot_word, status_of, unpack_slot};
use crate::sync::consumer::Message;
use crate::sync::ring::Header;

impl State {
    /// Target's side: copies a part of a staged write into its region.
    pub fn on_staged_write(&mut self, domain: &Domain, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (index, generation) = unpack_slot(message.word(0))?;
        let (key, addr, len) = (message.word(1), message.word(2), message.header.bytes as usize);
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let drivers = conn.may_call_drivers();
        let seen = &mut conn.staged_in[index as usize];
        if seen.0 != generation {
            *seen = (generation, 0);
        }
        if seen.1 == 0 {
            let pinned = domain.pin(key, addr, len, Access::REMOTE_WRITE, drivers);
            match pinned {
                Err(code) => seen.1 = status_of(code),
                Ok(pin) => {
                    if let Err(e) = copy_fragment(domain, message, &pin, len) {
                        crate::log!(Warn, "a staged write failed: {e}");
                        seen.1 = status_of(Code::Fault);
                    }
                    let mut regions = domain.regions.lock();
                    regions.unpin(pin);
                    if seen.1 == 0
                        && message.header.flags & mark::EVENT != 0
                        && let Some(counter) = regions.counter(key)
                    {
                        counter.add(1);
                    }
                }
            }
        }
        let status = seen.1;
        if message.header.flags & mark::LAST != 0 {
            conn.link.peer.slot(index as usize).report(generation, status, 1);
            conn.link.nudge();
            *seen = (generation.wrapping_sub(1), 0);
            if message.header.flags & mark::DATA != 0 && status == 0 {
                self.bind.remote_data(message.word(4) as usize, message.word(3));
            }
        }
        Ok(())
    }

    /// Target's side: queues a staged read, which `pump_reads` answers.
    pub fn on_staged_read(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (slot, generation) = unpack_slot(message.word(0))?;
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if conn.reads_out.len() >= SLOTS * IOV_LIMIT || message.word(3) > MAX_MSG as u64 {
            return Err(protocol("the peer requested more reads than it can have in flight"));
        }
        conn.reads_out.push_back(ReadOut {
            slot,
            generation,
            key: message.word(1),
            addr: message.word(2),
            len: message.word(3) as usize,
            done: 0,
            offset: message.word(4),
            ready: None,
        });
        Ok(())
    }

    /// Initiator's side: takes a part of the answer to a staged read.
    pub fn on_staged_data(&mut self, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (index, generation) = unpack_slot(message.word(0))?;
        let (at, len) = (message.word(1), message.header.bytes as usize);
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if conn.slots.generation[index as usize] != generation {
            return Ok(());
        }
        let Some(Flight::Read { pieces, want, got, bounce, .. }) = conn.slots.flight_mut(index) else { return Ok(()) };
        if at > *want as u64 || *want - (at as usize) < len || *want - *got < len {
            return Err(protocol("the peer answers a read with more bytes than requested"));
        }
        match bounce {
            Some((_, bytes)) => {
                if let Some(part) = bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..len)) {
                    message.copy_into(0, part);
                }
            }
            None => deliver(message, Site::HOST, pieces.as_slice(), at as usize, len)?,
        }
        *got += len;
        Ok(())
    }
}

/// Copies the bytes of a staged write into the pinned region.
fn copy_fragment(domain: &Domain, message: &Message<'_, SegmentRef>, pin: &Pin, len: usize) -> Result<()> {
    if pin.stays || !pin.site.is_host() {
        return deliver(message, pin.site, &pin.pieces, 0, len);
    }
    let mut bytes = Vec::<u8>::with_capacity(len);
    // SAFETY: the reserved room of the vector is writable for `len` bytes.
    if message.copy_out(0, unsafe { Iov::new(bytes.as_mut_ptr() as usize, len) }) {
        // SAFETY: `copy_out` has written all `len` bytes.
        unsafe { bytes.set_len(len) };
    }
    let mut rest = bytes.as_slice();
    for iov in &pin.pieces {
        let (now, later) = rest.split_at(iov.len().min(rest.len()));
        domain.user.write(now, *iov)?;
        rest = later;
    }
    Ok(())
}

/// Replaces the contents of `into` by the first `n` bytes of the pinned region.
fn fetch(domain: &Domain, pin: &Pin, n: usize, into: &mut Vec<u8>) -> Result<()> {
    into.clear();
    if !pin.site.is_host() {
        *into = gather(pin.site, &pin.pieces, n)?.into();
        return Ok(());
    }
    for part in parts(&pin.pieces, 0, n) {
        domain.user.read(part, into)?;
    }
    Ok(())
}

/// Puts as many parts of a staged operation into the ring as the ring has room for.
pub fn stream(conn: &mut Conn, job: &mut RmaJob) -> Result<Step> {
    let Some(mut s) = job.stream else { return Ok(Step::Blocked) };
    // The bytes of a read into device memory gather in this buffer first. The buffer is made before the peer is asked,
    // because nothing may fail afterwards.
    let bounce = match job.dir {
        Dir::Read if !job.site.is_host() => Some((job.site, zeroed(job.total)?)),
        _ => None,
    };
    let word = slot_word(s.slot, s.generation);
    while s.at < job.count {
        let r = job.remote[s.at];
        let last_piece = s.at + 1 == job.count;
        if job.dir == Dir::Read {
            let header = Header { kind: kind::STAGED_READ, words: 5, ..Header::default() };
            if !conn.room(header)? {
                job.stream = Some(s);
                return Ok(Step::Blocked);
            }
            conn.put_words(kind::STAGED_READ, 0, &[word, r.key, r.addr, r.len as u64, s.sent as u64]);
            s.sent += r.len;
            s.at += 1;
            continue;
        }
        let n = (r.len - s.inside).min(conn.fragment);
        let ends = s.inside + n == r.len;
        let mut marks = if ends { mark::EVENT } else { 0 };
        if ends && last_piece {
            marks |= mark::LAST | if job.has_data() { mark::DATA } else { 0 };
        }
        let header = Header { kind: kind::STAGED_WRITE, flags: marks, words: 5, bytes: n as u16 };
        if !conn.room(header)? {
            job.stream = Some(s);
            conn.link.nudge();
            return Ok(Step::Blocked);
        }
        let mut pieces = [Iov::EMPTY; IOV_LIMIT];
        let mut used = 0;
        for part in parts(job.local.as_slice(), s.sent, n) {
            pieces[used] = part;
            used += 1;
        }
        let data = if job.has_data() { job.data } else { 0 };
        conn.tx.write(header, &[word, r.key, r.addr.wrapping_add(s.inside as u64), data, job.end.len as u64], &pieces[..used]);
        s.sent += n;
        s.inside += n;
        if ends {
            s.at += 1;
            s.inside = 0;
        }
    }
    conn.link.nudge();
    let flight = match job.dir {
        Dir::Write => Flight::Ack { end: job.end, staged: Some(job.total) },
        Dir::Read => Flight::Read { end: job.end, pieces: job.local.clone(), want: job.total, got: 0, bounce, atomic: false },
    };
    conn.slots.launch(s.slot, flight);
    Ok(Step::InFlight)
}

/// Target's side: sends bytes of the reads that the peer asked for, at most `BUDGET` messages in one turn, so that a
/// fast peer does not hold up other endpoints.
pub fn pump_reads(conn: &mut Conn, domain: &Domain) -> Result<()> {
    let mut fetched = Vec::new();
    for _ in 0..BUDGET {
        let Some(read) = conn.reads_out.front_mut() else { break };
        let n = (read.len - read.done).min(conn.fragment);
        let header = Header { kind: kind::STAGED_DATA, words: 2, bytes: n as u16, flags: 0 };
        if !conn.tx.room(header.lines()).map_err(broken)? {
            break;
        }
        if let Some(part) = read.ready.as_ref().and_then(|bytes| bytes.get(read.done..read.done + n)) {
            let words = [slot_word(read.slot, read.generation), read.done as u64];
            // SAFETY: the bytes outlive the call.
            conn.tx.write(header, &words, &[unsafe { Iov::of(part) }]);
            read.done += n;
            if read.done == read.len {
                conn.reads_out.pop_front();
            }
            continue;
        }
        let addr = read.addr.checked_add(read.done as u64);
        let pinned = addr.ok_or(Code::Bounds).and_then(|addr| {
            // The whole range is checked with the first fragment, so that a read out of bounds moves nothing.
            let span = if read.done == 0 { read.len } else { n };
            domain.pin(read.key, addr, span, Access::REMOTE_READ, conn.devices.copier.is_none())
        });
        let slot = conn.link.peer.slot(read.slot as usize);
        match pinned {
            Err(code) => {
                slot.report(read.generation, status_of(code), 1);
                conn.reads_out.pop_front();
            }
            Ok(pin) => {
                let mut pieces: Vec<_> = parts(&pin.pieces, 0, n).collect();
                if !pin.stays {
                    if let Err(e) = fetch(domain, &pin, n, &mut fetched) {
                        crate::log!(Warn, "a staged read failed: {e}");
                        slot.report(read.generation, status_of(Code::Fault), 1);
                        conn.reads_out.pop_front();
                        domain.regions.lock().unpin(pin);
                        continue;
                    }
                    // SAFETY: the fetched bytes stay allocated until they are in the ring.
                    pieces = vec![unsafe { Iov::of(&fetched) }];
                }
                if n > 0 {
                    let words = [slot_word(read.slot, read.generation), read.offset.wrapping_add(read.done as u64)];
                    conn.tx.write(header, &words, &pieces);
                } else {
                    slot.report(read.generation, 0, 1);
                }
                domain.regions.lock().unpin(pin);
                read.done += n;
                if read.done == read.len {
                    conn.reads_out.pop_front();
                }
            }
        }
    }
    conn.link.nudge();
    Ok(())
}
