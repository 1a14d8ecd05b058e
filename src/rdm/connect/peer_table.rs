// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the record of a peer by its index in the address vector or by its name, keeps indexes and records consistent when the vector
//! changes, and frees records that nothing refers to.

use crate::error::{Error, Result};
use crate::fallible::MakeRoom;
use crate::prov::av::{Name, UNSPEC};
use crate::rdm::peers::peer::{Id, Peer, Phase};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::{State, UNKNOWN};
use std::collections::HashSet;

impl State {
    /// The peer at an index of the address vector.
    #[inline]
    pub fn route(&mut self, index: u64) -> Result<Id> {
        let Some(av) = &self.av else { return self.only_peer() };
        if av.changes() != self.av_changes {
            self.refresh_routes();
        }
        match self.routes.get(index as usize) {
            Some(Some((_, id))) => Ok(*id),
            _ => self.find_route(index),
        }
    }

    /// Looks up an index for the first time, or again after its peer was lost.
    #[cold]
    fn find_route(&mut self, index: u64) -> Result<Id> {
        let Some(av) = self.av.clone() else { return Err(Error::invalid("ep: no address vector")) };
        let (name, generation) = av.get(index)?;
        let id = match self.find_peer(&name) {
            Some(id) => {
                // So far only the peer's address was known. From now on the peer must be the incarnation that this name
                // means; otherwise everything that waits for the peer fails.
                if let Some(peer) = self.peer(id).filter(|p| p.name.nonce == 0 && name.nonce != 0) {
                    peer.expected_nonce = name.nonce;
                }
                id
            }
            None => self.add_peer(name),
        };
        let at = index as usize;
        if self.routes.len() <= at {
            self.routes.room(at + 1 - self.routes.len())?;
            self.routes.resize(at + 1, None);
        }
        if let Some(slot) = self.routes.get_mut(at) {
            *slot = Some((generation, id));
        }
        Ok(id)
    }

    /// Takes over changes of the address vector: an index may name another peer, and a peer may have got an index.
    #[cold]
    fn refresh_routes(&mut self) {
        let Some(av) = self.av.clone() else { return };
        let (now, recent) = av.since(self.av_changes);
        self.av_changes = now;
        if let Some(recent) = recent {
            let mut changed = Vec::new();
            for (index, name) in recent {
                if let Some(slot) = self.routes.get_mut(index as usize) {
                    *slot = slot.filter(|(generation, _)| av.get(index).is_ok_and(|(_, g)| g == *generation));
                }
                changed.extend(self.by_address.get(&name.socket()).into_iter().flatten());
            }
            return self.update_sources(&changed);
        }
        for (index, slot) in self.routes.iter_mut().enumerate() {
            *slot = slot.filter(|(generation, _)| av.get(index as u64).is_ok_and(|(_, g)| g == *generation));
        }
        self.update_sources(&(0..self.peers.len() as Id).collect::<Vec<_>>());
    }

    /// Updates the indexes of these peers. Receives that were posted for a peer stay with the peer. All such receives are
    /// removed before any is posted again, because an index may have moved from one peer to another.
    fn update_sources(&mut self, ids: &[Id]) {
        let mut moved = Vec::new();
        for id in ids {
            if let Some((before, source)) = self.update_index(*id) {
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
        if self.update_index(id).is_some() {
            self.refile();
        }
    }

    /// Looks the peer up in the address vector again. Returns the old and the new index if they differ; unexpected
    /// messages are still filed under the old index.
    fn update_index(&mut self, id: Id) -> Option<(u64, u64)> {
        let name = self.peer(id).map(|p| p.name)?;
        let source = self.av.as_ref().and_then(|av| av.find(&name)).unwrap_or(UNKNOWN | u64::from(id));
        let before = self.peer(id).map(|p| std::mem::replace(&mut p.source, source))?;
        (before != source).then_some((before, source))
    }

    /// Files unexpected messages under the current indexes of their peers.
    fn refile(&mut self) {
        let peers = &self.peers;
        let source_of = |message: &Unexpected| match message {
            Unexpected::Eager { from, .. } | Unexpected::Offered { from, .. } => Some(peers.get(*from as usize)?.as_deref()?.source),
            Unexpected::Loopback { .. } => None,
        };
        for space in [&mut self.tagged, &mut self.untagged] {
            space.refile(source_of);
        }
        for (source, .., message) in self.claimed.values_mut() {
            *source = source_of(message).unwrap_or(*source);
        }
    }

    /// Takes over changes of the address vector, so that messages of a peer that was inserted are matched under its index
    /// from now on.
    #[inline(always)]
    pub fn refresh_av(&mut self) {
        if self.av.as_ref().is_some_and(|av| av.changes() != self.av_changes) {
            self.refresh_routes();
        }
    }

    /// The peer that a name stands for. A peer with the same nonce is preferred, then a peer with a lane.
    pub fn find_peer(&self, name: &Name) -> Option<Id> {
        let ids = self.by_address.get(&name.socket())?;
        let peer = |id: Id| self.peers.get(id as usize).and_then(Option::as_deref);
        // A name without a nonce stands for the endpoint that listens there now. A peer that was met before is known to
        // be that endpoint only as long as its lane exists.
        let matches_by_address = |p: &Peer| name.nonce == 0 && !matches!(p.phase, Phase::Unconnected);
        let matches_without_nonce = |p: &Peer| p.name.nonce == 0 && (p.expected_nonce == 0 || p.expected_nonce == name.nonce);
        let fits = |p: &Peer| p.name.nonce == name.nonce || matches_without_nonce(p) || matches_by_address(p);
        let found = ids.iter().copied().filter_map(|id| Some((id, peer(id).filter(|p| fits(p))?)));
        found.min_by_key(|(_, p)| (p.name.nonce != name.nonce, matches!(p.phase, Phase::Unconnected))).map(|(id, _)| id)
    }

    /// Adds a record for a name.
    pub fn add_peer(&mut self, name: Name) -> Id {
        let id = self.free_peers.pop().unwrap_or_else(|| {
            self.peers.push(None);
            (self.peers.len() - 1) as Id
        });
        let mut peer = Peer::new(name, UNKNOWN | u64::from(id));
        if let Some(own) = self.name.filter(|own| name.means(own)) {
            (peer.name, peer.phase) = (own, Phase::Loopback);
            self.loopback = Some(id);
        }
        if let Some(slot) = self.peers.get_mut(id as usize) {
            *slot = Some(Box::new(peer));
        }
        self.by_address.entry(name.socket()).or_default().push(id);
        // The peer has no messages yet, so no message has to be filed anew.
        self.update_index(id);
        id
    }

    /// Marks a peer as dead if it is idle and no index names it. Once enough peers are dead, frees those records to which
    /// no message, receive or route refers.
    pub fn reap(&mut self, id: Id) {
        let dead = |p: &Peer| p.source >= UNKNOWN && p.is_idle();
        if !self.peer(id).is_some_and(|p| dead(p)) || !self.dead.insert(id) || self.dead.len() < self.reap_at {
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
        let routed: HashSet<Id> = self.routes.iter().flatten().map(|(_, id)| *id).collect();
        let mut still_dead = HashSet::new();
        for id in std::mem::take(&mut self.dead) {
            // The peer may have come into use again since it was marked.
            let Some(peer) = self.peer(id).filter(|p| dead(p)) else { continue };
            let address = peer.name.socket();
            if referenced.contains(&id) || routed.contains(&id) {
                still_dead.insert(id);
                continue;
            }
            if let Some(ids) = self.by_address.get_mut(&address) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_address.remove(&address);
                }
            }
            if let Some(record) = self.peers.get_mut(id as usize) {
                *record = None;
                self.free_peers.push(id);
            }
        }
        self.reap_at = 2 * still_dead.len() + 64;
        self.dead = still_dead;
    }
}
