// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Striped operations, which go over several rails. An operation is cut into parts, each rail gets parts while it has
//! room, and the operation ends when every part has ended.
//!
//! A striped operation waits in the staging queue (`ops/staged_transfer.rs`). The operation begins when all operations
//! before it have ended, and operations posted later wait for its end, so the order is the same as over one rail. If a
//! rail is lost, its parts go again over another rail.

use super::join::NO_PART;
use crate::error::{Error, Result, errno};
use crate::prov::bind::Ending;
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::list::{Pair, Run};
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, RmaIov};
use crate::prov::verbs::memory::keys::Keys;
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::service::kind;
use crate::prov::verbs::queue::work::TxOp;
use crate::prov::verbs::shared::Shared;
use crate::prov::verbs::state::State;
use crate::prov::verbs::state::lane::LaneRma;
use crate::prov::verbs::state::part_requests::PartRequests;
use crate::prov::verbs::state::rail::InFlightPart;
use crate::prov::verbs::state::staging::{WaitingOp, kind_of};
use crate::prov::verbs::state::stripe::{LocalPiece, Stripe, StripeOrigin};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status::{self, Failed};
use crate::sys::time::now_ns;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bits of `msg_order`: reads stay in order among themselves, and so do writes.
const READS: u64 = 1 << 0;
const WRITES: u64 = 1 << 4;

/// True if a completion status blames the operation and not the rail. A failure of the operation ends the connection,
/// as it does over one rail.
pub(in crate::prov::verbs) fn blames_operation(status: u32) -> bool {
    use ibv_wc_status::*;
    matches!(
        status,
        IBV_WC_LOC_LEN_ERR
            | IBV_WC_LOC_QP_OP_ERR
            | IBV_WC_LOC_PROT_ERR
            | IBV_WC_LOC_ACCESS_ERR
            | IBV_WC_REM_INV_REQ_ERR
            | IBV_WC_REM_ACCESS_ERR
            | IBV_WC_REM_OP_ERR
    )
}

impl Shared {
    /// Handles one completion of a further rail.
    pub fn complete_rail(&self, number: usize, wc: &ibv_wc, recv: bool, seq: u32) {
        let mut s = self.state.lock();
        match recv {
            true => s.on_rail_receive(number, wc, seq),
            false => s.on_rail_completion(number, wc, seq),
        }
        if s.is_failing_over() {
            self.moving.store(true, Ordering::Relaxed);
        }
        if s.must_wait() {
            s.run_queue();
        }
        s.finish_if_drained();
    }
}

impl State {
    /// The keys on all rails of the peer's region that `key` names on the first rail. If the keys are unknown, the peer
    /// is asked, and the answer serves later operations.
    fn rail_keys_for(&mut self, key: u64) -> Option<Arc<Keys>> {
        let rkey = u32::try_from(key).ok()?;
        let (found, ask) = self.rails.as_mut()?.rail_keys.lookup(rkey);
        if ask && !self.is_behind() {
            self.send_rail_message([u64::from(kind::KEYS_ASK), key, 0, 0, 0, 0, 0, 0]);
        }
        found
    }

    /// Cuts one operation into parts. `None`: the operation goes over the first rail alone.
    #[allow(clippy::too_many_arguments)]
    fn cut_one(&mut self, memory: &Registered, dir: Dir, local: &[Iov], descs: &[u64], addr: u64, key: u64, end: Ending) -> Option<Stripe> {
        let there = self.rail_keys_for(key)?;
        let rails = self.rails.as_ref()?;
        if local.len() > rails.pieces as usize {
            return None;
        }
        let own = {
            let regions = memory.regions.lock();
            let keys_of = |desc: &u64| regions.rail_keys_of_desc(*desc).cloned();
            descs.get(..local.len())?.iter().map(keys_of).collect::<Option<Vec<_>>>()?
        };
        let mask = own.iter().fold(there.mask & rails.up(), |mask, keys| mask & keys.mask);
        if mask & !1 == 0 {
            return None;
        }
        let mut stripe = Stripe::new(dir, end.len, mask.count_ones() as usize, self.most_requests(), end, mr::all_path_bits(local, descs));
        (stripe.local_keys, stripe.remote_keys) = (own, vec![there]);
        let piece = |(i, v): (usize, &Iov)| LocalPiece { addr: v.addr() as u64, len: v.len() as u32, of: i as u16 };
        stripe.add(addr, 0, 0, local.iter().enumerate().map(piece));
        stripe.close();
        Some(stripe)
    }

    /// Most work requests of a part: every part must also fit into the queue of the first rail.
    fn most_requests(&self) -> usize {
        (self.tx.limit() / 4).max(1) as usize
    }

    /// Posts a read or write over several rails. `None`: the operation does not go over several rails, and nothing was
    /// posted.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::prov::verbs) fn stripe_rma(
        &mut self,
        memory: &Registered,
        dir: Dir,
        local: &[Iov],
        total: usize,
        there: &RmaIov,
        c: &Common,
        descs: &[u64],
    ) -> Option<Result<()>> {
        let odd = c.flags & (flags::DELIVERY_COMPLETE | flags::INJECT | flags::REMOTE_CQ_DATA) != 0;
        let capacity = self.check_connected().ok()?.capacity;
        if odd || local.len() > (capacity.tx_pieces as usize).min(IOV_LIMIT) {
            return None;
        }
        if self.ruled_out(mr::path_of(mr::all_path_bits(local, descs))).is_some() {
            return None;
        }
        let end = Ending::of(c, kind_of(dir), total, local.first().map_or(0, |v| v.addr()), false, 0);
        let mut stripe = self.cut_one(memory, dir, local, descs, there.addr, there.key, end)?;
        if self.staging.jobs.len() >= self.tx.limit() as usize {
            return Some(Err(Error::AGAIN));
        }
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Some(Err(Error::AGAIN));
        }
        stripe.fenced = c.flags & flags::FENCE != 0;
        (stripe.end.wanted, stripe.end.deadline) = (wanted, self.deadline(c.timeout_ns));
        // Earlier operations with `GDRFAB_MORE` wait in the batch; they are posted now.
        self.flush_batch();
        Some(self.enqueue(WaitingOp::Striped(Box::new(stripe))))
    }

    /// Posts as many runs of a list as can go over several rails together; returns their number. `None`: the list goes
    /// over the first rail alone.
    pub(in crate::prov::verbs) fn stripe_list(
        &mut self,
        memory: &Registered,
        dir: Dir,
        runs: &[Run],
        pairs: &[Pair],
        c: &Common,
    ) -> Option<Result<usize>> {
        /// Most runs that are taken at once.
        const RUNS: usize = 4096;
        /// Bytes after which no further run is taken.
        const BYTES: usize = 64 << 20;
        let least = self.rails.as_ref()?.min_striped;
        let (mut count, mut total) = (0, 0usize);
        for run in runs.iter().take(RUNS) {
            if total >= BYTES {
                break;
            }
            (count, total) = (count + 1, total + run.len());
        }
        if total < least || self.check_connected().is_err() {
            return None;
        }
        if self.staging.jobs.len() >= self.tx.limit() as usize {
            return Some(Ok(0));
        }
        let runs = runs.get(..count)?;
        // For each pair of the list: the index of its keys in the operation, once a run has used the pair.
        let mut places: Vec<Option<u16>> = vec![None; pairs.len()];
        let (mut own, mut there, mut how) = (Vec::new(), Vec::new(), 0);
        let mut mask = self.rails.as_ref()?.up();
        for run in runs {
            let at = run.pair as usize;
            if places.get(at)?.is_some() {
                continue;
            }
            let pair = pairs.get(at)?;
            let here = memory.regions.lock().rail_keys_of_desc(pair.desc).cloned();
            let remote = self.rail_keys_for(pair.key);
            let (here, remote) = (here?, remote?);
            mask &= here.mask & remote.mask;
            how |= mr::path_bits(pair.desc);
            *places.get_mut(at)? = Some(own.len() as u16);
            own.push(here);
            there.push(remote);
        }
        if mask & !1 == 0 {
            return None;
        }
        let end = Ending {
            context: c.context,
            kind: kind_of(dir),
            len: total,
            buf: runs.first().map_or(0, Run::buf),
            deadline: self.deadline(c.timeout_ns),
            part: true,
            ..Ending::default()
        };
        let mut stripe = Stripe::new(dir, total, mask.count_ones() as usize, self.most_requests(), end, how);
        (stripe.local_keys, stripe.remote_keys) = (own, there);
        (stripe.unordered, stripe.fenced) = (true, c.flags & flags::FENCE != 0);
        for (i, run) in runs.iter().enumerate() {
            let of = places.get(run.pair as usize).copied().flatten().unwrap_or(0);
            let piece = LocalPiece { addr: run.buf() as u64, len: run.len() as u32, of };
            stripe.add(run.addr, of, i as u16, std::iter::once(piece));
        }
        stripe.close();
        self.flush_batch();
        Some(self.enqueue(WaitingOp::Striped(Box::new(stripe))).map(|()| count))
    }

    /// Begins or continues the striping of a lane's RMA. `None`: the operation goes over the first rail alone.
    pub(in crate::prov::verbs) fn stripe_lane_rma(&mut self, m: &mut LaneRma) -> Option<StripeProgress> {
        if m.stripe != 0 {
            if self.rails.as_ref().is_none_or(|rails| rails.ended_job != m.stripe) {
                return Some(StripeProgress::Waits);
            }
            (m.stripe, m.posted, m.all_posted) = (0, m.total, true);
            if !m.deliver && !m.must_notify() {
                self.stats.moved(mr::path_of(m.path_bits), m.total);
                self.bind.succeed(&m.end);
            }
            return Some(StripeProgress::Over);
        }
        if m.hold.is_some() || m.inline || m.keys.len() != m.remote.len() {
            return None;
        }
        let there = m.keys.iter().map(|peer_key| self.rail_keys_for(u64::from(peer_key.rkey))).collect::<Option<Vec<_>>>()?;
        let rails = self.rails.as_ref()?;
        let own = {
            let regions = self.lane.as_ref()?.memory.regions.lock();
            m.pieces.iter().map(|p| regions.rail_keys_by_lkey(p.lkey).cloned()).collect::<Option<Vec<_>>>()?
        };
        let mask = own.iter().chain(&there).fold(rails.up(), |mask, keys| mask & keys.mask);
        if mask & !1 == 0 || m.pieces.len() > rails.pieces as usize {
            return None;
        }
        // The operation must not overtake anything posted before. Only a read of a long message may, because it belongs
        // to no order.
        if !m.direct && !self.tx.is_empty() {
            return Some(StripeProgress::Waits);
        }
        let mut stripe = Stripe::new(m.dir, m.total, mask.count_ones() as usize, self.most_requests(), m.end, m.path_bits);
        (stripe.local_keys, stripe.remote_keys) = (own, there);
        stripe.whose = if m.direct { StripeOrigin::Fetch } else { StripeOrigin::LaneJob };
        let mut at = 0;
        for (i, (to, peer_key)) in m.remote.iter().zip(&m.keys).enumerate() {
            stripe.add(to.addr.wrapping_add(peer_key.shift), i as u16, 0, within(&m.pieces, at, to.len));
            at += to.len;
        }
        stripe.close();
        let id = self.begin_stripe(stripe);
        if m.direct {
            return Some(StripeProgress::Gone);
        }
        m.stripe = id;
        Some(StripeProgress::Waits)
    }

    /// True if a striped operation may begin: everything that it must not overtake has ended.
    pub(in crate::prov::verbs) fn may_begin(&mut self, stripe: &Stripe) -> bool {
        let Some(rails) = &self.rails else { return true };
        match rails.active.back() {
            Some(before) => {
                let ordered = if stripe.dir == Dir::Read { READS } else { WRITES };
                let loose = (before.unordered && stripe.unordered) || rails.order & ordered == 0;
                !stripe.fenced && before.dir == stripe.dir && loose
            }
            None if self.tx.is_empty() => true,
            None => {
                self.request_completion();
                false
            }
        }
    }

    /// Begins a striped operation and returns its number.
    pub(in crate::prov::verbs) fn begin_stripe(&mut self, stripe: Stripe) -> u64 {
        let Some(rails) = &mut self.rails else { return 0 };
        let stripe = rails.number(stripe);
        let id = stripe.id;
        rails.active.push_back(stripe);
        self.dispatch_parts();
        id
    }

    /// Gives parts to the rails as long as these have room.
    pub(in crate::prov::verbs) fn dispatch_parts(&mut self) {
        while let Some((at, part, number)) = self.next_part() {
            let sent = if number == 0 { self.send_part(at, part) } else { self.send_part_by(at, part, number) };
            match sent {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) if number > 0 => self.lose_rail(number, e),
                Err(e) => return self.begin_teardown(e, false),
            }
        }
    }

    /// The index of the next operation with a part to post, that part, and the rail that takes the part.
    fn next_part(&mut self) -> Option<(usize, u16, usize)> {
        // For a lane, a quarter of the queue is left for parcels.
        let queue = if self.lane.is_some() { self.tx.limit() * 3 / 4 } else { self.tx.limit() } as usize;
        let used = self.tx.len() as usize;
        let rails = self.rails.as_mut()?;
        if self.qp.is_none() || rails.active.is_empty() {
            return None;
        }
        let (at, part) = rails.active.iter().enumerate().find_map(|(at, s)| Some((at, *s.todo.front()?)))?;
        let stripe = rails.active.get(at)?;
        let (p, requests) = (stripe.parts.get(part as usize)?, stripe.requests_of(part as usize));
        let (mask, len, has_room) = (p.mask, p.len, used + requests <= queue);
        Some((at, part, rails.fastest(mask, len, requests, has_room)?))
    }

    /// Posts a part with the queue pair of the first rail. False: the queue is full.
    fn send_part(&mut self, at: usize, part: u16) -> Result<bool> {
        let State { rails: Some(rails), qp: Some(qp), tx, tx_tag, unsignalled, .. } = self else { return Ok(false) };
        let Some(stripe) = rails.active.get_mut(at) else { return Ok(false) };
        let first = tx.next();
        let mut chain = PartRequests::of(stripe, part, 0, |i| tx_tag.send(first.wrapping_add(i)));
        match chain.post(qp) {
            Ok(()) => {}
            Err(errno::ENOMEM) if !tx.is_empty() => return Ok(false),
            Err(err) => return Err(status::call_error("posting a part of an operation", err)),
        }
        for i in 0..chain.wrs.len() {
            let end = Ending { context: stripe.id as usize, kind: kind_of(stripe.dir), ..Ending::default() };
            let striped = i + 1 == chain.wrs.len();
            tx.push(TxOp { end, internal: true, run: part, striped, ..TxOp::default() });
        }
        *unsignalled = 0;
        stripe.todo.pop_front();
        let len = stripe.parts.get(part as usize).map_or(0, |p| p.len);
        rails.first.speed.begin(len, now_ns());
        Ok(true)
    }

    /// Posts a part with the queue pair of a further rail. False: the queue is full.
    fn send_part_by(&mut self, at: usize, part: u16, number: usize) -> Result<bool> {
        let Some(rails) = &mut self.rails else { return Ok(false) };
        let Some(stripe) = rails.active.get_mut(at) else { return Ok(false) };
        let Some(rail) = number.checked_sub(1).and_then(|i| rails.further.get_mut(i)) else { return Ok(false) };
        let Some(qp) = &rail.qp else { return Ok(false) };
        let (seq, tag) = (rail.seq(), rail.tag);
        let mut chain = PartRequests::of(stripe, part, number, |_| tag.send(seq));
        match chain.post(qp) {
            Ok(()) => {}
            Err(errno::ENOMEM) if !rail.in_flight.is_empty() => return Ok(false),
            Err(err) => return Err(status::call_error("posting a part of an operation", err)),
        }
        let requests = chain.wrs.len();
        stripe.todo.pop_front();
        let len = stripe.parts.get(part as usize).map_or(0, |p| p.len);
        rail.begin(InFlightPart { seq, stripe: stripe.id, part, len, requests }, now_ns());
        rail.parts_begun += 1;
        match rail.fault_every != 0 && rail.parts_begun.is_multiple_of(rail.fault_every) {
            true => Err(Plan::rail_gone()),
            false => Ok(true),
        }
    }

    fn on_rail_completion(&mut self, number: usize, wc: &ibv_wc, seq: u32) {
        let Some(rail) = self.rails.as_mut().and_then(|r| r.rail(number)) else { return };
        if rail.qp.is_none() || (rail.generation as u8) != (seq >> 24) as u8 {
            return;
        }
        if wc.status == ibv_wc_status::IBV_WC_SUCCESS {
            match rail.end(seq, now_ns()) {
                Some(InFlightPart { part: NO_PART, .. }) => {}
                Some(InFlightPart { stripe: 0, .. }) => self.rail_came_up(number),
                Some(flight) => self.on_part_ended(flight.stripe, flight.part, number),
                None => {}
            }
            return;
        }
        let of = rail.in_flight.iter().find(|f| f.seq == seq).map_or(0, |f| f.stripe);
        let (dir, deadline) = self.rails.as_mut().and_then(|r| r.stripe(of)).map_or((Dir::Write, 0), |s| (s.dir, s.end.deadline));
        let operation = if dir == Dir::Read { "read" } else { "write" };
        if blames_operation(wc.status) && of != 0 {
            let error = self.failure_of(wc, operation, false, deadline);
            return self.stripe_failed(of, 0, error);
        }
        let failed = Failed { operation, receive: false, status: wc.status, qpn: wc.qp_num, vendor_err: wc.vendor_err };
        self.lose_rail(number, status::completion_error(&failed));
    }

    /// A part that the first rail carried has succeeded.
    pub(in crate::prov::verbs) fn part_done(&mut self, op: &TxOp) {
        self.on_part_ended(op.end.context as u64, op.run, 0);
    }

    fn on_part_ended(&mut self, id: u64, part: u16, number: usize) {
        let Some(rails) = &mut self.rails else { return };
        let Some(stripe) = rails.stripe(id) else { return };
        let (dir, len) = (stripe.dir, stripe.parts.get(part as usize).map_or(0, |p| p.len));
        stripe.end_part(part);
        let carried = match number {
            0 => {
                rails.first.speed.end(len, now_ns());
                Some(&mut rails.first.carried)
            }
            _ => rails.rail(number).map(|rail| &mut rail.carried),
        };
        if let Some((out, come)) = carried {
            *(if dir == Dir::Write { out } else { come }) += len as u64;
        }
        self.finish_stripes();
        self.dispatch_parts();
    }

    /// Stores the error of a striped operation. The failure ends the connection, and the operation gets its entry when
    /// the connection has ended.
    #[cold]
    pub(in crate::prov::verbs) fn stripe_failed(&mut self, id: u64, part: u16, error: Error) {
        if let Some(stripe) = self.rails.as_mut().and_then(|r| r.stripe(id)) {
            let run = stripe.parts.get(part as usize).map_or(0, |p| p.run);
            stripe.failed.get_or_insert(Error { piece: error.piece.or(Some((run, 0))), ..error });
        }
    }

    /// Ends the operations at the head whose parts have all ended, in the order of posting.
    fn finish_stripes(&mut self) {
        while let Some(rails) = &mut self.rails
            && rails.active.front().is_some_and(|s| s.left == 0)
            && let Some(stripe) = rails.active.pop_front()
        {
            rails.update_threshold();
            if stripe.whose == StripeOrigin::LaneJob {
                rails.ended_job = stripe.id;
                continue;
            }
            self.stats.moved(mr::path_of(stripe.path_bits), stripe.total);
            if stripe.whose == StripeOrigin::Fetch {
                self.fetch_ended(stripe.total);
            }
            self.bind.succeed(&stripe.end);
        }
    }

    /// Fails the striped operations in flight, because the connection is over and the queue pairs are gone.
    pub(in crate::prov::verbs) fn flush_stripes(&mut self) {
        let Some(rails) = &mut self.rails else { return };
        rails.end();
        // A lane's job fails with the lane's other jobs.
        for stripe in std::mem::take(&mut rails.active).into_iter().filter(|s| s.whose != StripeOrigin::LaneJob) {
            let error = stripe.failed.unwrap_or_else(|| self.flushed(stripe.end.deadline));
            self.stats.errors += 1;
            self.bind.fail(&stripe.end, error);
        }
    }
}

/// The progress of striping a lane's operation.
pub enum StripeProgress {
    /// Parts are in flight or cannot begin yet; the lane tries again.
    Waits,
    /// All bytes are in place.
    Over,
    /// The striped operation reports its own end; the lane forgets the operation.
    Gone,
}

/// The local pieces of `len` bytes from byte `skip` on.
fn within(pieces: &[ibv_sge], mut skip: usize, mut len: usize) -> impl Iterator<Item = LocalPiece> + use<'_> {
    pieces.iter().enumerate().filter_map(move |(i, p)| {
        let from = skip.min(p.length as usize);
        let take = (p.length as usize - from).min(len);
        (skip, len) = (skip - from, len - take);
        (take > 0).then_some(LocalPiece { addr: p.addr + from as u64, len: take as u32, of: i as u16 })
    })
}
