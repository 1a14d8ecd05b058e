// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps messages and receives under the current indexes of their peers when the address vector changes, and has the records of peers
//! freed to which no message and no receive refers.

use crate::error::{Error, Result, errno};
use crate::rdm::peers::peer::{Id, ONLY_PEER, Phase};
use crate::rdm::state::State;

impl State {
    /// The peer at an index of the address vector.
    #[inline]
    pub fn route(&mut self, index: u64) -> Result<Id> {
        if !self.peers.has_av() {
            return self.only_peer();
        }
        self.refresh_av();
        self.peers.route(index, self.name)
    }

    /// Takes over changes of the address vector, so that messages of a peer that was inserted are matched under its index
    /// from now on.
    #[inline(always)]
    pub fn refresh_av(&mut self) {
        if self.peers.is_stale() {
            self.refresh_routes();
        }
    }

    #[cold]
    fn refresh_routes(&mut self) {
        let ids = self.peers.refresh();
        self.update_sources(&ids);
    }

    /// Updates the indexes of these peers. Receives that were posted for a peer stay with the peer.
    fn update_sources(&mut self, ids: &[Id]) {
        let moved: Vec<_> = ids.iter().filter_map(|id| self.peers.update_index(*id)).collect();
        if !moved.is_empty() {
            self.matching.moved(&moved, |id| Some(self.peers.get(id)?.source));
        }
        ids.iter().for_each(|id| self.reap(*id));
    }

    /// Updates the index by which a peer's messages are matched.
    pub fn update_source(&mut self, id: Id) {
        if self.peers.update_index(id).is_some() {
            self.matching.refile(|id| Some(self.peers.get(id)?.source));
        }
    }

    /// Marks a peer as dead if it is idle and no index names it. Once enough peers are dead, frees those records to which
    /// no message, receive or route refers.
    pub fn reap(&mut self, id: Id) {
        if self.peers.mark_dead(id) {
            let mut referenced = self.matching.peers();
            referenced.extend(self.faults.iter().flat_map(|faults| faults.delayed_peers()));
            self.peers.free_dead(&referenced);
        }
    }

    /// The peer of a connected endpoint; an error while the endpoint is not connected.
    #[cold]
    pub fn only_peer(&self) -> Result<Id> {
        match self.peers.get(ONLY_PEER).map(|p| &p.phase) {
            Some(Phase::Ready(_)) => Ok(ONLY_PEER),
            Some(Phase::Unconnected) | None => Err(Error::fixed(errno::ENOTCONN, "ep: not connected")),
            _ => Err(Error::fixed(errno::ENOTCONN, "ep: not connected yet: wait for GDRFAB_CONNECTED on the event queue")),
        }
    }
}
