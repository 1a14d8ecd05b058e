// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps messages and receives under the current indexes of their peers when the address vector changes, and has the records of peers
//! freed to which no message and no receive refers.

use crate::error::Result;
use crate::prov::av::UNSPEC;
use crate::rdm::peers::peer::{Id, UNKNOWN};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::State;
use std::collections::HashSet;

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

    /// Updates the indexes of these peers. Receives that were posted for a peer stay with the peer. All such receives are
    /// removed before any is posted again, because an index may have moved from one peer to another.
    fn update_sources(&mut self, ids: &[Id]) {
        let mut moved = Vec::new();
        for id in ids {
            if let Some((before, source)) = self.peers.update_index(*id) {
                moved.extend([true, false].map(|tagged| (tagged, source, self.space(tagged).take_posted_for(before))));
            }
        }
        if !moved.is_empty() {
            self.refile();
        }
        for (tagged, source, receives) in moved {
            self.space(tagged).repost(source, receives);
        }
        ids.iter().for_each(|id| self.reap(*id));
    }

    /// Updates the index by which a peer's messages are matched.
    pub fn update_source(&mut self, id: Id) {
        if self.peers.update_index(id).is_some() {
            self.refile();
        }
    }

    /// Files unexpected messages under the current indexes of their peers.
    fn refile(&mut self) {
        let peers = &self.peers;
        let source_of = |message: &Unexpected| match message {
            Unexpected::Eager { from, .. } | Unexpected::Offered { from, .. } => Some(peers.get(*from)?.source),
            Unexpected::Loopback { .. } => None,
        };
        for space in [&mut self.tagged, &mut self.untagged] {
            space.refile(source_of);
        }
        for (source, .., message) in self.claimed.values_mut() {
            *source = source_of(message).unwrap_or(*source);
        }
    }

    /// Marks a peer as dead if it is idle and no index names it. Once enough peers are dead, frees those records to which
    /// no message, receive or route refers.
    pub fn reap(&mut self, id: Id) {
        if !self.peers.mark_dead(id) {
            return;
        }
        let from = |m: &Unexpected| match m {
            Unexpected::Eager { from, .. } | Unexpected::Offered { from, .. } => Some(*from),
            Unexpected::Loopback { .. } => None,
        };
        let waiting = [&self.tagged, &self.untagged].into_iter().flat_map(|space| space.each_unexpected()).filter_map(|(.., m)| from(m));
        let for_it = |source: u64| (source >= UNKNOWN && source != UNSPEC).then_some(source as Id);
        let posted = [&self.tagged, &self.untagged].into_iter().flat_map(|space| space.posted_sources()).filter_map(for_it);
        let delayed = self.faults.iter().flat_map(|faults| faults.delayed_peers());
        let referenced: HashSet<Id> =
            waiting.chain(posted).chain(delayed).chain(self.claimed.values().filter_map(|(.., m)| from(m))).collect();
        self.peers.free_dead(&referenced);
    }
}
