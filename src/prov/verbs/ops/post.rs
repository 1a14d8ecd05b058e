// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posting operations. An operation becomes a work request, and one ring of the doorbell posts a batch of work
//! requests. Operations that have to wait go to the staging queue (`staged_transfer.rs`).

use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::bind::Ending;
use crate::prov::bind::{PART, SILENT};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, RmaIov, measure};
use crate::prov::verbs::limits::MAX_MSG;
use crate::prov::verbs::memory::bounce;
use crate::prov::verbs::memory::mr::{self, BufferKind};
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::work::{CHAIN, ENTRY_ONLY, RemoteAddr, SIGNALED, TxOp, UnpostedRequest};
use crate::prov::verbs::state::State;
use crate::prov::verbs::state::staging::{StagedTransfer, WaitingOp, kind_of};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE;
pub(in crate::prov::verbs) const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE;

pub(in crate::prov::verbs) fn key_of(key: u64) -> Result<u32> {
    u32::try_from(key).map_err(|_| Error::invalid(format!("key: {key:#x} has more than the 32 bits of a verbs key")))
}

#[cold]
fn data_with_read() -> Error {
    Error::invalid("flags: a read carries no remote data")
}

#[cold]
pub(in crate::prov::verbs) fn too_many(pieces: usize, most: u32) -> Error {
    Error::invalid(format!("iov_count: {pieces} pieces, the device's limit is {most}"))
}

fn data_of(c: &Common) -> Result<Option<u32>> {
    if c.flags & flags::REMOTE_CQ_DATA == 0 {
        return Ok(None);
    }
    let data = u32::try_from(c.data).map_err(|_| Error::invalid(format!("data: {:#x} exceeds the 4 bytes of cq_data_size", c.data)))?;
    Ok(Some(data))
}

#[inline(always)]
pub(in crate::prov::verbs) fn check_completion(c: &Common) -> Result<()> {
    match c.flags & flags::DELIVERY_COMPLETE {
        0 => Ok(()),
        _ => Err(Error::fixed(errno::EOPNOTSUPP, "flags: verbs does not support GDRFAB_DELIVERY_COMPLETE; use GDRFAB_TRANSMIT_COMPLETE")),
    }
}

/// Sets the remote address, the key and, for an atomic, the operands of a work request.
pub(in crate::prov::verbs) fn aim(
    wr: &mut ibv_send_wr,
    RemoteAddr { addr: remote_addr, key: rkey }: RemoteAddr,
    [compare_add, swap]: [u64; 2],
) {
    match wr.opcode {
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
        }
        _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey },
    }
}

impl State {
    /// Posts a write or read with one remote piece and up to eight local pieces.
    #[inline]
    pub fn rma(&mut self, memory: &Arc<Registered>, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common, descs: &[u64]) -> Result<()> {
        let [remote] = remote else {
            return Err(Error::invalid(format!("rma_iov_count: {}, must be 1 over verbs (rma_iov_limit)", remote.len())));
        };
        let total = measure(local, MAX_MSG)?;
        if remote.len != total {
            return Err(Error::invalid(format!("rma_iov: {} bytes, but the local iov has {total}", remote.len)));
        }
        let data = data_of(c)?;
        if remote.key >> 32 != 0 && mr::is_staged(remote.key) {
            if dir == Dir::Read && data.is_some() {
                return Err(data_with_read());
            }
            return self.transfer(memory, dir, local, total, remote, data, c, descs);
        }
        let target = RemoteAddr { addr: remote.addr, key: key_of(remote.key)? };
        let (opcode, kind) = match (dir, data) {
            (Dir::Write, None) => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, flags::RMA | flags::WRITE),
            (Dir::Write, Some(_)) => (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, flags::RMA | flags::WRITE),
            (Dir::Read, None) => (ibv_wr_opcode::IBV_WR_RDMA_READ, flags::RMA | flags::READ),
            (Dir::Read, Some(_)) => return Err(data_with_read()),
        };
        if self.rails.as_ref().is_some_and(|rails| total >= rails.min_striped)
            && let Some(striped) = self.stripe_rma(memory, dir, local, total, remote, c, descs)
        {
            return striped;
        }
        self.post(memory, opcode, kind, local, total, target, data, c, descs)
    }

    #[inline]
    pub fn send(&mut self, memory: &Arc<Registered>, local: &[Iov], c: &Common, descs: &[u64]) -> Result<()> {
        let total = measure(local, MAX_MSG)?;
        let data = data_of(c)?;
        let opcode = if data.is_some() { ibv_wr_opcode::IBV_WR_SEND_WITH_IMM } else { ibv_wr_opcode::IBV_WR_SEND };
        self.post(memory, opcode, flags::MSG | flags::SEND, local, total, RemoteAddr::default(), data, c, descs)
    }

    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn post(
        &mut self,
        memory: &Arc<Registered>,
        opcode: ibv_wr_opcode::Type,
        kind: u64,
        local: &[Iov],
        total: usize,
        target: RemoteAddr,
        data: Option<u32>,
        c: &Common,
        descs: &[u64],
    ) -> Result<()> {
        let capacity = self.check_connected()?.capacity;
        let inline_max = capacity.inline as usize;
        if local.len() > capacity.tx_pieces as usize {
            return Err(too_many(local.len(), capacity.tx_pieces));
        }
        check_completion(c)?;
        if self.tx.is_full() || self.batch.len == CHAIN {
            return Err(Error::AGAIN);
        }
        let read = kind & flags::READ != 0;
        let inject = c.flags & flags::INJECT != 0 && !read;
        let at = self.batch.len;
        let mut bounce = None;
        if inject && total > inline_max {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {total} bytes, more than the {inline_max} of inject_size")));
        }
        let (mut count, mut here) = mr::pieces(local, descs, inject, &mut self.batch.pieces[at])?;
        if here == BufferKind::Staged {
            here = memory.regions.lock().resolve(local, descs, &mut self.batch.pieces[at])?;
        }
        let bounced = here == BufferKind::Staged || (inject && here == BufferKind::Device);
        // RMA has a path, which is chosen and counted here; messages have none.
        let how = match kind & flags::RMA {
            0 => 0,
            _ if bounced => mr::BOUNCED,
            _ => mr::all_path_bits(local, descs),
        };
        if kind & flags::RMA != 0
            && let Some(why) = self.ruled_out(mr::path_of(how))
        {
            return self.refuse_rma(kind, total, local, c, why);
        }
        if bounced {
            let fresh = bounce::take(memory, local, descs, total, !read)?;
            (self.batch.pieces[at][0], count) = (fresh.piece(), usize::from(total > 0));
            bounce = Some(fresh);
        }
        // Soft-iWARP executes a read without a piece with the piece that an earlier request left in the same slot of
        // the queue, so a piece of no bytes is given.
        if read && count == 0 && self.unordered {
            (self.batch.pieces[at][0], count) = (ibv_sge { addr: 0, length: 0, lkey: 0 }, 1);
        }
        let end_wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(end_wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c.timeout_ns);
        let ahead = self.unsignalled;
        let part = c.flags & PART != 0;
        let signal = end_wanted | part | self.signal_all | (deadline != 0) | bounce.is_some() | (ahead >= self.tx.limit() / 4);
        self.unsignalled = if signal { 0 } else { ahead + 1 };
        let inline = bounce.is_none() && !read && here == BufferKind::Host && total <= inline_max;
        let mut send_flags = if signal { SIGNALED } else { 0 };
        send_flags |= if inline && total > 0 { INLINE } else { 0 };
        let fence = c.flags & flags::FENCE != 0 && self.needs_fence(read);
        send_flags |= if fence { FENCE } else { 0 };

        let buf = local.first().map_or(0, |v| v.addr());
        let end = Ending {
            context: c.context,
            kind,
            len: total,
            buf,
            wanted: end_wanted,
            deadline,
            silent: c.flags & SILENT != 0,
            part: c.flags & PART != 0,
            ticket: None,
        };
        let entry_only = end_wanted && !self.signal_all && bounce.is_none() && deadline == 0;
        let how = how | if entry_only { ENTRY_ONLY } else { 0 };
        let op = TxOp { end, path_bits: how, bounce, ..TxOp::default() };
        // Fault injection acts on the staging queue, so every operation goes through that queue.
        if self.must_wait() || self.faults.is_some() {
            let pieces = self.batch.pieces[at];
            let send_flags = send_flags | SIGNALED;
            let ready = UnpostedRequest { pieces, count, target, send_flags, op, ..UnpostedRequest::empty(opcode, data) };
            return self.enqueue_request(ready, inject);
        }
        let wr = &mut self.batch.wrs[at];
        wr.wr_id = self.tx_tag.send(self.tx.next());
        wr.next = null_mut();
        wr.sg_list = (&raw mut self.batch.pieces[at]).cast();
        wr.num_sge = count as i32;
        wr.opcode = opcode;
        wr.send_flags = send_flags;
        wr.wr.rdma.remote_addr = target.addr;
        wr.wr.rdma.rkey = target.key;
        if let Some(data) = data {
            wr.imm_data = data.to_be();
        }
        self.tx.push(op);
        self.data_sent += u64::from(opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
        self.batch.len = at + 1;
        if c.flags & flags::MORE != 0 && !inject && at + 1 < CHAIN {
            self.close_fast();
            return Ok(());
        }
        self.post_batch(true)?;
        self.try_open_fast();
        Ok(())
    }

    /// The error of an operation that takes this path, if the endpoint's options rule the path out.
    pub fn ruled_out(&self, path: Paths) -> Option<Error> {
        let policy = &self.options.policy;
        if policy.allowed().contains(path) {
            return None;
        }
        let (by, which) = match policy.forbid.contains(path) {
            true => ("GDRFAB_OPT_FORBID_PATH", policy.forbid),
            false => ("GDRFAB_OPT_REQUIRE_PATH", policy.require),
        };
        let words = format!("the operation needs the path {}, which {by}={} of this endpoint rules out", path.words(), which.words());
        Some(Error::coded(errno::EOPNOTSUPP, Code::Path, words))
    }

    /// Accepts an operation that no permitted path can carry out, and fails the operation at once, as every provider
    /// does.
    #[cold]
    pub(in crate::prov::verbs) fn refuse_rma(&mut self, kind: u64, len: usize, local: &[Iov], c: &Common, why: Error) -> Result<()> {
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        // Earlier operations with `GDRFAB_MORE` wait in the batch; they are posted now.
        self.flush_batch();
        let end = Ending {
            context: c.context,
            kind,
            len,
            buf: local.first().map_or(0, |v| v.addr()),
            wanted,
            part: c.flags & PART != 0,
            ..Ending::default()
        };
        self.stats.errors += 1;
        self.bind.fail(&end, why);
        Ok(())
    }

    /// True if the device has to delay a fenced operation. A queue pair executes operations in order, except behind
    /// reads and atomics, whose answers come later. A fence that is not needed is avoided, because soft-RoCE may forget
    /// to wake a request that it delays.
    #[cold]
    pub fn needs_fence(&self, read: bool) -> bool {
        // The peer answers the reads of one connection in order, and soft-iWARP refuses a fence before a read.
        if read && self.unordered {
            return false;
        }
        // An operation in the staging queue may be a read or an atomic.
        self.must_wait() || self.faults.is_some() || self.tx.iter().any(|op| op.end.kind & (flags::READ | flags::ATOMIC) != 0)
    }

    /// Posts a staged transfer: a read or write of memory that the peer's device does not reach.
    #[cold]
    #[allow(clippy::too_many_arguments)]
    fn transfer(
        &mut self,
        memory: &Arc<Registered>,
        dir: Dir,
        local: &[Iov],
        total: usize,
        remote: &RmaIov,
        data: Option<u32>,
        c: &Common,
        descs: &[u64],
    ) -> Result<()> {
        let most = self.check_connected()?.capacity.tx_pieces;
        if local.len() > most as usize {
            return Err(too_many(local.len(), most));
        }
        check_completion(c)?;
        if self.staging.jobs.len() >= self.tx.limit() as usize {
            return Err(Error::AGAIN);
        }
        if let Some(why) = self.ruled_out(Paths::STAGED) {
            return self.refuse_rma(kind_of(dir), total, local, c, why);
        }
        let inject = c.flags & flags::INJECT != 0 && dir == Dir::Write;
        // SAFETY: integers, for all of which zero is a valid value.
        let mut pieces: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
        let (mut count, mut here) = mr::pieces(local, descs, inject, &mut pieces)?;
        if here == BufferKind::Staged {
            here = memory.regions.lock().resolve(local, descs, &mut pieces)?;
        }
        let mut bounce = None;
        if here == BufferKind::Staged || inject {
            let fresh = bounce::take(memory, local, descs, total, dir == Dir::Write)?;
            (pieces[0], count) = (fresh.piece(), usize::from(total > 0));
            bounce = Some(fresh);
        }
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c.timeout_ns);
        let buf = local.first().map_or(0, |v| v.addr());
        let end = Ending {
            context: c.context,
            kind: kind_of(dir),
            len: total,
            buf,
            wanted,
            deadline,
            silent: c.flags & SILENT != 0,
            part: c.flags & PART != 0,
            ticket: None,
        };
        let t = StagedTransfer::new(dir, remote.key, remote.addr, pieces, count, bounce, data, end);
        // Earlier operations with `GDRFAB_MORE` wait in the batch; they are posted now.
        self.flush_batch();
        self.enqueue(WaitingOp::Staged(Box::new(t)))
    }

    /// Puts a work request into the staging queue. The bytes of an inject call are copied, because the caller may
    /// change them as soon as the call returns.
    #[cold]
    pub(in crate::prov::verbs) fn enqueue_request(&mut self, mut ready: UnpostedRequest, inject: bool) -> Result<()> {
        if self.staging.jobs.len() >= self.tx.limit() as usize {
            if ready.op.end.wanted
                && let Some(q) = &self.bind.tx
            {
                q.release();
            }
            return Err(Error::AGAIN);
        }
        if inject && ready.op.bounce.is_none() {
            let mut bytes = Vec::with_capacity(ready.op.end.len);
            for p in &ready.pieces[..ready.count] {
                // SAFETY: the caller of the C API promises that the pieces are readable during the call.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(p.addr as *const u8, p.length as usize) });
            }
            let owned: Box<[u8]> = bytes.into();
            ready.pieces[0] = ibv_sge { addr: owned.as_ptr() as u64, length: owned.len() as u32, lkey: 0 };
            ready.count = usize::from(!owned.is_empty());
            ready._owned = Some(owned);
        }
        self.enqueue(WaitingOp::Plain(Box::new(ready)))
    }

    /// Posts a request from the staging queue; the caller has checked that the device's queue has room. A failure
    /// becomes an error entry.
    pub fn post_queued(&mut self, mut ready: UnpostedRequest) {
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = self.tx_tag.send(self.tx.next());
        wr.sg_list = ready.pieces.as_mut_ptr();
        wr.num_sge = ready.count as i32;
        wr.opcode = ready.opcode;
        wr.send_flags = ready.send_flags;
        aim(&mut wr, ready.target, ready.operands);
        if let Some(data) = ready.data {
            wr.imm_data = data.to_be();
        }
        let posted = match &self.qp {
            // SAFETY: the request lives for the call; inline bytes are copied, and the caller that posted the operation keeps the others
            // until it completes.
            Some(qp) => unsafe { qp.post_send(&mut wr) }.map_err(|(_, err)| status::call_error("posting a work request", err)),
            None => Err(self.not_connected()),
        };
        match posted {
            Ok(()) => {
                self.unsignalled = 0;
                self.data_sent += u64::from(ready.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
                self.tx.push(ready.op);
            }
            Err(e) if !ready.op.internal => {
                self.stats.errors += 1;
                self.bind.fail(&ready.op.end, e);
            }
            Err(_) => {}
        }
    }

    /// Makes sure that a completion will come for everything posted so far. If the last operation asks for none, an
    /// empty write is posted after it.
    pub fn request_completion(&mut self) {
        self.flush_batch();
        if self.unsignalled > 0 && !self.tx.is_full() {
            let mut ready = UnpostedRequest::empty(ibv_wr_opcode::IBV_WR_RDMA_WRITE, None);
            (ready.op.internal, ready.op.end.wanted) = (true, false);
            self.post_queued(ready);
        }
    }

    /// Posts the batch. All of its operations were accepted before, so failures become error entries.
    pub fn flush_batch(&mut self) {
        if let Err(e) = self.post_batch(false) {
            crate::log!(Warn, "{e}");
        }
    }

    /// Posts the batch. Operations of earlier calls were accepted, so their failures become error entries. `own`: the
    /// last operation belongs to the current call, which returns the failure of that operation.
    #[inline(always)]
    fn post_batch(&mut self, own: bool) -> Result<()> {
        let n = self.batch.len;
        if n == 0 {
            return Ok(());
        }
        self.batch.len = 0;
        let first: *mut ibv_send_wr = self.batch.wrs.as_mut_ptr();
        for i in 1..n {
            // SAFETY: both elements lie in the array.
            unsafe { (*first.add(i - 1)).next = first.add(i) };
        }
        let Some(qp) = &self.qp else { return Err(self.not_connected()) };
        // SAFETY: the batch and its pieces belong to `self`; the callers that posted the operations keep the buffers until they complete.
        match unsafe { qp.post_send(first) } {
            Ok(()) => Ok(()),
            Err((bad, err)) => self.batch_refused(n, first, bad, err, own),
        }
    }

    #[cold]
    fn batch_refused(&mut self, n: usize, first: *mut ibv_send_wr, bad: *mut ibv_send_wr, err: i32, own: bool) -> Result<()> {
        let taken = (bad as usize).wrapping_sub(first as usize) / size_of::<ibv_send_wr>();
        let error = match err {
            errno::ENOMEM => Error::AGAIN,
            err => status::call_error("posting a work request", err),
        };
        // Newest first, because `unpush` removes the newest operation.
        for i in (taken.min(n)..n).rev() {
            let op = self.tx.unpush();
            let with_data = self.batch.wrs.get(i).is_some_and(|wr| wr.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
            self.data_sent -= u64::from(with_data);
            if own && i + 1 == n {
                if op.end.wanted
                    && let Some(q) = &self.bind.tx
                {
                    q.release();
                }
            } else {
                self.stats.errors += 1;
                self.bind.fail(&op.end, error.clone());
            }
        }
        self.unsignalled = self.tx.limit();
        Err(error)
    }

    /// Fails the operations of the batch, whose last operation will not come.
    pub fn fail_batch(&mut self) {
        for _ in 0..std::mem::take(&mut self.batch.len) {
            let op = self.tx.unpush();
            let why = self.end_reason.as_ref().map_or("", |e| e.words.as_ref());
            let error = Error::coded(errno::ECANCELED, Code::Canceled, format!("the operation was never posted: {why}"));
            self.stats.errors += 1;
            self.bind.fail(&op.end, error);
        }
    }
}
