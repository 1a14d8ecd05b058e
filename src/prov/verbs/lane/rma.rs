// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RMA and atomics over a lane, initiator's side. The library or the caller chooses the keys, which the device does not
//! know. So the peer is asked for the device's key, and the answer is stored. Then the peer's card executes the RMA.
//! The peer's CPU executes atomics, or its card if the region was registered for that. Unregistered local memory is
//! copied, or registered for the duration of the operation.

use super::parcels::protocol_error;
use crate::error::{Code, Error, Result, errno};
use crate::mr::{Access, Paths};
use crate::prov::Parcel;
use crate::prov::atomic::AtomicOp;
use crate::prov::bind::{ANY_PATH, BY_CARD, Ending};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, RmaIov, measure};
use crate::prov::parcel::Flat;
use crate::prov::verbs::memory::bounce;
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::ops::atomic::{self, on_card};
use crate::prov::verbs::queue::work::{FETCH, PARCEL, RemoteAddr, TxOp};
use crate::prov::verbs::rail::striping::StripeProgress;
use crate::prov::verbs::state::State;
use crate::prov::verbs::state::lane::{LaneAtomic, LaneJob, LaneRma, MAX_ACKS, MAX_JOBS, PeerKey, PendingAck, kind};
use crate::prov::verbs::state::staging::kind_of;
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::wire::credit::Class;
use crate::sys::time::now_ns;
use std::mem::zeroed;
use std::sync::Arc;

/// Unregistered memory up to this many bytes is copied; a longer range is registered for the operation. The
/// registration is not kept for the next operation, because the address may name other pages by then, and nothing here
/// would notice the change. Device memory always has a descriptor; a buffer without a descriptor is host memory. The
/// limit is for cards, whose registration waits for the firmware. Soft-RoCE has no such break-even point, because
/// registration costs only system calls there (`benches/verbs/unregistered.c`).
const COPIED: usize = 32 << 10;
/// The longest operation, in bytes.
const MAX_MSG: usize = 1 << 40;
/// In the rights of TOLD: the key may come to name other memory without notice, so the answer is valid for this
/// operation only.
pub(in crate::prov::verbs) const ONCE: u64 = 1 << 32;
/// In the rights of TOLD: the region counts writes.
pub(in crate::prov::verbs) const COUNTS: u64 = 1 << 33;

/// Scatter/gather entries; the buffer or the registrations that they need; the path to the memory (`mr::path_of`); and
/// true if the bytes travel inside the work request.
type LocalMemory = (Vec<ibv_sge>, Option<Box<bounce::Bounce>>, u8, bool);

/// Makes the local memory of an operation accessible to the device.
fn local_pieces(memory: &Arc<Registered>, dir: Dir, local: &[Iov], descs: &[u64], total: usize, inline: usize) -> Result<LocalMemory> {
    // SAFETY: integers, for all of which zero is a valid value.
    let mut pieces: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
    let (mut count, mut here) = mr::pieces(local, descs, true, &mut pieces)?;
    let desc_of = |i: usize| descs.get(i).copied().unwrap_or(0);
    let unnamed = local.iter().enumerate().any(|(i, v)| !v.is_empty() && desc_of(i) == 0);
    if here == mr::BufferKind::Staged && !unnamed {
        here = memory.regions.lock().resolve(local, descs, &mut pieces)?;
    }
    let inside = dir == Dir::Write && here == mr::BufferKind::Host && total <= inline;
    let mut hold = None;
    if here == mr::BufferKind::Staged || (unnamed && !inside && total <= COPIED) {
        let copy = bounce::take(memory, local, descs, total, dir == Dir::Write)?;
        (pieces[0], count) = (copy.piece(), usize::from(total > 0));
        hold = Some(copy);
    } else if unnamed && !inside {
        let named = local.iter().enumerate().filter(|(_, v)| !v.is_empty()).map(|(i, v)| (desc_of(i) != 0, *v));
        hold = Some(bounce::registered(memory, dir == Dir::Read, named, &mut pieces)?);
    }
    let how = if here == mr::BufferKind::Staged { mr::BOUNCED } else { mr::all_path_bits(local, descs) };
    Ok((pieces[..count].to_vec(), hold, how, inside && total > 0))
}

impl State {
    pub fn lane_rma(
        &mut self,
        memory: &Arc<Registered>,
        dir: Dir,
        local: &[Iov],
        remote: &[RmaIov],
        c: &Common,
        descs: &[u64],
    ) -> Result<()> {
        let total = measure(local, MAX_MSG)?;
        let sum = remote.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len));
        if sum != Some(total) || remote.is_empty() || remote.len() > IOV_LIMIT {
            return Err(Error::invalid(format!("rma_iov: {sum:?} bytes, but the local pieces have {total}")));
        }
        let data = (c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data);
        if data.is_some() && dir == Dir::Read {
            return Err(Error::invalid("flags: a read carries no remote data"));
        }
        let inline = self.check_connected()?.capacity.inline as usize;
        let (direct, most) = (c.flags & ANY_PATH != 0, memory.pd.context.reads_out());
        if self.lane.as_ref().is_none_or(|lane| lane.jobs.len() >= MAX_JOBS || (direct && !lane.fetches.may_begin(most))) {
            return Err(Error::AGAIN);
        }
        let (pieces, hold, how, inline) = local_pieces(memory, dir, local, descs, total, inline)?;
        if !direct && let Some(why) = self.ruled_out(mr::path_of(how)) {
            return self.refuse_rma(kind_of(dir), total, local, c, why);
        }
        let end = self.lane_end(c, kind_of(dir), total, local.first().map_or(0, |v| v.addr()))?;
        let deliver = c.flags & flags::DELIVERY_COMPLETE != 0 && dir == Dir::Write;
        if let Some(lane) = self.lane.as_mut().filter(|_| direct) {
            lane.fetches.begin(total);
        }
        let how = how | if direct { FETCH } else { 0 };
        let remote = remote.to_vec();
        self.begin_job(LaneJob::Rma(Box::new(LaneRma {
            pieces,
            hold,
            inline,
            remote,
            direct,
            total,
            data,
            deliver,
            path_bits: how,
            ..LaneRma::new(dir, end)
        })));
        Ok(())
    }

    pub fn lane_atomic(&mut self, memory: &Arc<Registered>, op: &AtomicOp, c: &Common) -> Result<()> {
        self.check_connected()?;
        if self.lane.as_ref().is_none_or(|lane| lane.jobs.len() >= MAX_JOBS) {
            return Err(Error::AGAIN);
        }
        if c.flags & BY_CARD != 0 {
            return self.lane_atomic_by_card(memory, op, c);
        }
        let end = self.lane_end(c, op.kind(), op.what.bytes(), op.buf())?;
        let old = if op.what.fetches() { op.with.old } else { Iov::EMPTY };
        let words = [op.what.encode(), op.addr, op.key];
        self.begin_job(LaneJob::Atomic(LaneAtomic { words, operands: op.operands(), old, end }));
        Ok(())
    }

    fn lane_atomic_by_card(&mut self, memory: &Arc<Registered>, op: &AtomicOp, c: &Common) -> Result<()> {
        let (what, total) = (op.what, op.what.bytes());
        atomic::check_op(&memory.pd.context, what)?;
        if let Some(why) = self.ruled_out(Paths::NIC) {
            return Err(why);
        }
        let hold = atomic::fetched(memory, op)?;
        let end = self.lane_end(c, op.kind(), total, op.buf())?;
        let dir = if what.writes() { Dir::Write } else { Dir::Read };
        let remote = vec![RmaIov { addr: op.addr, len: total, key: op.key }];
        let (pieces, hold, card) = (vec![hold.piece()], Some(hold), Some(on_card(op)));
        // The operation ends with the card's answer, so it has been delivered by then.
        self.begin_job(LaneJob::Rma(Box::new(LaneRma { pieces, hold, card, remote, total, ..LaneRma::new(dir, end) })));
        Ok(())
    }

    fn lane_end(&mut self, c: &Common, kind: u64, len: usize, buf: usize) -> Result<Ending> {
        let wanted = self.bind.wants_entry(c.flags);
        if !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let deadline = self.deadline(c.timeout_ns);
        Ok(Ending::of(c, kind, len, buf, wanted, deadline))
    }

    fn begin_job(&mut self, job: LaneJob) {
        let Some(lane) = &mut self.lane else { return };
        lane.jobs.push_back(job);
        if lane.jobs.len() == 1 {
            self.advance_jobs();
        }
    }

    /// Advances the operations in the order of posting. If an operation cannot go on yet (`false`), the operations
    /// behind it wait.
    pub(in crate::prov::verbs) fn advance_jobs(&mut self) {
        while let Some(mut job) = self.lane.as_mut().and_then(|lane| lane.jobs.pop_front()) {
            let done = match &mut job {
                LaneJob::Rma(m) => self.advance_rma(m),
                LaneJob::Atomic(a) => self.advance_atomic(a),
            };
            match (done, &mut self.lane) {
                (Ok(true), _) => {}
                (Ok(false), Some(lane)) => return lane.jobs.push_front(job),
                (Ok(false), None) => return,
                // The device has a part of the operation, and the connection is ending, so the operation fails with the
                // connection.
                (Err(_), Some(lane)) if job.has_begun() => return lane.jobs.push_front(job),
                (Err(e), _) => self.drop_job(&job, e),
            }
        }
    }

    /// Fails an operation of which the device holds nothing.
    fn drop_job(&mut self, job: &LaneJob, why: Error) {
        if let LaneJob::Rma(m) = job
            && m.direct
        {
            self.fetch_ended(m.total);
        }
        self.stats.errors += 1;
        self.bind.fail(job.ending(), why);
    }

    #[cold]
    pub(in crate::prov::verbs) fn fetch_ended(&mut self, len: usize) {
        if let Some(lane) = &mut self.lane {
            lane.fetches.end(len);
        }
    }

    /// Handles the end of an operation that was a read of a long message, or that occupied a send slot.
    #[cold]
    pub(in crate::prov::verbs) fn lane_op_ended(&mut self, how: u8, len: usize) {
        if how & FETCH != 0 {
            self.fetch_ended(len);
        }
        if let Some(lane) = self.lane.as_mut().filter(|_| how & PARCEL != 0) {
            lane.sent();
        }
    }

    /// Finds out the device's keys for the remote pieces. False: the peer has not answered yet.
    fn resolve_keys(&mut self, m: &mut LaneRma) -> Result<bool> {
        while let Some(remote) = m.remote.get(m.keys.len()).copied() {
            if let Some(why) = m.refused.take() {
                return Err(why);
            }
            let known = match m.direct {
                true => Some(PeerKey::direct(u32::try_from(remote.key).map_err(|_| Error::reported(Code::Key))?)),
                false => self.lane.as_ref().and_then(|lane| lane.known_key(remote.key)),
            };
            match known {
                Some(peer_key) => accept_key(m, peer_key)?,
                None if m.asked => return Ok(false),
                None => {
                    m.asked = self.send_parcel(kind::ASK, Class::Own, &[m.keys.len() as u64, remote.key], &[])?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn advance_rma(&mut self, m: &mut LaneRma) -> Result<bool> {
        // An RMA operation must wait for the atomics before it: the device would overtake the peer's CPU, which
        // executes them.
        let overtakes = m.posted == 0 && self.lane.as_ref().is_some_and(|lane| lane.atomics > 0);
        if !m.all_posted && (overtakes || !self.resolve_keys(m)?) {
            return Ok(false);
        }
        let (most, sges) = (self.longest as usize, self.check_connected()?.capacity.tx_pieces as usize);
        if m.posted == 0 && !m.all_posted && self.rails.as_ref().is_some_and(|rails| m.total >= rails.min_striped || m.stripe != 0) {
            match self.stripe_lane_rma(m) {
                Some(StripeProgress::Gone) => return Ok(true),
                Some(StripeProgress::Waits) => return Ok(false),
                Some(StripeProgress::Over) | None => {}
            }
        }
        while !m.all_posted {
            if !self.has_room_for_request() {
                return Ok(false);
            }
            let (target, room) = remote_at(m, m.posted);
            let (mut pieces, n, len) = local_at(&m.pieces, m.posted, room.min(most), sges);
            m.all_posted = m.posted + len == m.total;
            let mut op = TxOp { internal: !m.all_posted || m.deliver || m.must_notify(), path_bits: m.path_bits, ..TxOp::default() };
            if m.all_posted {
                op.end = Ending { part: m.end.part && !op.internal, ..m.end };
            }
            if m.all_posted && (m.deliver || !m.must_notify()) {
                // The buffer is kept until the last work request has ended, because the earlier requests have ended by
                // then.
                op.bounce = m.hold.take();
            }
            let (opcode, operands) = match &m.card {
                Some(card) => (card.opcode, card.operands),
                // Soft-iWARP fails a read of no bytes that is behind other requests, so a write of no bytes takes its
                // place.
                None if m.dir == Dir::Write || (m.total == 0 && self.unordered) => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, [0; 2]),
                None => (ibv_wr_opcode::IBV_WR_RDMA_READ, [0; 2]),
            };
            self.post_request(opcode, &mut pieces[..n], target, operands, m.inline, op)?;
            m.posted += len;
        }
        while m.dir == Dir::Write
            && let (Some(remote), Some(peer_key)) = (m.remote.get(m.counted).copied(), m.keys.get(m.counted))
        {
            let is_last = m.data.is_none() && m.keys.iter().skip(m.counted + 1).all(|peer_key| !peer_key.counts);
            if peer_key.counts && !self.notify_peer(kind::COUNT, &[remote.key], m, is_last)? {
                return Ok(false);
            }
            m.counted += 1;
        }
        if let Some(data) = m.data {
            if !self.notify_peer(kind::WRITTEN, &[m.total as u64, data], m, true)? {
                return Ok(false);
            }
            m.data = None;
        }
        if m.deliver {
            let Some(lane) = self.lane.as_ref().filter(|lane| lane.acks.len() < MAX_ACKS) else { return Ok(false) };
            let number = lane.last_ack + 1;
            if !self.send_parcel(kind::SYNC, Class::Own, &[number], &[])? {
                return Ok(false);
            }
            self.await_ack(PendingAck { end: m.end, old: Iov::EMPTY, atomic: false });
        }
        Ok(true)
    }

    /// Tells the peer about a write by a parcel. If `is_last`, the write ends on this side together with the parcel, so
    /// that the peer never misses the parcel of a write that has ended.
    fn notify_peer(&mut self, kind: u8, words: &[u64], m: &mut LaneRma, is_last: bool) -> Result<bool> {
        self.send_parcel_of(kind, Class::Own, words, &[], Some(m).filter(|m| is_last && !m.deliver))
    }

    fn advance_atomic(&mut self, a: &LaneAtomic) -> Result<bool> {
        let Some(lane) = self.lane.as_ref().filter(|lane| lane.acks.len() < MAX_ACKS) else { return Ok(false) };
        let [what, addr, key] = a.words;
        let words = [lane.last_ack + 1, what, addr, key];
        // SAFETY: `a` keeps the operands until `send_parcel` has copied them.
        let sent = self.send_parcel(kind::ATOMIC, Class::Own, &words, &[unsafe { Iov::of(&a.operands) }])?;
        if sent {
            self.await_ack(PendingAck { end: a.end, old: a.old, atomic: true });
        }
        Ok(sent)
    }

    fn await_ack(&mut self, ack: PendingAck) {
        if let Some(lane) = &mut self.lane {
            lane.atomics += usize::from(ack.atomic);
            lane.add_ack(ack);
        }
    }

    /// Handles the peer's answer about a key (TOLD).
    pub(in crate::prov::verbs) fn on_key_info(&mut self, parcel: &Flat<'_>) -> Result<()> {
        let Some(lane) = &mut self.lane else { return Ok(()) };
        let Some(LaneJob::Rma(m)) = lane.jobs.front_mut() else {
            return Err(protocol_error("an answer to a request that this side never sent"));
        };
        let key = m.remote.get(m.keys.len()).map(|remote| remote.key);
        let (true, Some(key)) = (m.asked && parcel.word(0) == m.keys.len() as u64, key) else {
            return Err(protocol_error("an answer to a request that this side never sent"));
        };
        m.asked = false;
        let peer_key = PeerKey {
            rkey: parcel.word(2) as u32,
            shift: parcel.word(3),
            base: parcel.word(4),
            len: parcel.word(5),
            access: Access::from_bits_truncate(parcel.word(6) as u32 as _),
            counts: parcel.word(6) & COUNTS != 0,
        };
        let outcome = match parcel.word(1) {
            0 => accept_key(m, peer_key),
            code => Err(Error::reported(Code(code as u16 as i32))),
        };
        match outcome {
            Ok(()) if parcel.word(6) & ONCE == 0 => lane.learn_key(key, peer_key),
            Ok(()) => {}
            Err(e) => m.refused = Some(e),
        }
        Ok(())
    }

    /// Handles the peer's answer to SYNC or ATOMIC.
    pub(in crate::prov::verbs) fn on_ack(&mut self, parcel: &Flat<'_>) -> Result<()> {
        let Some(lane) = &mut self.lane else { return Ok(()) };
        // The operation stays in `acks` until its answer is known to be valid. If the answer is not valid, the end of
        // the connection fails the operation.
        match lane.acks.get(&parcel.word(0)) {
            Some(ack) if parcel.word(1) == 0 && parcel.rest().len() != ack.old.len() => {
                return Err(protocol_error("fetched values of another length than the atomic operation's"));
            }
            _ => {}
        }
        let Some(PendingAck { end, old, atomic }) = lane.acks.remove(&parcel.word(0)) else {
            return Err(protocol_error("an answer to a request that this side never sent"));
        };
        lane.atomics -= usize::from(atomic);
        match parcel.word(1) {
            0 => {
                old.put(parcel.rest());
                self.stats.moved(Paths::NIC, end.len);
                self.bind.succeed(&end);
            }
            code => {
                self.stats.errors += 1;
                self.bind.fail(&end, Error::reported(Code(code as u16 as i32)));
            }
        }
        Ok(())
    }

    /// Fails the operations that have missed their deadlines and have not begun. A late operation that has begun ends
    /// the connection (`check_deadlines`).
    pub(in crate::prov::verbs) fn expire_jobs(&mut self) {
        let now = now_ns();
        let Some(lane) = &mut self.lane else { return };
        let late = |job: &LaneJob| job.is_fresh() && job.ending().deadline != 0 && job.ending().deadline <= now;
        let (gone, kept): (Vec<_>, Vec<_>) = lane.jobs.drain(..).partition(late);
        lane.jobs = kept.into();
        for job in gone {
            self.drop_job(&job, Error::late("the operation could not start"));
        }
    }

    /// The deadlines of all operations that wait here; 0 stands for no deadline.
    pub(in crate::prov::verbs) fn lane_deadlines(&self) -> impl Iterator<Item = u64> + '_ {
        let jobs = self.lane.iter().flat_map(|lane| lane.jobs.iter().map(|job| job.ending().deadline));
        jobs.chain(self.lane.iter().flat_map(|lane| lane.acks.values().map(|ack| ack.end.deadline)))
    }

    /// Fails the operations that wait here, because the connection is over.
    pub(in crate::prov::verbs) fn flush_lane(&mut self) {
        let Some(lane) = &mut self.lane else { return };
        let ends = lane.jobs.drain(..).map(|job| *job.ending()).collect::<Vec<_>>();
        let acks = lane.acks.drain().map(|(_, ack)| ack.end).collect::<Vec<_>>();
        for end in ends.into_iter().chain(acks) {
            let error = self.flushed(end.deadline);
            self.stats.errors += 1;
            self.bind.fail(&end, error);
        }
    }
}

/// Stores the meaning of the operation's next key if the operation is permitted there. This side checks the permission,
/// because a refusal by the peer's device would end the connection.
fn accept_key(m: &mut LaneRma, peer_key: PeerKey) -> Result<()> {
    let Some(remote) = m.remote.get(m.keys.len()) else { return Ok(()) };
    let need = match m.dir {
        _ if m.card.is_some() => Access::ATOMIC,
        Dir::Write => Access::REMOTE_WRITE,
        Dir::Read => Access::REMOTE_READ,
    };
    let within = |at: &u64| at.checked_add(remote.len as u64).is_some_and(|end| end <= peer_key.len);
    if remote.addr.checked_sub(peer_key.base).filter(within).is_none() {
        return Err(Error::reported(Code::Bounds));
    }
    if !peer_key.access.contains(need) {
        return Err(Error::reported(Code::Access));
    }
    if m.card.is_some() && !remote.addr.wrapping_add(peer_key.shift).is_multiple_of(8) {
        return Err(Error::fixed(
            errno::EINVAL,
            "addr: the element is not aligned to 8 bytes in the peer's memory, which RDMA devices need",
        ));
    }
    m.keys.push(peer_key);
    Ok(())
}

/// The remote address of byte `at` of an operation, and the number of bytes that lie together from there on.
fn remote_at(m: &LaneRma, mut at: usize) -> (RemoteAddr, usize) {
    for (remote, peer_key) in m.remote.iter().zip(&m.keys) {
        if at < remote.len || (at == 0 && m.total == 0) {
            let addr = remote.addr.wrapping_add(peer_key.shift).wrapping_add(at as u64);
            return (RemoteAddr { addr, key: peer_key.rkey }, remote.len - at);
        }
        at -= remote.len;
    }
    (RemoteAddr::default(), 0)
}

/// The local pieces of up to `room` bytes from byte `skip` on, at most `most` pieces. Returns the pieces, their number
/// and their bytes.
fn local_at(from: &[ibv_sge], mut skip: usize, room: usize, most: usize) -> ([ibv_sge; IOV_LIMIT], usize, usize) {
    // SAFETY: integers, for all of which zero is a valid value.
    let mut out: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
    let (mut n, mut len) = (0, 0);
    for p in from {
        let have = p.length as usize;
        if skip >= have {
            skip -= have;
            continue;
        }
        let take = (have - skip).min(room - len);
        if take == 0 || n == most.min(IOV_LIMIT) {
            break;
        }
        out[n] = ibv_sge { addr: p.addr + skip as u64, length: take as u32, lkey: p.lkey };
        (n, len, skip) = (n + 1, len + take, 0);
    }
    (out, n, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::verbs::queue::work::NicAtomic;

    /// A refusal by the device would end the connection, so `accept_key` refuses first.
    #[test]
    fn a_cards_atomic_goes_where_it_may() {
        let card = Some(NicAtomic { opcode: ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, operands: [1, 0] });
        let remote = vec![RmaIov { addr: 0x1000, len: 8, key: 5 }];
        let mut m = LaneRma { card, remote, total: 8, ..LaneRma::new(Dir::Write, Ending::default()) };
        let peer_key = PeerKey { base: 0x1000, len: 8, access: Access::ATOMIC, ..PeerKey::direct(9) };
        let mut refuses = |peer_key| accept_key(&mut m, peer_key).err().map(|e| e.errno);
        assert_eq!(refuses(PeerKey { access: Access::all() - Access::ATOMIC, ..peer_key }), Some(errno::EACCES));
        assert_eq!(refuses(PeerKey { len: 7, ..peer_key }), Some(errno::ERANGE));
        assert_eq!(refuses(PeerKey { shift: 4, ..peer_key }), Some(errno::EINVAL));
        assert_eq!(refuses(PeerKey { shift: 0x20000, ..peer_key }), None);
        let (target, room) = remote_at(&m, 0);
        assert_eq!((target.addr, target.key, room), (0x21000, 9, 8));
    }
}
