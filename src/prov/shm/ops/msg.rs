// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sending messages. Short messages go through the ring, and so do somewhat longer messages from memory that the
//! receiver cannot map. All other messages are offered to the receiver (`rendezvous.rs`).

use super::fast::{LOCKED as GENERIC, SEND_LINE, SEND_OUT_OF_LINE, is_generic};
use super::rendezvous;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::DEVICE_DESC;
use crate::prov::bind::{Ending, INJECT_FLAGS};
use crate::prov::fast::Fast;
use crate::prov::fault::{FaultOp, Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, Iov, Pieces, measure};
use crate::prov::queue::{Completion, Queue};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::{INJECT_SIZE, MAX_MSG, TX_SIZE, WINDOW};
use crate::prov::shm::state::State;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::Flight;
use crate::prov::shm::state::job::{Job, SendJob, Step, needs_driver, wait_for_stream};
use crate::prov::shm::wire::message::{broken, gone, kind, mark, protocol, slot_word};
use crate::sync::area;
use crate::sync::cache_line::LINE_BYTES;
use crate::sync::primitive::Ordering;
use crate::sync::ring::{Header, RingError};

/// The site of a message's memory. `drivers`: true if this process may call drivers of devices.
pub fn site_of_message(domain: &Domain, drivers: bool, local: &[Iov], c: &Common) -> Result<Site> {
    match (c.desc & DEVICE_DESC != 0, drivers) {
        (false, _) => Ok(Site::HOST),
        (true, true) => domain.local_site(c.desc, local, true),
        (true, false) => Err(needs_driver("copying a message in device memory through the host")),
    }
}

impl State {
    /// Posts a message.
    pub fn send(&mut self, domain: &Domain, local: &[Iov], c: &Common) -> Result<()> {
        if let [one] = local
            && c.desc & DEVICE_DESC == 0
            // SAFETY: `GENERIC` has no precondition.
            && unsafe { self.send_fast::<GENERIC, false>(domain, None, one, c) } == Fast::Done
        {
            return Ok(());
        }
        let wanted = self.wants_entry(c.flags);
        let total = measure(local, MAX_MSG)?;
        if c.flags & flags::INJECT != 0 && total > INJECT_SIZE {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {total} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
        }
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count: too many pieces"))?;
        let deadline = self.deadline(c);
        if self.conn.is_none() {
            return Err(self.not_connected());
        }
        let site = site_of_message(domain, self.options.driver_calls, local, c)?;
        let Some(conn) = self.conn.as_deref_mut() else { return Err(self.not_connected()) };
        let queued = !conn.backlog.is_empty();
        // An inject call leaves no entry to wait for, so the message goes now or the caller gets EAGAIN.
        let injected = c.flags & INJECT_FLAGS == INJECT_FLAGS && site.is_host() && self.faults.is_none();
        if conn.outstanding() >= TX_SIZE || (injected && (queued || !takes_now(conn, c.flags, total)?)) || !self.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let kind = flags::SEND | flags::MSG;
        let end = self.place(Ending::of(c, kind, total, pieces.first(), wanted, deadline));
        let mut job = SendJob {
            pieces,
            site,
            stream_after: self.options.stream,
            total,
            flags: c.flags,
            data: c.data,
            desc: c.desc,
            end,
            owned: None,
            held_until: 0,
        };
        let verdict = self.judge(FaultOp::Send);
        if let Verdict::Hold(until) = verdict {
            job.held_until = until;
        }
        let step = if queued || verdict != Verdict::Go { Step::Blocked } else { self.start_send(domain, &mut job) };
        match step {
            Step::Done(result) => self.end_posted(&job.end, result),
            Step::InFlight => {}
            Step::Blocked => {
                if let Err(e) = job.copy_injected() {
                    self.end(&job.end, Err(e));
                    return Ok(());
                }
                if let Some(conn) = &mut self.conn {
                    conn.backlog.push_back(Job::Send(Box::new(job)));
                }
            }
        }
        if verdict == Verdict::Lose {
            self.down(domain, Plan::gone());
        }
        Ok(())
    }

    /// Sends one piece of host memory through the ring, in lines or out of line, if no earlier operation waits. All
    /// checks come first, so after `Declined` nothing was done.
    ///
    /// # Safety
    /// If `VARIANT` is not generic: `tx` is the queue of the endpoint's sends, and the queue and the state are without locks.
    #[inline(always)]
    pub unsafe fn send_fast<const VARIANT: u8, const SILENT: bool>(
        &mut self,
        domain: &Domain,
        tx: Option<&Queue>,
        one: &Iov,
        c: &Common,
    ) -> Fast {
        let any = const { is_generic(VARIANT) };
        let (from, end) = match VARIANT {
            SEND_LINE => (0, self.line_end),
            SEND_OUT_OF_LINE => (area::FROM, self.out_of_line_end),
            _ => (0, self.eager_end_of(c)),
        };
        let special = any && c.flags & (flags::DELIVERY_COMPLETE | flags::FENCE) != 0;
        if one.len() < from || one.len() >= end || one.is_missing() || special {
            return Fast::Declined;
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Fast::Declined };
        if !conn.is_clear() || !conn.may_send() {
            return Fast::Declined;
        }
        let has_data = any && c.flags & flags::REMOTE_CQ_DATA != 0;
        let header =
            Header { kind: kind::SEND, flags: if has_data { mark::DATA } else { 0 }, words: u8::from(has_data), bytes: one.len() as u16 };
        let open = match any {
            false => Ok(conn.tx.is_open()),
            true => conn.tx.room(header.lines()),
        };
        match open {
            Ok(true) => {}
            Ok(false) => return Fast::Declined,
            Err(trouble) => return self.fail_connection(domain, trouble),
        }
        let wanted = if any { self.bind.wants_entry(c.flags) } else { !SILENT };
        let queue = if any { self.bind.tx.as_deref() } else { tx };
        let has_entry = match (any, queue) {
            (true, Some(q)) => !wanted || q.has_room(),
            (true, None) => true,
            // SAFETY: `VARIANT` is not generic, so the caller promises that the queue is without locks.
            (false, Some(q)) => SILENT || unsafe { q.reach::<false>() }.is_open(),
            (false, None) => false,
        };
        if !has_entry {
            return Fast::Declined;
        }
        let len = one.len();
        match VARIANT {
            SEND_OUT_OF_LINE if !conn.tx.write_bytes_out_of_line(kind::SEND, &[], *one) => return Fast::Declined,
            SEND_OUT_OF_LINE => {}
            _ if VARIANT != SEND_LINE && (has_data || len > LINE_BYTES) => {
                conn.tx.write(header, &[c.data][..usize::from(has_data)], &[*one])
            }
            _ => conn.tx.write_line(kind::SEND, *one),
        }
        conn.tx.claim_ahead(self.rx.as_ref().map_or(0, |rx| rx.passed()));
        // The message is in the ring, so the send is complete.
        let asleep = conn.link.must_wake();
        if any && asleep {
            conn.link.wake();
        }
        conn.sent += 1;
        self.stats.sends += 1;
        // In the special variants all function calls come last, so that the compiler saves no registers for them.
        let mut armed = false;
        if let Some(q) = queue
            && wanted
        {
            let done = Completion { context: c.context, flags: flags::SEND | flags::MSG, len, buf: one.addr(), data: 0 };
            match any {
                true => q.push(done),
                false => {
                    // SAFETY: `VARIANT` is not generic, so the caller promises that the queue is without locks; it was found open
                    // above.
                    unsafe { q.reach::<false>() }.push_open(done);
                    armed = q.waiter.is_armed();
                }
            }
        }
        if any && let Some(counter) = &self.bind.counters.send {
            counter.add(1);
        }
        match any {
            true if !conn.may_send() => conn.look_at_peer(),
            false if asleep | armed | !conn.may_send() => wake_after_send(conn, asleep, queue.filter(|_| armed)),
            _ => {}
        }
        Fast::Done
    }

    /// Length from which a message of one piece takes no fast path.
    #[inline(always)]
    fn eager_end_of(&self, c: &Common) -> usize {
        let end = if c.desc == 0 { self.private_end } else { self.eager_end };
        if c.flags & flags::INJECT != 0 { end.min(INJECT_SIZE + 1) } else { end }
    }

    /// Ends the connection after the ring failed while this side was posting.
    #[cold]
    fn fail_connection(&mut self, domain: &Domain, trouble: RingError) -> Fast {
        self.down(domain, broken(trouble));
        Fast::Declined
    }

    /// Starts a send that `send` has accepted.
    pub fn start_send(&mut self, domain: &Domain, job: &mut SendJob) -> Step {
        let Some(conn) = self.conn.as_deref_mut() else { return Step::Done(Err(gone())) };
        let step = match try_send(conn, domain, job) {
            Ok(step) => step,
            Err(e) => Step::Done(Err(e)),
        };
        if !matches!(step, Step::Blocked) {
            self.stats.sends += 1;
        }
        step
    }
}

/// True if the receiver can hold another unmatched message.
pub fn credit(conn: &mut Conn) -> Result<bool> {
    if conn.sent < conn.sends_until {
        return Ok(true);
    }
    conn.check_recipient()?;
    if conn.sent - conn.credited < WINDOW {
        return Ok(conn.renew_sends());
    }
    let seen = conn.link.peer.matched().load(Ordering::Acquire);
    if seen < conn.credited || seen > conn.sent {
        return Err(protocol("the peer counts more matched messages than this side sent"));
    }
    conn.credited = seen;
    Ok(conn.renew_sends())
}

/// True if a message of `total` bytes, sent through the ring, can go at once.
fn takes_now(conn: &mut Conn, op_flags: u64, total: usize) -> Result<bool> {
    let acked = op_flags & flags::DELIVERY_COMPLETE != 0;
    let words = u8::from(op_flags & flags::REMOTE_CQ_DATA != 0) + u8::from(acked);
    let slots = !acked || conn.slots.has_free();
    let header = Header { kind: kind::SEND, words, bytes: total.min(config::get().eager_max) as u16, ..Header::default() };
    Ok(slots && conn.coop == 0 && !conn.slots.is_reading() && conn.devices.is_idle() && credit(conn)? && conn.room(header)?)
}

#[inline]
fn try_send(conn: &mut Conn, domain: &Domain, job: &mut SendJob) -> Result<Step> {
    if conn.coop > 0
        || conn.slots.is_reading()
        || !conn.devices.is_idle()
        || !credit(conn)?
        || (job.flags & flags::FENCE != 0 && !conn.slots.active.is_empty())
    {
        return Ok(Step::Blocked);
    }
    let has_data = job.flags & flags::REMOTE_CQ_DATA != 0;
    let eager_max = config::get().eager_max;
    wait_for_stream(job.site, &mut job.stream_after)?;
    if !job.site.is_host() && job.total <= eager_max {
        job.take_copy()?;
    }
    if job.total > eager_max {
        let place = match job.pieces.as_slice() {
            [one] if job.desc != 0 => domain.regions.lock().shared_place(job.desc, *one),
            _ => None,
        };
        // Device memory that the peer cannot map is copied before it is offered.
        if !job.site.is_host() && place.is_none() {
            job.take_copy()?;
        }
        if place.is_some() || job.total > config::get().ring_max(true) {
            return rendezvous::offer(conn, job, has_data, place.unwrap_or((0, 0)));
        }
    }
    let acked = job.flags & flags::DELIVERY_COMPLETE != 0;
    let count = usize::from(has_data) + usize::from(acked);
    let marks = if has_data { mark::DATA } else { 0 } | if acked { mark::ACK } else { 0 };
    let header = Header { kind: kind::SEND, flags: marks, words: count as u8, bytes: job.total as u16 };
    if !conn.room(header)? {
        return Ok(Step::Blocked);
    }
    let slot = match acked {
        false => None,
        true => match conn.slots.reserve() {
            None => return Ok(Step::Blocked),
            taken => taken,
        },
    };
    let mut words = [0u64; 2];
    if has_data {
        words[0] = job.data;
    }
    if let Some((index, generation)) = slot {
        conn.link.mine.slot(index as usize).open(generation, 1);
        words[count - 1] = slot_word(index, generation);
    }
    conn.tx.write(header, &words[..count], job.pieces.as_slice());
    conn.link.nudge();
    conn.sent += 1;
    let Some((index, _)) = slot else { return Ok(Step::Done(Ok(()))) };
    conn.slots.launch(index, Flight::Ack { end: job.end, staged: None });
    Ok(Step::InFlight)
}

/// Wakes the peer and the queue's reader where needed, and checks the peer's process. Out of line, so that senders save
/// no registers for these seldom calls.
#[cold]
#[inline(never)]
fn wake_after_send(conn: &mut Conn, asleep: bool, queue: Option<&Queue>) {
    if asleep {
        conn.link.wake();
    }
    if let Some(queue) = queue {
        queue.waiter.notify();
    }
    if !conn.may_send() {
        conn.look_at_peer();
    }
}
