// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posting receives, and handling arrivals.

use super::post::too_many;
use crate::error::{Error, Result, errno};
use crate::prov::flags;
use crate::prov::op::{Common, IOV_LIMIT, Iov, measure};
use crate::prov::queue::Completion;
use crate::prov::verbs::limits::MAX_MSG;
use crate::prov::verbs::memory::bounce;
use crate::prov::verbs::memory::mr::{self, BufferKind};
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::work::RxOp;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::{ibv_recv_wr, ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

impl State {
    /// Posts a receive.
    pub fn recv(&mut self, memory: &Arc<Registered>, local: &[Iov], c: &Common, descs: &[u64]) -> Result<()> {
        if self.bind.rx.is_none() && self.bind.counters.recv.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for receives"));
        }
        if self.own_receives {
            return Err(Error::fixed(
                errno::EOPNOTSUPP,
                "ep: receives need an endpoint opened with GDRFAB_MSG and GDRFAB_RECV in info->caps",
            ));
        }
        match &self.phase {
            Phase::Fresh => return Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable before posting receives")),
            Phase::Draining | Phase::Down(_) => return Err(self.not_connected()),
            _ => {}
        }
        let room = measure(local, MAX_MSG)?;
        let most = self.qp.as_ref().map_or(0, |q| q.capacity.rx_pieces);
        if local.len() > most as usize {
            return Err(too_many(local.len(), most));
        }
        if self.rx.is_full() {
            return Err(Error::AGAIN);
        }
        // SAFETY: integers, for all of which zero is a valid value.
        let mut pieces: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
        let (mut count, mut here) = mr::pieces(local, descs, false, &mut pieces)?;
        if here == BufferKind::Staged {
            here = memory.regions.lock().resolve(local, descs, &mut pieces)?;
        }
        let mut bounce = None;
        if here == BufferKind::Staged {
            let fresh = bounce::take(memory, local, descs, room, false)?;
            (pieces[0], count) = (fresh.piece(), usize::from(room > 0));
            bounce = Some(fresh);
        }
        let deadline = self.recv_deadline(c.timeout_ns);
        let buf = local.first().map_or(0, |v| v.addr());
        let op = RxOp {
            context: c.context,
            buf,
            room,
            wanted: self.bind.wants_receive(c.flags),
            own: false,
            deadline,
            entry_only: false,
            bounce,
        };
        let op = RxOp { entry_only: op.wanted && op.bounce.is_none(), ..op };
        if self.faults.is_some() {
            return self.recv_faulty(pieces, count, op);
        }
        self.post_receive(&mut pieces, count, op)?;
        self.try_open_fast_receive();
        Ok(())
    }

    pub fn post_receive(&mut self, pieces: &mut [ibv_sge; IOV_LIMIT], count: usize, op: RxOp) -> Result<()> {
        let Some(qp) = &self.qp else { return Err(self.not_connected()) };
        // Soft-iWARP refuses a receive without a piece.
        let count = if self.unordered { count.max(1) } else { count };
        let mut wr =
            ibv_recv_wr { wr_id: self.rx_tag.recv(self.rx.next()), next: null_mut(), sg_list: pieces.as_mut_ptr(), num_sge: count as i32 };
        // SAFETY: request and pieces live for the call; the caller that posted the receive keeps the buffers until it completes.
        unsafe { qp.post_recv(&mut wr)? };
        self.rx.push(op);
        Ok(())
    }

    /// Posts a receive of the provider's own. A write with data needs no buffer in its receive, so the receive has
    /// none.
    pub fn repost_own(&mut self) {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut pieces: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
        let op = RxOp { wanted: self.bind.rx.is_some(), own: true, ..RxOp::default() };
        if let Err(e) = self.post_receive(&mut pieces, 0, op) {
            crate::log!(Error, "posting a receive for the peer's writes with data: {e}");
        }
    }

    /// Handles a receive that has completed or that the device has returned.
    pub(in crate::prov::verbs) fn rx_completed(&mut self, wc: &ibv_wc, seq: u32) {
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS && self.absorb_failure(wc, true, seq) {
            return;
        }
        let Some(op) = self.rx.pop_until(seq) else { return };
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            self.rx_failed(op, wc);
            return self.finish_if_drained();
        }
        if self.lane.is_some() {
            return self.on_parcel_received(op.context, wc.byte_len as usize);
        }
        let has_data = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM != 0;
        let data = if has_data { u64::from(u32::from_be(wc.imm_data)) } else { 0 };
        let remote = if has_data { flags::REMOTE_CQ_DATA } else { 0 };
        let len = wc.byte_len as usize;
        if wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            // The device sees only the data of a staged write. The bytes came before, by staged transfers in which the
            // peer announced the length.
            let len = self.staging.staged_len(self.data_seen).unwrap_or(len);
            self.data_seen += 1;
            let entry = Completion { context: op.context, flags: flags::REMOTE_WRITE | flags::RMA | remote, len, buf: 0, data };
            if let Some(counter) = &self.bind.counters.remote_write {
                counter.add(1);
            }
            if let Some(q) = self.bind.rx.as_ref().filter(|_| op.wanted) {
                q.push(entry);
            }
            if op.own {
                self.repost_own();
            }
            return;
        }
        self.stats.recvs += 1;
        let entry = Completion { context: op.context, flags: flags::RECV | flags::MSG | remote, len, buf: op.buf, data };
        match op.bounce.map_or(Ok(()), |b| b.scatter(len)) {
            Ok(()) => self.bind.received(None, entry, op.wanted, None),
            Err(error) => {
                self.stats.errors += 1;
                self.bind.spoiled(None, entry, error.into());
            }
        }
    }

    #[cold]
    fn rx_failed(&mut self, op: RxOp, wc: &ibv_wc) {
        let error = self.failure_of(wc, "receive", true, op.deadline);
        self.fail_receive(&op, error);
    }
}
