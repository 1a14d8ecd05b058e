// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Staged transfers, initiator's side: reads and writes of memory that the peer's device does not reach. The bytes go
//! through buffers (slots) of the peer, and the peer's CPU copies them. While a staged transfer is in flight, later
//! operations of the endpoint wait in the staging queue, so that operations take effect in the order of posting.

use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::fault::{FaultOp, Verdict};
use crate::prov::op::Dir;
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::service::{self, Message, SLOTS, kind};
use crate::prov::verbs::queue::work::{TxOp, UnpostedRequest};
use crate::prov::verbs::state::State;
use crate::prov::verbs::state::staging::{Chunk, MAX_STAGED_ARRIVALS, RemoteSlots, StagedTransfer, StagingQueue, WaitingOp};
use crate::prov::verbs::sys::abi::ibv_wr_opcode;
use crate::sys::time::now_ns;

impl State {
    /// Puts an operation into the staging queue, and starts the operation if nothing is before it.
    pub fn enqueue(&mut self, mut job: WaitingOp) -> Result<()> {
        if let WaitingOp::Staged(_) = &job
            && !self.service.as_ref().is_some_and(|s| s.up)
        {
            if job.ending().wanted
                && let Some(q) = &self.bind.tx
            {
                q.release();
            }
            return Err(Error::coded(
                errno::EOPNOTSUPP,
                Code::Path,
                "key: names a staged region, but this connection has no staged transfers (iWARP, or a peer that does not use gdrfab)",
            ));
        }
        self.close_fast();
        let verdict = self.apply_fault(FaultOp::of(job.ending().kind));
        match verdict {
            Verdict::Go => {}
            Verdict::Hold(until) => job.hold(until),
            // The operation never starts; it ends with the other operations in the queue.
            Verdict::Lose => job.hold(u64::MAX),
        }
        self.staging.jobs.push_back(job);
        if verdict == Verdict::Lose {
            self.simulate_peer_loss();
        } else {
            self.run_queue();
        }
        Ok(())
    }

    /// Starts or advances the operations in the staging queue.
    pub fn run_queue(&mut self) {
        while let Some(job) = self.staging.jobs.pop_front() {
            if job.held_until() != 0 && now_ns() < job.held_until() {
                return self.staging.jobs.push_front(job);
            }
            // Only another striped operation may begin while a striped operation is in flight.
            let busy = self.rails.as_ref().is_some_and(|r| !r.active.is_empty());
            match job {
                WaitingOp::Striped(stripe) if self.may_begin(&stripe) => _ = self.begin_stripe(*stripe),
                WaitingOp::Striped(_) => return self.staging.jobs.push_front(job),
                _ if busy => return self.staging.jobs.push_front(job),
                WaitingOp::Plain(ready) => {
                    if self.tx.is_full() {
                        return self.staging.jobs.push_front(WaitingOp::Plain(ready));
                    }
                    self.post_queued(*ready);
                }
                WaitingOp::Staged(mut t) => match self.advance(&mut t) {
                    Ok(true) => self.finish_transfer(*t),
                    Ok(false) => return self.staging.jobs.push_front(WaitingOp::Staged(t)),
                    Err(e) => {
                        t.failed = Some(e);
                        self.finish_transfer(*t);
                    }
                },
            }
        }
    }

    /// Advances the transfer at the head of the queue. True: the transfer has ended.
    fn advance(&mut self, t: &mut StagedTransfer) -> Result<bool> {
        if !t.asked && t.begun == 0 && !self.tx.is_empty() {
            // Earlier operations must have taken effect before the transfer begins.
            self.request_completion();
            return Ok(false);
        }
        let Some(service) = self.service.as_mut() else { return Err(Error::fixed(errno::ENOTCONN, "ep: not connected")) };
        let Some(remote) = self.staging.remote_slots else {
            if !self.staging.asked {
                self.staging.asked = true;
                service.send([u64::from(kind::OPEN), 0, 0, 0, 0, 0, 0, 0])?;
            }
            return Ok(false);
        };
        let total = t.end.len;
        let most = self.faults.as_ref().and_then(|f| f.plan.short()).map_or(remote.size, |n| n.min(remote.size));
        while t.failed.is_none() && (t.begun < total || !t.asked) && service.has_room() {
            let Some(slot) = self.staging.busy[..remote.count].iter().position(Option::is_none) else { break };
            let len = (total - t.begun).min(most);
            let chunk = Chunk { offset: t.begun, len };
            let place = remote.addr.wrapping_add((slot * remote.size) as u64);
            if t.dir == Dir::Write && len > 0 {
                let (mut pieces, n) = t.cut(chunk.offset, len);
                service.write(&mut pieces[..n], place, remote.rkey)?;
            }
            let what = if t.dir == Dir::Write { kind::PUT } else { kind::GET };
            let last = t.begun + len == total;
            let note = if last && t.data.is_some() { self.data_sent + 1 } else { 0 };
            service.send([
                u64::from(what) | (slot as u64) << 8,
                0,
                t.key,
                t.addr.wrapping_add(chunk.offset as u64),
                len as u64,
                note,
                total as u64,
                0,
            ])?;
            self.staging.busy[slot] = Some(chunk);
            (t.begun, t.asked, t.open) = (t.begun + len, true, t.open + 1);
        }
        Ok(t.open == 0 && (t.begun == total || t.failed.is_some()) && t.asked)
    }

    fn finish_transfer(&mut self, t: StagedTransfer) {
        let placed = match (t.failed, &t.bounce) {
            (Some(e), _) => Err(e),
            (None, Some(bounce)) if t.dir == Dir::Read => bounce.scatter(t.end.len),
            _ => Ok(()),
        };
        match (placed, t.data) {
            (Err(e), _) => {
                self.stats.errors += 1;
                self.bind.fail(&t.end, e);
            }
            (Ok(()), None) => {
                self.stats.moved(Paths::STAGED, t.end.len);
                self.bind.succeed(&t.end);
            }
            // The write counts as done when its data has arrived at the peer, so the data is sent last.
            (Ok(()), Some(data)) => {
                let mut ready = UnpostedRequest::empty(ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, Some(data));
                ready.op = TxOp { end: t.end, path_bits: mr::BOUNCED, ..TxOp::default() };
                self.post_queued(ready);
            }
        }
    }

    /// Handles a message of the peer's service queue pair.
    pub fn on_message(&mut self, memory: &Registered, words: &Message) -> Result<()> {
        match words[0] as u8 {
            kind::BYE => {
                self.link.set_bye_received();
                self.peer_closed(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection"));
            }
            kind::OPEN => {
                if let Some(service) = &mut self.service {
                    let refused = |e| {
                        crate::log!(Error, "creating the buffers for staged transfers: {e}");
                        [u64::from(kind::OPENED), 0, 0, 0, 0, 0, 0, 0]
                    };
                    let opened = service.open_slots(memory).unwrap_or_else(refused);
                    service.answer(opened)?;
                }
            }
            kind::OPENED => self.on_opened(words),
            kind::PUT | kind::GET => {
                if words[5] != 0 && self.staging.staged_arrivals.len() < MAX_STAGED_ARRIVALS {
                    self.staging.staged_arrivals.push_back((words[5] - 1, words[6] as usize));
                }
                if let Some(service) = &mut self.service {
                    let done = service.serve(memory, words);
                    service.answer(done)?;
                }
            }
            kind::DONE => self.on_done(words),
            kind::RAIL_OFFER..=kind::KEYS_FORGOT => self.on_rail_message(memory, words)?,
            _ => {}
        }
        Ok(())
    }

    fn on_opened(&mut self, words: &Message) {
        let (count, size) = (words[3] as usize, words[4] as usize);
        if count == 0 || count > SLOTS || size == 0 || size > 1 << 30 {
            let why = Error::coded(errno::ENOMEM, Code::Path, "the peer has no buffers for staged transfers");
            while let Some(job) = self.staging.jobs.pop_front() {
                match job {
                    WaitingOp::Staged(mut t) => {
                        t.failed = Some(why.clone());
                        self.finish_transfer(*t);
                    }
                    WaitingOp::Plain(ready) => self.post_queued(*ready),
                    WaitingOp::Striped(stripe) => _ = self.begin_stripe(*stripe),
                }
            }
            self.staging.asked = false;
            return;
        }
        self.staging.remote_slots = Some(RemoteSlots { addr: words[1], rkey: words[2] as u32, count, size });
        self.run_queue();
    }

    /// The peer has executed a PUT or GET.
    fn on_done(&mut self, words: &Message) {
        let slot = (words[0] >> 8 & 0xff) as usize;
        let Some(chunk) = self.staging.busy.get(slot).copied().flatten() else { return };
        let Some(WaitingOp::Staged(t)) = self.staging.jobs.front_mut() else { return };
        let mut over = true;
        match (service::outcome(words), t.dir, self.staging.remote_slots, &mut self.service) {
            (Some(e), ..) => t.failed = Some(e),
            (None, Dir::Read, Some(remote), Some(service)) if chunk.len > 0 => {
                let (mut pieces, n) = t.cut(chunk.offset, chunk.len);
                match service.read(slot, &mut pieces[..n], remote.addr.wrapping_add((slot * remote.size) as u64), remote.rkey) {
                    Ok(()) => over = false,
                    Err(e) => t.failed = Some(e),
                }
            }
            _ => {}
        }
        if over {
            self.free_slot(slot);
        }
    }

    /// Frees a slot of the peer and goes on with the queue.
    pub fn free_slot(&mut self, slot: usize) {
        if self.staging.busy.get_mut(slot).and_then(Option::take).is_none() {
            return;
        }
        if let Some(WaitingOp::Staged(t)) = self.staging.jobs.front_mut() {
            t.open = t.open.saturating_sub(1);
        }
        self.run_queue();
    }

    /// Fails the operations in the queue, because the connection is over and the device holds none of their buffers.
    pub fn flush_queue(&mut self) {
        for job in std::mem::take(&mut self.staging.jobs) {
            let end = *job.ending();
            let error = self.flushed(end.deadline);
            self.stats.errors += 1;
            self.bind.fail(&end, error);
        }
        self.staging = StagingQueue::default();
    }

    /// True if an operation for the endpoint's own queue pair has to wait in the staging queue.
    #[inline(always)]
    pub fn must_wait(&self) -> bool {
        !self.staging.jobs.is_empty() || self.rails.as_ref().is_some_and(|r| !r.active.is_empty())
    }
}
