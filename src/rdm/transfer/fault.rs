// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults on demand of operations and receives. They happen here, where what is posted has its order, by a plan of each peer's lane,
//! which takes operations as they are then. With faults there is no fast path.

use crate::error::{Error, Result};
use crate::prov::fault::{Op, Plan, Verdict};
use crate::rdm::matching::matcher::RecvFilter;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{DelayedRecv, FaultInjection, Recv};
use crate::rdm::peers::peer::{Id, ONLY_PEER};
use crate::rdm::state::{State, UNKNOWN};
use std::collections::VecDeque;

impl FaultInjection {
    pub fn configured(domain: &Domain) -> Option<Box<FaultInjection>> {
        let lanes: Vec<&str> = domain.lanes.iter().map(|lane| lane.provider.name()).collect();
        Plan::of_operations(&lanes).map(|plan| Box::new(FaultInjection { plan, delayed: VecDeque::new() }))
    }

    /// When the next receive may be found; `u64::MAX`: none is held.
    pub fn next(&self) -> u64 {
        self.delayed.front().map_or(u64::MAX, |held| held.until)
    }

    /// Peers for whom receives are held.
    pub fn delayed_peers(&self) -> impl Iterator<Item = Id> {
        self.delayed.iter().filter_map(|held| held.from)
    }
}

impl State {
    /// The peer's lane is there. False: what has waited for it has cost it the lane.
    #[cold]
    pub fn begin_faults(&mut self, domain: &Domain, id: Id) -> bool {
        if let Some(peer) = self.peer(id) {
            peer.fault_plan = peer.ready().and_then(|link| Plan::of_operations(&[domain.lanes.get(link.lane_index)?.provider.name()]));
        }
        self.apply_faults(id, 0)
    }

    /// What waits for a peer, from this place on, was accepted for it while it is connected. False: that has cost it the lane.
    #[cold]
    pub fn apply_faults(&mut self, id: Id, from: usize) -> bool {
        let Some(peer) = self.peer(id).filter(|p| p.ready().is_some()) else { return true };
        let Some(plan) = &mut peer.fault_plan else { return true };
        for waiting in peer.waiting.iter_mut().skip(from) {
            match plan.post(Op::of(waiting.end.kind)) {
                Verdict::Go => {}
                Verdict::Hold(until) => waiting.delayed_until = until,
                Verdict::Lose => {
                    self.lose(id);
                    return false;
                }
            }
        }
        true
    }

    /// The peer's lane is over as if the peer had died. What the lane has ends first.
    fn lose(&mut self, id: Id) {
        if let Some(lane) = self.peer(id).and_then(|p| p.ready()).and_then(|link| link.lane()) {
            lane.lose(Plan::gone());
        }
        self.lane_lost(id, Plan::gone());
    }

    /// Posts a receive that was accepted, later if a fault on demand says so.
    #[cold]
    pub fn post_faulty(&mut self, from: Option<Id>, want: RecvFilter, recv: Recv) -> Result<()> {
        let delayed_peers =
            from.or(self.connection.is_some().then_some(ONLY_PEER)).and_then(|id| self.peers.get_mut(id as usize)?.as_deref_mut());
        let delayed_peers = delayed_peers.filter(|p| p.ready().is_some());
        let (id, Some(faults)) = (from.unwrap_or(ONLY_PEER), &mut self.faults) else { return self.post_recv(want, recv) };
        let verdict = match delayed_peers {
            Some(peer) => peer.fault_plan.as_mut().map_or(Verdict::Go, |plan| plan.post(Op::Recv)),
            None => faults.plan.early(Op::Recv),
        };
        let until = match verdict {
            Verdict::Lose => {
                self.lose(id);
                self.fail_recv(recv, Plan::gone(), UNKNOWN);
                return Ok(());
            }
            Verdict::Hold(until) => until,
            Verdict::Go => 0,
        };
        // None overtakes another.
        let before = faults.delayed.back().map_or(0, |held| held.until);
        if until | before == 0 {
            return self.post_recv(want, recv);
        }
        faults.delayed.push_back(DelayedRecv { until: until.max(before), from, want, recv });
        Ok(())
    }

    /// Posts receives that were held long enough.
    #[cold]
    pub fn post_delayed(&mut self, now: u64) {
        while let Some(faults) = self.faults.as_mut().filter(|f| f.next() <= now)
            && let Some(DelayedRecv { from, want, recv, .. }) = faults.delayed.pop_front()
        {
            let source = from.and_then(|id| self.peer(id)).map_or(want.source, |p| p.source);
            if let Err(e) = self.post_recv(RecvFilter { source, ..want }, recv) {
                crate::log!(Warn, "a receive that GDRFAB_FAULT has held: {e}");
            }
        }
    }

    /// A peer is over, and index `source` is its own still: receives that are held and would have been given what it has sent by now
    /// are posted in their order, those for anyone as well if they stand before one for it. The others it leaves.
    #[cold]
    pub fn post_delayed_for(&mut self, id: Id, source: u64) {
        let is_only = self.connection.is_some();
        let Some(FaultInjection { delayed: held, .. }) = self.faults.as_deref_mut() else { return };
        let last = if is_only { held.len() } else { held.iter().rposition(|h| h.from == Some(id)).map_or(0, |at| at + 1) };
        let mut left = Vec::new();
        for DelayedRecv { until, from, want, recv } in held.drain(..last).collect::<Vec<_>>() {
            let of_it = RecvFilter { source, ..want };
            let finds = from.is_none_or(|from| from == id) && self.space(recv.tagged).find_unexpected(&of_it).is_some();
            if !finds {
                left.push(DelayedRecv { until, from, want, recv });
            } else if let Err(e) = self.post_recv(if from.is_some() { of_it } else { want }, recv) {
                crate::log!(Warn, "a receive that GDRFAB_FAULT has held: {e}");
            }
        }
        if let Some(faults) = &mut self.faults {
            left.into_iter().rev().for_each(|held| faults.delayed.push_front(held));
        }
    }

    /// Ends up to `most` receives that are held and for which `which` holds; gives how many.
    pub fn end_delayed(&mut self, why: &Error, most: usize, mut which: impl FnMut(&DelayedRecv) -> bool) -> usize {
        let Some(faults) = &mut self.faults else { return 0 };
        let (mut ended, mut stored_descs) = (Vec::new(), VecDeque::new());
        for held in faults.delayed.drain(..) {
            if ended.len() < most && which(&held) { ended.push(held.recv) } else { stored_descs.push_back(held) }
        }
        faults.delayed = stored_descs;
        let count = ended.len();
        ended.into_iter().for_each(|recv| self.fail_recv(recv, why.clone(), UNKNOWN));
        count
    }
}
