// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomic operations. If the region is mapped here, this side's CPU carries the operation out; else the target's CPU
//! does, in its progress. Both CPUs run the same instructions on the same pages, so all operations are atomic with each
//! other.

use super::rma::SLOW_FLAGS;
use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::atomic::{Atomic, AtomicOp, OPERANDS_MAX, Operands, carry_out, need};
use crate::prov::bind::INJECT_FLAGS;
use crate::prov::fast::Fast;
use crate::prov::fault::{Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, Pieces};
use crate::prov::queue::Completion;
use crate::prov::shm::copy::direct::notify;
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::TX_SIZE;
use crate::prov::shm::peer::regions::{RemoteRegion, no_such_key};
use crate::prov::shm::state::State;
use crate::prov::shm::state::in_flight::{Flight, ReadOut};
use crate::prov::shm::state::job::{AtomicJob, Job, Step};
use crate::prov::shm::wire::layout::{SLOTS, SegmentRef};
use crate::prov::shm::wire::message::{gone, kind, protocol, slot_word, status_of, unpack_slot};
use crate::sync::consumer::Message;
use crate::sync::gate;
use crate::sync::primitive::AtomicU64;
use crate::sync::ring::Header;
use crate::sys::atomics::run;

impl State {
    /// Posts an atomic operation that the layer above has checked.
    #[inline]
    pub fn atomic(&mut self, domain: &Domain, op: &AtomicOp, c: &Common) -> Result<()> {
        match self.atomic_now(op, c) {
            Fast::Done => Ok(()),
            Fast::Again => Err(Error::AGAIN),
            Fast::Declined => self.atomic_later(domain, op, c),
        }
    }

    /// The general way of `atomic`: posts an operation of any kind, behind the operations that wait.
    #[inline(never)]
    fn atomic_later(&mut self, domain: &Domain, op: &AtomicOp, c: &Common) -> Result<()> {
        if self.conn.is_none() {
            return Err(self.not_connected());
        }
        let wanted = self.wants_entry(c.flags);
        if self.conn.as_ref().is_some_and(|conn| conn.outstanding() >= TX_SIZE) || !self.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let end = self.place(op.ending(c, wanted, self.deadline(c)));
        let mut job = AtomicJob { op: *op, operands: op.operands(), flags: c.flags, end, held_until: 0 };
        let verdict = self.judge(if op.what.fetches() { Dir::Read } else { Dir::Write }.into());
        if let Verdict::Hold(until) = verdict {
            job.held_until = until;
        }
        let queued = verdict != Verdict::Go || self.conn.as_ref().is_some_and(|conn| !conn.backlog.is_empty());
        // An inject call leaves no entry to wait for, so the operation starts now or the caller gets EAGAIN.
        let injected = c.flags & INJECT_FLAGS == INJECT_FLAGS && verdict == Verdict::Go && job.end.ticket.is_none();
        match if queued { Step::Blocked } else { self.start_atomic(&job) } {
            Step::Done(result) => self.end_posted(&job.end, result),
            Step::InFlight => {}
            Step::Blocked if injected => return Err(Error::AGAIN),
            Step::Blocked => {
                if let Some(conn) = &mut self.conn {
                    conn.backlog.push_back(Job::Atomic(Box::new(job)));
                }
            }
        }
        if verdict == Verdict::Lose {
            self.down(domain, Plan::gone());
        }
        Ok(())
    }

    /// The fast path of `atomic`: carries the operation out at once, if the region is mapped here as one piece and
    /// counts no writes, and no earlier operation would be overtaken.
    #[inline(always)]
    fn atomic_now(&mut self, op: &AtomicOp, c: &Common) -> Fast {
        let (wanted, len) = (self.bind.wants_entry(c.flags), op.what.bytes());
        let Some(conn) = self.conn.as_deref_mut() else { return Fast::Declined };
        let Some(region) = conn.remotes.fast(op.key, need(op.what)) else { return Fast::Declined };
        let special = c.flags & SLOW_FLAGS != 0 || self.faults.is_some();
        let here = region.one.here() + op.addr.wrapping_sub(region.base) as usize;
        if special || !region.holds(op.addr, len) || !here.is_multiple_of(op.what.datatype.size()) || !conn.is_clear() {
            return Fast::Declined;
        }
        let queue = self.bind.tx.as_deref().filter(|_| wanted);
        if queue.is_some_and(|q| !q.has_room()) {
            return Fast::Again;
        }
        // SAFETY: a word of this side's segment, which the link of this connection keeps mapped.
        let busy = unsafe { &*(conn.busy as *const AtomicU64) };
        conn.gate.mark(busy);
        // SAFETY: the gate word of the region's entry in the peer's table, which the link keeps mapped.
        if !gate::shows(unsafe { &*(region.gate as *const AtomicU64) }, region.generation) {
            conn.gate.leave(busy);
            return Fast::Declined;
        }
        // SAFETY: the address is inside the region, whose entry holds the mapping, and aligned. The caller promises that its operands
        // are valid.
        unsafe { run(op.what, &[Iov::new(here, len)], op.with) };
        conn.gate.leave(busy);
        self.stats.moved(Paths::DIRECT, len);
        if let Some(q) = queue {
            q.push(Completion { context: c.context, flags: op.kind(), len, buf: op.buf(), data: 0 });
        }
        if let Some(counter) = if op.what.fetches() { &self.bind.counters.read } else { &self.bind.counters.write } {
            counter.add(1);
        }
        Fast::Done
    }

    /// Starts an operation that `atomic_later` has accepted.
    pub fn start_atomic(&mut self, job: &AtomicJob) -> Step {
        self.try_atomic(job).unwrap_or_else(|e| Step::Done(Err(e)))
    }

    fn try_atomic(&mut self, job: &AtomicJob) -> Result<Step> {
        let Some(conn) = self.conn.as_deref_mut() else { return Err(gone()) };
        let (what, bytes) = (job.op.what, job.op.what.bytes());
        conn.check_alive()?;
        let fenced = job.flags & flags::FENCE != 0 && !conn.slots.active.is_empty();
        if conn.coop > 0 || fenced || !conn.devices.is_idle() {
            return Ok(Step::Blocked);
        }
        let meanwhile = if job.flags & flags::INJECT != 0 { Paths::STAGED } else { Paths::empty() };
        let Some(region) = conn.reach(job.op.key, meanwhile)? else { return Ok(Step::Blocked) };
        let offset = region.check(job.op.addr, bytes, need(what))?;
        if region.path == Paths::DIRECT {
            let line = Header { words: 3, ..Header::default() };
            if conn.staged > 0 || (region.event && !conn.room(line)?) {
                return Ok(Step::Blocked);
            }
            self.run_mapped(&region, offset, job)?;
            self.stats.moved(Paths::DIRECT, bytes);
            return Ok(Step::Done(Ok(())));
        }
        if !(region.offered & conn.remotes.allowed).contains(Paths::STAGED) {
            let words = format!(
                "atomics on the peer's region {:#x} need the path direct (executed here) or staged (executed by the peer's CPU): neither \
                 is possible and permitted",
                region.key
            );
            return Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
        }
        let header = Header { kind: kind::ATOMIC, words: 4, bytes: job.operands.len() as u16, flags: 0 };
        // The target answers staged reads when its ring has room, but atomics at once. So an atomic waits until the
        // reads are over.
        if conn.slots.is_reading() || !conn.room(header)? {
            return Ok(Step::Blocked);
        }
        let Some((slot, generation)) = conn.slots.reserve() else { return Ok(Step::Blocked) };
        conn.staged += 1;
        conn.link.mine.slot(slot as usize).open(generation, 1);
        let words = [slot_word(slot, generation), job.op.key, job.op.addr, what.encode()];
        // SAFETY: the operands outlive the call.
        conn.tx.write(header, &words, &[unsafe { Iov::of(&job.operands) }]);
        conn.link.nudge();
        let flight = match what.fetches() {
            false => Flight::Ack { end: job.end, staged: Some(bytes) },
            true => Flight::Read { end: job.end, pieces: Pieces::One(job.op.with.old), want: bytes, got: 0, bounce: None, atomic: true },
        };
        conn.slots.launch(slot, flight);
        self.stats.moved(Paths::STAGED, bytes);
        Ok(Step::InFlight)
    }

    /// Carries the operation out in the mapping of the region.
    fn run_mapped(&mut self, region: &RemoteRegion, offset: u64, job: &AtomicJob) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Err(gone()) };
        let (what, busy) = (job.op.what, conn.link.mine.busy());
        if !conn.gate.enter(busy, &conn.link.table.entry(region.index).gate, region.generation, region.index) {
            conn.remotes.evict(region.key);
            return Err(no_such_key(region.key));
        }
        // SAFETY: these are runs of the region, whose entry holds the mappings.
        let pieces: Vec<Iov> = region.walk(offset, what.bytes()).map(|(run, n)| unsafe { Iov::new(run.here, n) }).collect();
        // SAFETY: the operands stay with the operation.
        let with = Operands::joined(what, unsafe { Iov::of(&job.operands) }, job.op.with.old);
        let done = carry_out(what, region.site, &pieces, false, with);
        conn.gate.leave(busy);
        done?;
        let dir = if what.writes() { Dir::Write } else { Dir::Read };
        notify(conn, dir, None, what.bytes(), &[(region.key, region.event, what.bytes())]);
        Ok(())
    }

    /// Target's side: carries out an atomic operation of a peer that has no mapping of the region.
    pub fn on_atomic(&mut self, domain: &Domain, message: &Message<'_, SegmentRef>) -> Result<()> {
        let (slot, generation) = unpack_slot(message.word(0))?;
        let (key, addr) = (message.word(1), message.word(2));
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        let what = Atomic::decode(message.word(3)).filter(|w| w.operands() == usize::from(message.header.bytes));
        let Some(what) = what.filter(|_| conn.reads_out.len() < SLOTS * IOV_LIMIT) else {
            return Err(protocol("the peer requested an unknown atomic operation, or too many at once"));
        };
        let mut operands = [0; OPERANDS_MAX];
        let operands = &mut operands[..what.operands()];
        message.copy_into(0, operands);
        let mut old = vec![0; if what.fetches() { what.bytes() } else { 0 }];
        let done = domain.pin(key, addr, what.bytes(), need(what), conn.may_call_drivers()).and_then(|pin| {
            // SAFETY: both outlive the call.
            let with = unsafe { Operands::joined(what, Iov::of(operands), Iov::of_mut(&mut old)) };
            let done = carry_out(what, pin.site, &pin.pieces, !pin.stays, with);
            let mut regions = domain.regions.lock();
            regions.unpin(pin);
            match done {
                Ok(()) => {
                    if what.writes()
                        && let Some(counter) = regions.counter(key)
                    {
                        counter.add(1);
                    }
                    Ok(())
                }
                Err(e) => {
                    crate::log!(Warn, "a peer's atomic operation failed: {e}");
                    Err(if e.code == Code::Bounds { Code::Bounds } else { Code::Fault })
                }
            }
        });
        match done {
            Ok(()) if !old.is_empty() => {
                let (len, ready) = (old.len(), Some(old.into()));
                conn.reads_out.push_back(ReadOut { slot, generation, key, addr, len, done: 0, offset: 0, ready });
            }
            Ok(()) => conn.link.peer.slot(slot as usize).report(generation, 0, 1),
            Err(code) => conn.link.peer.slot(slot as usize).report(generation, status_of(code), 1),
        }
        conn.link.nudge();
        Ok(())
    }
}
