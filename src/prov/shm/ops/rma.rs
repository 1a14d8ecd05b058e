// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RMA, the initiator's side. If the region's path allows a copy, the operation is copied at once; otherwise its bytes
//! go through the ring. On every path, operations take effect in the order of posting.

use super::fast::{COPY_8, COPY_SHORT, LOCKED as GENERIC, is_generic};
use super::staged;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::DEVICE_DESC;
use crate::mr::{Access, Paths};
use crate::prov::bind::{ANY_PATH, Ending, INJECT_FLAGS, PART};
use crate::prov::fast::Fast;
use crate::prov::fault::{Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, Pieces, RmaIov, measure};
use crate::prov::queue::{Completion, Queue};
use crate::prov::shm::copy::direct::{notices, notify};
use crate::prov::shm::copy::{coop, device, mixed_paths};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::{INJECT_SIZE, MAX_MSG, TX_SIZE};
use crate::prov::shm::peer::regions::RemoteRegion;
use crate::prov::shm::state::State;
use crate::prov::shm::state::job::{Job, RmaJob, Step, Stream, needs_driver, wait_for_stream};
use crate::prov::shm::wire::message::gone;
use crate::sync::gate;
use crate::sync::primitive::AtomicU64;
use crate::sync::ring::Header;
use crate::sys::copy;
use crate::sys::space::{Attach, piece};

/// Flags that keep an operation from the fast paths.
pub const SLOW_FLAGS: u64 = flags::REMOTE_CQ_DATA | flags::FENCE | PART;

impl State {
    /// Copies at once, if the operation is one piece of host memory, the peer's region is mapped here and counts no
    /// writes, and the copy overtakes no earlier operation. All checks come first, so after `Declined` nothing was
    /// done.
    ///
    /// # Safety
    /// If `VARIANT` is not generic: `tx` is the queue of the endpoint's sends, the queue and the state are without locks,
    /// `Bindings::is_fast` holds, and operations by default are without `SLOW_FLAGS`.
    #[inline(always)]
    pub unsafe fn rma_fast<const WRITE: bool, const VARIANT: u8, const SILENT: bool>(
        &mut self,
        tx: Option<&Queue>,
        local: Iov,
        addr: u64,
        key: u64,
        context: usize,
        op_flags: u64,
    ) -> Fast {
        let (any, word) = (const { is_generic(VARIANT) }, VARIANT == COPY_8);
        let (buf, len) = (local.addr(), local.len());
        if (word && len != 8) || (VARIANT == COPY_SHORT && len > copy::SHORT) {
            return Fast::Declined;
        }
        let len = if word { 8 } else { len };
        let Some(conn) = self.conn.as_deref_mut() else { return Fast::Declined };
        let need = if WRITE { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let Some(region) = conn.remotes.fast(key, need) else {
            return if any { self.rma_attach::<WRITE>(local, addr, key, context, op_flags) } else { Fast::Declined };
        };
        let offset = addr.wrapping_sub(region.base);
        let inside = if word { offset < region.words } else { offset <= region.len && region.len - offset >= len as u64 };
        let special = any && (op_flags & SLOW_FLAGS != 0 || len >= self.shared_from);
        if !inside || buf == 0 || special || !conn.is_clear() {
            return Fast::Declined;
        }
        let wanted = if any { self.bind.wants_entry(op_flags) } else { !SILENT };
        let queue = if any { self.bind.tx.as_deref() } else { tx };
        if !any {
            // SAFETY: `VARIANT` is not generic, so the caller promises that the queue is without locks.
            let open = queue.is_some_and(|q| SILENT || unsafe { q.reach::<false>() }.is_open());
            if !open {
                return Fast::Declined;
            }
        } else if wanted && queue.is_some_and(|q| !q.has_room()) {
            return Fast::Again;
        }
        // SAFETY: a word of this side's segment, which the link of this connection keeps mapped.
        let busy = unsafe { &*(conn.busy as *const AtomicU64) };
        if any {
            conn.gate.mark_in(busy, region.index)
        } else {
            conn.gate.mark(busy)
        }
        // SAFETY: the gate word of the region's entry in the peer's table, which the link keeps mapped.
        if !gate::shows(unsafe { &*(region.gate as *const AtomicU64) }, region.generation) {
            conn.gate.leave(busy);
            return Fast::Declined;
        }
        let here = region.one.here() + offset as usize;
        let (to, from) = if WRITE { (here as *mut u8, buf as *const u8) } else { (buf as *mut u8, here as *const u8) };
        // SAFETY: the caller promised by `Iov::new` that `local` is memory. The remote range was checked against the region, whose
        // entry holds the mapping.
        unsafe { if any { copy::copy(to, from, len, self.streaming_from) } else { copy::copy_short(to, from, len) } };
        let deliver = if any { op_flags & flags::DELIVERY_COMPLETE != 0 } else { self.deliver };
        if deliver {
            conn.gate.leave_delivered(busy)
        } else {
            conn.gate.leave(busy)
        }
        self.stats.moved(Paths::DIRECT, len);
        if let Some(q) = queue
            && wanted
        {
            let kind = if WRITE { flags::WRITE | flags::RMA } else { flags::READ | flags::RMA };
            let done = Completion { context, flags: kind, len, buf, data: 0 };
            match any {
                true => q.push(done),
                false => {
                    // SAFETY: `VARIANT` is not generic, so the caller promises that the queue is without locks; it was found open
                    // above.
                    unsafe { q.reach::<false>() }.push_open(done);
                    q.waiter.notify();
                }
            }
        }
        if any && let Some(counter) = if WRITE { &self.bind.counters.write } else { &self.bind.counters.read } {
            counter.add(1);
        }
        Fast::Done
    }

    /// As `rma_fast`, by cross-memory attach, with one system call. A function of its own, because inside `rma_fast`
    /// this code would make every mapped copy slower.
    #[inline(never)]
    fn rma_attach<const WRITE: bool>(&mut self, local: Iov, addr: u64, key: u64, context: usize, op_flags: u64) -> Fast {
        let (buf, len) = (local.addr(), local.len());
        let wanted = self.bind.wants_entry(op_flags);
        let Some(conn) = self.conn.as_deref_mut() else { return Fast::Declined };
        let (need, how, kind) = match WRITE {
            true => (Access::REMOTE_WRITE, Attach::Write, flags::WRITE | flags::RMA),
            false => (Access::REMOTE_READ, Attach::Read, flags::READ | flags::RMA),
        };
        let Some(region) = conn.remotes.attached(key, need) else { return Fast::Declined };
        let Ok(offset) = region.check(addr, len, need) else { return Fast::Declined };
        let special = op_flags & SLOW_FLAGS != 0 || len >= self.shared_from || len == 0 || buf == 0;
        let addr = region.one.addr() + offset;
        if special || !conn.is_clear() || !conn.reach.saw(how, addr, len) {
            return Fast::Declined;
        }
        let queue = self.bind.tx.as_deref().filter(|_| wanted);
        if queue.is_some_and(|q| !q.has_room()) {
            return Fast::Again;
        }
        let busy = conn.link.mine.busy();
        if !conn.gate.enter(busy, &conn.link.table.entry(region.index).gate, region.generation, region.index) {
            return Fast::Declined;
        }
        let moved = conn.reach.copy(how, &[local], &[piece(addr, len)]);
        conn.gate.leave(busy);
        if moved.is_err() {
            // The general path tries the copy again and reports the reason.
            return Fast::Declined;
        }
        self.stats.moved(Paths::CMA, len);
        if let Some(q) = queue {
            q.push(Completion { context, flags: kind, len, buf, data: 0 });
        }
        if let Some(counter) = if WRITE { &self.bind.counters.write } else { &self.bind.counters.read } {
            counter.add(1);
        }
        Fast::Done
    }

    /// Posts an RMA operation with any number of pieces, in host or device memory.
    #[inline(never)]
    pub fn rma(&mut self, domain: &Domain, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common) -> Result<()> {
        if let ([l], [r]) = (local, remote)
            && l.len() == r.len
            && c.desc & DEVICE_DESC == 0
        {
            // SAFETY: `GENERIC` has no precondition.
            let fast = unsafe {
                match dir {
                    Dir::Write => self.rma_fast::<true, GENERIC, false>(None, *l, r.addr, r.key, c.context, c.flags),
                    Dir::Read => self.rma_fast::<false, GENERIC, false>(None, *l, r.addr, r.key, c.context, c.flags),
                }
            };
            match fast {
                Fast::Done => return Ok(()),
                Fast::Again => return Err(Error::AGAIN),
                Fast::Declined => {}
            }
        }
        if self.conn.is_none() {
            return Err(self.not_connected());
        }
        let total = measure(local, MAX_MSG)?;
        if remote.is_empty() || remote.len() > IOV_LIMIT {
            return Err(Error::invalid(format!("rma_iov_count: {}, must be 1 to {IOV_LIMIT}", remote.len())));
        }
        let sum = remote.iter().try_fold(0usize, |s, r| s.checked_add(r.len));
        if sum != Some(total) {
            return Err(Error::invalid(format!("rma_iov: the remote lengths do not sum to the {total} bytes of the local ones")));
        }
        // A read has nothing to inject, because its buffer is filled later.
        let injects = c.flags & flags::INJECT != 0 && dir == Dir::Write;
        if injects && total > INJECT_SIZE {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {total} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
        }
        debug_assert!(total <= MAX_MSG);
        let wanted = self.wants_entry(c.flags);
        let kind = if dir == Dir::Write { flags::WRITE } else { flags::READ } | flags::RMA;
        let mut theirs = [RmaIov::default(); IOV_LIMIT];
        theirs[..remote.len()].copy_from_slice(remote);
        let pieces = Pieces::from(local).ok_or_else(|| Error::invalid("iov_count: too many pieces"))?;
        let drivers = self.options.driver_calls;
        let site = if c.desc & DEVICE_DESC == 0 { Site::HOST } else { domain.local_site(c.desc, local, drivers)? };
        if !(site.is_host() || drivers) && injects {
            return Err(needs_driver("copying device memory within an inject call"));
        }
        let buf = pieces.first();
        let mut job = RmaJob {
            dir,
            site,
            stream_after: self.options.stream,
            local: pieces,
            remote: theirs,
            count: remote.len(),
            total,
            flags: c.flags,
            data: c.data,
            desc: c.desc,
            end: Ending::of(c, kind, total, buf, wanted, self.deadline(c)),
            owned: None,
            stream: None,
            held_until: 0,
        };
        if self.conn.as_ref().is_some_and(|conn| conn.outstanding() >= TX_SIZE) || !self.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        job.end = self.place(job.end);
        let verdict = self.judge(dir.into());
        if let Verdict::Hold(until) = verdict {
            job.held_until = until;
        }
        let queued = verdict != Verdict::Go || self.conn.as_ref().is_some_and(|conn| !conn.backlog.is_empty());
        // An inject call leaves no entry to wait for, so the operation starts now or the caller gets EAGAIN.
        let injected = c.flags & INJECT_FLAGS == INJECT_FLAGS && verdict == Verdict::Go && job.end.ticket.is_none();
        if injected && queued {
            return Err(Error::AGAIN);
        }
        let step = if queued { Step::Blocked } else { self.start_rma(domain, &mut job) };
        let mut gone = None;
        match step {
            Step::Done(result) => {
                gone = result.as_ref().err().filter(|e| e.code == Code::PeerGone).cloned();
                self.end_posted(&job.end, result)
            }
            Step::InFlight => {}
            Step::Blocked if injected => return Err(Error::AGAIN),
            Step::Blocked => {
                if let Err(e) = job.copy_injected() {
                    self.end(&job.end, Err(e));
                    return Ok(());
                }
                if let Some(conn) = &mut self.conn {
                    conn.backlog.push_back(Job::Rma(Box::new(job)));
                }
            }
        }
        if verdict == Verdict::Lose {
            self.down(domain, Plan::gone());
        } else if let Some(why) = gone {
            self.down(domain, why);
        }
        Ok(())
    }

    /// Starts an operation, or puts further parts of a started one into the ring.
    pub fn start_rma(&mut self, domain: &Domain, job: &mut RmaJob) -> Step {
        let free = match &mut self.conn {
            Some(conn) if job.flags & ANY_PATH != 0 => conn.remotes.set_allowed(domain.modes.paths),
            _ => None,
        };
        let mut step = self.try_rma(domain, job);
        // Each region's path may turn out not to work, which costs one more attempt for each region at most.
        for _ in 0..=job.count {
            if step.is_ok() || !self.conn.as_mut().is_some_and(|conn| std::mem::take(&mut conn.rerouted)) {
                break;
            }
            step = self.try_rma(domain, job);
        }
        if let (Some(ruled), Some(conn)) = (free, &mut self.conn) {
            conn.remotes.set_allowed(ruled);
        }
        match step {
            Ok(step) => step,
            Err(e) => {
                if let (Some(conn), Some(s)) = (&mut self.conn, job.stream.take()) {
                    conn.slots.release(s.slot);
                    conn.staged -= 1;
                }
                Step::Done(Err(e))
            }
        }
    }

    fn try_rma(&mut self, domain: &Domain, job: &mut RmaJob) -> Result<Step> {
        let Some(conn) = self.conn.as_deref_mut() else { return Err(gone()) };
        if job.stream.is_some() {
            return staged::stream(conn, job);
        }
        conn.check_alive()?;
        let fenced = job.flags & flags::FENCE != 0 && !(conn.slots.active.is_empty() && conn.devices.is_idle());
        if conn.coop > 0 || fenced {
            return Ok(Step::Blocked);
        }
        conn.remotes.map_for(job.site);
        let injected = job.flags & flags::INJECT != 0 && job.dir == Dir::Write;
        let meanwhile = if injected { Paths::CMA | Paths::STAGED } else { Paths::empty() };
        let mut regions: Vec<(RemoteRegion, u64)> = Vec::with_capacity(job.count);
        for r in job.remote() {
            let Some(region) = conn.reach(r.key, meanwhile)? else { return Ok(Step::Blocked) };
            let offset = region.check(r.addr, r.len, job.need())?;
            regions.push((region, offset));
        }
        if conn.devices.copier.is_some() {
            device::check_no_driver(job, &regions)?;
        }
        if !mixed_paths::pages_are_present(conn, job, &regions) {
            return Ok(Step::Blocked);
        }
        let notes = notices(job.count);
        let has_notes = job.has_data() || regions.iter().any(|(p, _)| p.event);
        if regions.iter().any(|(p, _)| p.path == Paths::STAGED) {
            if !conn.devices.is_idle() || (job.dir == Dir::Write && conn.slots.is_reading()) {
                return Ok(Step::Blocked);
            }
            let mixed = regions.iter().any(|(p, _)| p.path != Paths::STAGED);
            if mixed && (conn.staged > 0 || (has_notes && !conn.room(notes)?)) {
                return Ok(Step::Blocked);
            }
            wait_for_stream(job.site, &mut job.stream_after)?;
            if !job.site.is_host() && job.dir == Dir::Write {
                job.take_copy()?;
            }
            let whole = Header { words: 5, bytes: job.total.min(INJECT_SIZE) as u16, ..Header::default() };
            if job.flags & INJECT_FLAGS == INJECT_FLAGS && !conn.room(whole)? {
                return Ok(Step::Blocked);
            }
            let Some((slot, generation)) = conn.slots.reserve() else { return Ok(Step::Blocked) };
            conn.staged += 1;
            job.stream = Some(Stream { slot, generation, at: 0, inside: 0, sent: 0 });
            conn.link.mine.slot(slot as usize).open(generation, 1);
            if mixed {
                mixed_paths::need_several_paths(job.site, &regions)?;
                let moved = mixed_paths::move_all(conn, job, &regions, &mut self.stats)?;
                notify(conn, job.dir, None, job.total, &moved);
                job.keep(|i| regions[i].0.path == Paths::STAGED);
            }
            self.stats.moved(Paths::STAGED, job.total);
            return staged::stream(conn, job);
        }
        if conn.staged > 0 || (has_notes && !conn.room(notes)?) {
            return Ok(Step::Blocked);
        }
        // A driver's copy runs on after an inject call has returned, when the caller may reuse the buffer.
        if job.flags & flags::INJECT != 0 && (!job.site.is_host() || regions.iter().any(|(p, _)| p.path == Paths::IPC)) {
            job.copy_injected()?;
        }
        let several = mixed_paths::need_several_paths(job.site, &regions)?;
        conn.devices.after = (self.options.stream != 0).then_some(self.options.stream);
        let path = regions.first().map_or(Paths::IPC, |(p, _)| p.path);
        if !several && let Some(step) = device::start(conn, domain, job, &mut regions)? {
            if !matches!(step, Step::Blocked) {
                // The bytes count under the path of the peer's region, which ep_query reports, even if the driver is
                // that of local memory.
                self.stats.moved(path, job.total);
            }
            return Ok(step);
        }
        if !conn.devices.is_idle() {
            return Ok(Step::Blocked);
        }
        if let [(region, offset)] = &regions[..]
            && !several
            && let Some(step) = coop::start(self, domain, job, region, *offset)?
        {
            return Ok(step);
        }
        let Some(conn) = self.conn.as_deref_mut() else { return Err(gone()) };
        let events = mixed_paths::move_all(conn, job, &regions, &mut self.stats)?;
        notify(conn, job.dir, job.has_data().then_some(job.data), job.total, &events);
        Ok(Step::Done(Ok(())))
    }
}
