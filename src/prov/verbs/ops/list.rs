// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of blocks. A list becomes chains of work requests. One ring of the doorbell posts a chain, and only the last
//! request of a chain asks for a completion. Blocks that adjoin at the peer become one request with several pieces.

use crate::error::{Error, Result, errno};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::list::{List, Native, Pair, Run};
use crate::prov::op::{Common, Dir, IOV_LIMIT};
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::work::{Chain, SIGNALED, TxOp};
use crate::prov::verbs::state::State;
use crate::prov::verbs::state::staging::kind_of;
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status;
use std::mem::zeroed;
use std::ptr::null_mut;

/// Most work requests of one chain. A chain also takes at most a quarter of the queue, so that the device gets the next
/// chain before it has finished this one.
const LONGEST: usize = 256;
/// Most bytes of a work request.
const REQUEST_BYTES: usize = 1 << 30;

impl State {
    /// Decides whether a list is posted as chains: the device must reach all memory of the list on both sides.
    pub fn list(&mut self, list: &List, c: &Common) -> Result<Native> {
        self.check_connected()?;
        let is_open = |p: &Pair| p.key >> 32 == 0 && mr::local_key(p.desc).is_some();
        let permitted = |p: &Pair| self.ruled_out(mr::path_of(mr::path_bits(p.desc))).is_none();
        // A lane first has to ask the peer about each key.
        let plain = self.faults.is_none() && self.lane.is_none() && c.flags & flags::DELIVERY_COMPLETE == 0;
        let chained = plain && !list.runs.is_empty() && list.pairs.iter().all(|p| is_open(p) && permitted(p));
        Ok(if chained { Native::Parts } else { Native::Pieces })
    }

    /// Posts one chain of a list; returns the number of runs that the chain took.
    pub fn list_part(&mut self, memory: &Registered, dir: Dir, runs: &[Run], pairs: &[Pair], c: &Common) -> Result<usize> {
        if self.rails.is_some()
            && let Some(striped) = self.stripe_list(memory, dir, runs, pairs, c)
        {
            return striped;
        }
        let most_pieces = (self.check_connected()?.capacity.tx_pieces as usize).min(IOV_LIMIT);
        // Earlier operations with `GDRFAB_MORE` wait in the batch; they are posted now.
        self.flush_batch();
        let limit = self.tx.limit();
        let most = ((limit - self.tx.len()).min((limit / 4).max(1)) as usize).min(LONGEST);
        if most == 0 || self.must_wait() || !self.batch.is_empty() {
            return Ok(0);
        }
        let mut chain = std::mem::take(&mut self.chain);
        let made = self.make(&mut chain, most, most_pieces, dir, runs, pairs, c);
        let posted = made.and_then(|()| self.post_chain(&mut chain));
        self.chain = chain;
        posted
    }

    /// Fills the chain with the next runs; runs that adjoin share a request. `post_chain` sets the pointers later.
    #[allow(clippy::too_many_arguments)]
    fn make(
        &mut self,
        chain: &mut Chain,
        most: usize,
        most_pieces: usize,
        dir: Dir,
        runs: &[Run],
        pairs: &[Pair],
        c: &Common,
    ) -> Result<()> {
        chain.wrs.clear();
        chain.pieces.clear();
        chain.ops.clear();
        let read = dir == Dir::Read;
        let inline_max = self.check_connected()?.capacity.inline as usize;
        let opcode = if read { ibv_wr_opcode::IBV_WR_RDMA_READ } else { ibv_wr_opcode::IBV_WR_RDMA_WRITE };
        let deadline = self.deadline(c.timeout_ns);
        let fenced = c.flags & flags::FENCE != 0 && self.needs_fence(read);
        let mut at = 0;
        while at < runs.len() && chain.wrs.len() < most {
            let (run, key) = (at, pairs[runs[at].pair as usize].key);
            let (mut len, mut how, mut on_host) = (0, 0, true);
            let first = chain.pieces.len();
            while let Some(r) = runs.get(at)
                && chain.pieces.len() - first < most_pieces
            {
                let pair = pairs[r.pair as usize];
                let adjoins = pair.key == key && r.addr == runs[run].addr + len as u64 && len + r.len() <= REQUEST_BYTES;
                if at > run && !adjoins {
                    break;
                }
                let Some(lkey) = mr::local_key(pair.desc) else {
                    return Err(Error::invalid("desc: not the descriptor of an open verbs region"));
                };
                chain.pieces.push(ibv_sge { addr: r.buf() as u64, length: r.len() as u32, lkey });
                (len, how) = (len + r.len(), how | mr::path_bits(pair.desc));
                on_host &= mr::on_host(pair.desc).is_some();
                at += 1;
            }
            // SAFETY: integers and pointers, for all of which zero is a valid value.
            let mut wr: ibv_send_wr = unsafe { zeroed() };
            wr.num_sge = (chain.pieces.len() - first) as i32;
            wr.opcode = opcode;
            wr.send_flags = if self.unordered { SIGNALED } else { 0 };
            if !read && on_host && len <= inline_max {
                wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE;
            }
            if fenced && run == 0 {
                wr.send_flags |= ibv_send_flags::IBV_SEND_FENCE;
            }
            wr.wr.rdma.remote_addr = runs[run].addr;
            wr.wr.rdma.rkey = key as u32;
            chain.wrs.push(wr);
            let end =
                Ending { context: c.context, kind: kind_of(dir), len, buf: runs[run].buf(), deadline, part: true, ..Ending::default() };
            chain.ops.push(TxOp { end, path_bits: how, run: run as u16, internal: true, ..TxOp::default() });
        }
        // The completion of the last request covers all requests of the chain.
        if let (Some(wr), Some(op)) = (chain.wrs.last_mut(), chain.ops.last_mut()) {
            wr.send_flags |= SIGNALED;
            op.internal = false;
        }
        Ok(())
    }

    /// Links the chain and posts it; returns the number of runs that the device took.
    fn post_chain(&mut self, chain: &mut Chain) -> Result<usize> {
        let (n, mut piece) = (chain.wrs.len(), chain.pieces.as_mut_ptr());
        let first = chain.wrs.as_mut_ptr();
        for i in 0..n {
            // SAFETY: all elements lie in the vectors, which do not grow any more; the requests' counts of pieces add up to the length of
            // `pieces`.
            unsafe {
                let wr = &mut *first.add(i);
                wr.wr_id = self.tx_tag.send(self.tx.next().wrapping_add(i as u32));
                wr.sg_list = piece;
                piece = piece.add(wr.num_sge as usize);
                wr.next = if i + 1 < n { first.add(i + 1) } else { null_mut() };
            }
        }
        let Some(qp) = &self.qp else { return Err(self.not_connected()) };
        // SAFETY: chain and pieces live until the call returns; the caller keeps the blocks until the list has ended (the promise of
        // `List::new`).
        let (taken, why) = match unsafe { qp.post_send(first) } {
            Ok(()) => (n, None),
            Err((bad, err)) => (((bad as usize).wrapping_sub(first as usize) / size_of::<ibv_send_wr>()).min(n), Some(err)),
        };
        // Each piece is one run. The next chain begins with the first run that the device did not take.
        let count = chain.ops.get(taken).map_or(chain.pieces.len(), |op| usize::from(op.run));
        if let Some(last) = taken.checked_sub(1).and_then(|i| chain.ops.get_mut(i)) {
            last.internal = false;
        }
        chain.ops.drain(..taken).for_each(|op| self.tx.push(op));
        match why {
            None => {
                self.unsignalled = 0;
                Ok(count)
            }
            // The queue is full for the moment; completions will make room.
            Some(errno::ENOMEM) if taken == 0 && !self.tx.is_empty() => Ok(0),
            Some(err) if taken == 0 => Err(status::call_error("posting a list's work requests", err)),
            Some(_) => {
                // The requests that the device took ask for no completion, so an extra request asks for one.
                self.unsignalled = self.tx.limit();
                self.request_completion();
                Ok(count)
            }
        }
    }
}
