// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Block lists. The peer's lane moves a list as a connected endpoint of the lane's provider does.

use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::PART;
use crate::prov::flags;
use crate::prov::list::{List, Native, Pair, Run};
use crate::prov::op::{Common, Dir};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::peers::peer::{CompletionInfo, Phase};
use crate::rdm::state::State;

impl State {
    /// Lets the lane move a list, if the lane can. Without a lane this side dials the peer first, but only once per list.
    /// If the dial fails, the caller posts the list piece by piece, so that each piece is checked and fails for itself.
    pub fn list(&mut self, domain: &Domain, dir: Dir, list: &List, c: &Common) -> Result<Native> {
        self.check_enabled()?;
        let id = self.route(c.peer)?;
        let Some(peer) = self.peers.get_mut(id) else { return Ok(Native::Pieces) };
        let link = match &peer.phase {
            Phase::Loopback => return Ok(Native::Pieces),
            Phase::Unconnected => {
                let called = peer.dialed_for_list;
                peer.dialed_for_list = !called;
                if !called {
                    self.dial(domain, id, 0);
                }
                return Ok(if called { Native::Pieces } else { Native::Blocked });
            }
            Phase::Dialing(_) | Phase::Accepting(_) | Phase::Exchanged(_) | Phase::Awaiting { .. } => return Ok(Native::Blocked),
            Phase::Ready(link) => link.clone(),
        };
        peer.dialed_for_list = false;
        if peer.fault_plan.is_some() {
            return Ok(Native::Pieces);
        }
        let fenced = c.flags & flags::FENCE != 0 && peer.in_flight > 0;
        if fenced || !peer.waiting.is_empty() || !peer.control.is_empty() {
            return Ok(Native::Blocked);
        }
        let renamed = names_for(domain, link.lane_index, list)?;
        let completion = CompletionInfo { context: c.context, part: true, ..CompletionInfo::default() };
        let number = self.ops.add(OutstandingOp::Rma { peer: id, completion, _owned: None });
        let c = Common { context: number as usize, flags: c.flags & !flags::FENCE | PART, peer: 0, ..*c };
        let moved = link.ep.list(dir, renamed.as_ref().unwrap_or(list), &c);
        if matches!(moved, Ok(Native::Flying)) {
            self.lists += 1;
            self.lanes.schedule().promote(&link);
            if let Some(peer) = self.peers.get_mut(id) {
                peer.in_flight += 1;
            }
            return moved;
        }
        self.ops.take(number);
        match moved {
            // The lane has ended, and an event will report the end. After that event the list is tried again and finds no
            // lane.
            Err(e) if matches!(e.errno, errno::ESHUTDOWN | errno::ENOTCONN) => Ok(Native::Blocked),
            moved => moved,
        }
    }

    /// Lets the lane move a part of a list. Returns the number of runs (consecutive blocks that adjoin) that the lane
    /// took.
    pub fn list_part(&mut self, domain: &Domain, dir: Dir, runs: &[Run], pairs: &[Pair], c: &Common) -> Result<usize> {
        self.check_enabled()?;
        let id = self.route(c.peer)?;
        let lost = || Error::coded(errno::ECONNRESET, Code::PeerGone, "the connection to the peer ended in the middle of the list");
        let Some(peer) = self.peers.get_mut(id) else { return Err(lost()) };
        let Phase::Ready(link) = &peer.phase else { return Err(lost()) };
        let link = link.clone();
        if c.flags & flags::FENCE != 0 && peer.in_flight > 0 {
            return Ok(0);
        }
        let renamed = if pairs.iter().all(|p| p.desc == 0) { None } else { Some(names_of(domain, link.lane_index, pairs)?) };
        let completion = CompletionInfo { context: c.context, part: true, ..CompletionInfo::default() };
        let number = self.ops.add(OutstandingOp::Rma { peer: id, completion, _owned: None });
        let c = Common { context: number as usize, flags: c.flags & !flags::FENCE | PART, peer: 0, ..*c };
        let posted = link.ep.list_part(dir, runs, renamed.as_deref().unwrap_or(pairs), &c);
        if matches!(posted, Ok(n) if n > 0) {
            self.lists += 1;
            self.lanes.schedule().promote(&link);
            if let Some(peer) = self.peers.get_mut(id) {
                peer.in_flight += 1;
            }
        } else {
            self.ops.take(number);
        }
        posted
    }
}

/// The list with the descriptors that one lane uses; `None` if the list has no descriptors.
fn names_for(domain: &Domain, lane: usize, list: &List) -> Result<Option<List>> {
    if list.pairs.iter().all(|p| p.desc == 0) {
        return Ok(None);
    }
    list.renamed(names_of(domain, lane, &list.pairs)?).map(Some)
}

fn names_of(domain: &Domain, lane: usize, pairs: &[Pair]) -> Result<Box<[Pair]>> {
    let name = |p: &Pair| -> Result<Pair> { Ok(Pair { desc: domain.descs_of(lane, &[p.desc])?.0[0], key: p.key }) };
    pairs.iter().map(name).collect()
}
