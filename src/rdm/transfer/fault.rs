// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection (`GDRFAB_FAULT`) for operations and receives. This layer injects the faults, not the lanes, because
//! the order of posting is decided here. Each connected lane has a plan of its own. A plan counts an operation when it is
//! posted to a connected peer. With fault injection the fast path is off.

use crate::error::{Error, Result};
use crate::prov::fault::{FaultOp, Plan, Verdict};
use crate::rdm::matching::matcher::RecvFilter;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{DelayedRecv, FaultInjection, Recv};
use crate::rdm::peers::peer::{Id, ONLY_PEER, UNKNOWN};
use crate::rdm::state::State;
use std::collections::VecDeque;

impl FaultInjection {
    pub fn configured(domain: &Domain) -> Option<Box<FaultInjection>> {
        let lanes: Vec<&str> = domain.lanes.iter().map(|lane| lane.provider.name()).collect();
        Plan::of_operations(&lanes).map(|plan| Box::new(FaultInjection { plan, delayed: VecDeque::new() }))
    }

    /// Time at which the next delayed receive is posted; `u64::MAX` if there is none.
    pub fn next(&self) -> u64 {
        self.delayed.front().map_or(u64::MAX, |delayed| delayed.until)
    }

    /// Peers that delayed receives are restricted to.
    pub fn delayed_peers(&self) -> impl Iterator<Item = Id> {
        self.delayed.iter().filter_map(|delayed| delayed.from)
    }
}

impl State {
    /// Starts the plan of a peer whose lane is connected now, with the operations that waited for the lane. False if the
    /// plan ends the lane: the caller then calls `inject_loss`.
    #[cold]
    pub fn begin_faults(&mut self, domain: &Domain, id: Id) -> bool {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.fault_plan = peer.ready().and_then(|link| Plan::of_operations(&[domain.lanes.get(link.lane_index)?.provider.name()]));
        }
        self.apply_faults(id, 0)
    }

    /// Applies the plan to the operations that wait for a peer, from index `from` on. False if the plan ends the lane: the
    /// caller then calls `inject_loss`.
    #[cold]
    pub fn apply_faults(&mut self, id: Id, from: usize) -> bool {
        let Some(peer) = self.peers.get_mut(id).filter(|p| p.ready().is_some()) else { return true };
        let Some(plan) = &mut peer.fault_plan else { return true };
        for waiting in peer.waiting.iter_mut().skip(from) {
            match plan.post(FaultOp::of(waiting.completion.kind)) {
                Verdict::Go => {}
                Verdict::Hold(until) => waiting.delayed_until = until,
                Verdict::Lose => return false,
            }
        }
        true
    }

    /// Posts an accepted receive, or delays it if the plan says so. If the plan ends the lane, returns the peer, for which the
    /// caller then calls `inject_loss`, and the receive, which the caller fails.
    #[cold]
    pub fn post_faulty(&mut self, from: Option<Id>, want: RecvFilter, recv: Recv) -> Result<Option<(Id, Recv)>> {
        let peer = from.or(self.connection.is_some().then_some(ONLY_PEER)).and_then(|id| self.peers.get_mut(id));
        let peer = peer.filter(|p| p.ready().is_some());
        let (id, Some(faults)) = (from.unwrap_or(ONLY_PEER), &mut self.faults) else { return self.post_recv(want, recv).map(|()| None) };
        let verdict = match peer {
            Some(peer) => peer.fault_plan.as_mut().map_or(Verdict::Go, |plan| plan.post(FaultOp::Recv)),
            None => faults.plan.early(FaultOp::Recv),
        };
        let until = match verdict {
            Verdict::Lose => return Ok(Some((id, recv))),
            Verdict::Hold(until) => until,
            Verdict::Go => 0,
        };
        // A receive waits at least as long as the receive delayed before it, so that receives are posted in order.
        let before = faults.delayed.back().map_or(0, |delayed| delayed.until);
        if until | before == 0 {
            return self.post_recv(want, recv).map(|()| None);
        }
        faults.delayed.push_back(DelayedRecv { until: until.max(before), from, want, recv });
        Ok(None)
    }

    /// Posts the receives whose delay is over.
    #[cold]
    pub fn post_delayed(&mut self, now: u64) {
        while let Some(faults) = self.faults.as_mut().filter(|f| f.next() <= now)
            && let Some(DelayedRecv { from, want, recv, .. }) = faults.delayed.pop_front()
        {
            let source = from.and_then(|id| self.peers.get_mut(id)).map_or(want.source, |p| p.source);
            if let Err(e) = self.post_recv(RecvFilter { source, ..want }, recv) {
                crate::log!(Warn, "a receive that GDRFAB_FAULT has held: {e}");
            }
        }
    }

    /// Posts delayed receives for the stored messages of a peer that is gone, in order and while the index `source` still
    /// stands for the peer. A delayed receive is posted if a stored message of the peer would fill it, and if it either names
    /// the peer, or names no peer and stands before a receive that names the peer. On a connected endpoint the position does
    /// not matter. All other delayed receives stay delayed.
    #[cold]
    pub fn post_delayed_for(&mut self, id: Id, source: u64) {
        let is_only = self.connection.is_some();
        let Some(FaultInjection { delayed, .. }) = self.faults.as_deref_mut() else { return };
        let last = if is_only { delayed.len() } else { delayed.iter().rposition(|h| h.from == Some(id)).map_or(0, |at| at + 1) };
        let mut remaining = Vec::new();
        for DelayedRecv { until, from, want, recv } in delayed.drain(..last).collect::<Vec<_>>() {
            let for_peer = RecvFilter { source, ..want };
            let finds = from.is_none_or(|from| from == id) && self.matching.matcher(recv.tagged).find_unexpected(&for_peer).is_some();
            if !finds {
                remaining.push(DelayedRecv { until, from, want, recv });
            } else if let Err(e) = self.post_recv(if from.is_some() { for_peer } else { want }, recv) {
                crate::log!(Warn, "a receive that GDRFAB_FAULT has held: {e}");
            }
        }
        if let Some(faults) = &mut self.faults {
            remaining.into_iter().rev().for_each(|delayed| faults.delayed.push_front(delayed));
        }
    }

    /// Fails up to `most` delayed receives for which `which` holds. Returns the number of receives that failed.
    pub fn end_delayed(&mut self, why: &Error, most: usize, mut which: impl FnMut(&DelayedRecv) -> bool) -> usize {
        let Some(faults) = &mut self.faults else { return 0 };
        let (mut ended, mut kept) = (Vec::new(), VecDeque::new());
        for delayed in faults.delayed.drain(..) {
            if ended.len() < most && which(&delayed) { ended.push(delayed.recv) } else { kept.push_back(delayed) }
        }
        faults.delayed = kept;
        let count = ended.len();
        ended.into_iter().for_each(|recv| self.fail_recv(recv, why.clone(), UNKNOWN));
        count
    }
}
