// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peers of one endpoint: finds the record of a peer by its index in the address vector or by its name, keeps indexes
//! and records consistent when the vector changes, and frees records that nothing refers to. This part also counts the
//! memory that peers make this side keep (credit, offers, messages of gone peers), and knows which peers have work: messages
//! to send, offers to read, or a dial to repeat.

use crate::error::{Code, Error, Result, errno};
use crate::fallible::MakeRoom;
use crate::prov::av::{Av, Name, UNSPEC};
use crate::rdm::limits::{ENDED_MAX, ENDED_PEERS_MAX, FIRST_GRANT, GRANTS_MAX, MAX_MSG, OFFERS_ALL, OFFERS_MAX, UNLISTED_MAX};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::budget::BudgetShare;
use crate::rdm::peers::credit::Credit;
use crate::rdm::peers::peer::{Id, ONLY_PEER, Peer, PendingOp, Phase, UNKNOWN};
use crate::rdm::wire::parcel::{MessageOffer, OVERHEAD, ParcelWords};
use crate::sys::time;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

pub struct Peers {
    /// Records of peers; an `Id` is an index of this array. `free`: the unused indexes.
    all: Vec<Option<Box<Peer>>>,
    free: Vec<Id>,
    /// Idle peers that no index of the address vector names. Once there are `reap_at` of them, their records are freed.
    dead: HashSet<Id>,
    reap_at: usize,
    /// The record in which this endpoint is its own peer, if an operation or a caller has named this endpoint.
    loopback: Option<Id>,
    /// Peers by the address where they listen. Endpoints that listen at one address one after another (incarnations) have
    /// the same address, and the nonce in the name tells the endpoints apart.
    by_address: HashMap<SocketAddr, Vec<Id>>,
    /// The address vector, and its change count when the peers' indexes were last looked up. A connected endpoint has no
    /// vector and one peer.
    av: Option<Arc<Av>>,
    av_changes: u64,
    /// Peers by index of the address vector. The number in front of the peer is the generation of the index, which
    /// changes when the vector uses the index again.
    routes: Vec<Option<(u32, Id)>>,
    /// Peers to which this side still has to send something.
    busy: Vec<Id>,
    /// Peers with offers whose reads the lane has not taken yet (`Peer::reads`).
    reading: Vec<Id>,
    /// Peers that this side dials again after a pause, unless they call first.
    awaiting: Vec<Id>,
    /// Bytes by which this endpoint's grants exceed the first grants of the peers. The count of the whole domain has the
    /// limit `GRANTS_MAX`.
    extra_grants: BudgetShare,
    /// Number of offers, of all peers together, that this side has not answered with DONE yet.
    unanswered_offers: usize,
    /// Bytes of this endpoint's unexpected messages whose senders are gone. The count of the whole domain has the limit
    /// `ENDED_MAX`.
    ended_bytes: BudgetShare,
}

/// A peer whose lane is lost, with the work that was outstanding.
pub struct LostPeer {
    /// The name and the index that the peer had before its lane was lost.
    pub name: Name,
    pub source: u64,
    /// Operations that had not started.
    pub waiting: VecDeque<PendingOp>,
    /// Reads of the peer's offers that were not posted.
    pub reads: VecDeque<u64>,
}

impl Peers {
    pub fn new(domain: &Domain) -> Peers {
        Peers {
            all: Vec::new(),
            free: Vec::new(),
            dead: HashSet::new(),
            reap_at: 64,
            loopback: None,
            by_address: HashMap::new(),
            av: None,
            av_changes: u64::MAX,
            routes: Vec::new(),
            busy: Vec::new(),
            reading: Vec::new(),
            awaiting: Vec::new(),
            extra_grants: BudgetShare::of(&domain.grants),
            unanswered_offers: 0,
            ended_bytes: BudgetShare::of(&domain.ended),
        }
    }

    /// Adds the only peer of a connected endpoint.
    pub fn add_only(&mut self) {
        self.all.push(Some(Box::new(Peer::new(Name::NOBODY, UNKNOWN | u64::from(ONLY_PEER)))));
    }

    pub fn set_av(&mut self, av: Arc<Av>) {
        self.av = Some(av);
    }

    pub fn has_av(&self) -> bool {
        self.av.is_some()
    }

    #[inline(always)]
    pub fn get(&self, id: Id) -> Option<&Peer> {
        self.all.get(id as usize)?.as_deref()
    }

    #[inline(always)]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Peer> {
        self.all.get_mut(id as usize)?.as_deref_mut()
    }

    /// The range of all `Id`s. Some of them may be unused.
    pub fn ids(&self) -> std::ops::Range<Id> {
        0..self.all.len() as Id
    }

    pub fn is_loopback(&self, id: Id) -> bool {
        self.loopback == Some(id)
    }

    /// The source of this endpoint's messages to itself: its own index in the address vector, or a number from `UNKNOWN` on.
    /// `UNSPEC` if the record `loopback` does not exist.
    pub fn loopback_source(&self) -> u64 {
        self.loopback.and_then(|id| self.get(id)).map_or(UNSPEC, |p| p.source)
    }

    /// True if the address vector has changed since the last `refresh`.
    #[inline(always)]
    pub fn is_stale(&self) -> bool {
        self.av.as_ref().is_some_and(|av| av.changes() != self.av_changes)
    }

    /// The peer of an index, if its route is known and the address vector has not changed since.
    #[inline(always)]
    pub fn known(&self, index: u64) -> Option<Id> {
        let Some(av) = &self.av else { return Some(ONLY_PEER) };
        if av.changes() != self.av_changes {
            return None;
        }
        self.routes.get(index as usize).copied().flatten().map(|(_, id)| id)
    }

    /// Looks up the peer of an index. The caller has taken over the changes of the address vector (`refresh`). `own`: the
    /// name of this endpoint.
    #[inline]
    pub fn route(&mut self, index: u64, own: Option<Name>) -> Result<Id> {
        match self.routes.get(index as usize) {
            Some(Some((_, id))) => Ok(*id),
            _ => self.find_route(index, own),
        }
    }

    /// Looks up an index for the first time, or again after its peer was lost.
    #[cold]
    fn find_route(&mut self, index: u64, own: Option<Name>) -> Result<Id> {
        let Some(av) = self.av.clone() else { return Err(Error::invalid("ep: no address vector")) };
        let (name, generation) = av.get(index)?;
        let id = match self.find(&name) {
            Some(id) => {
                // So far only the peer's address was known. From now on the peer must be the incarnation that this name
                // means; otherwise everything that waits for the peer fails.
                if let Some(peer) = self.get_mut(id).filter(|p| p.name.nonce == 0 && name.nonce != 0) {
                    peer.expected_nonce = name.nonce;
                }
                id
            }
            None => self.add(name, own),
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
    /// Returns the peers whose indexes have to be updated.
    pub fn refresh(&mut self) -> Vec<Id> {
        let Some(av) = self.av.clone() else { return Vec::new() };
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
            return changed;
        }
        for (index, slot) in self.routes.iter_mut().enumerate() {
            *slot = slot.filter(|(generation, _)| av.get(index as u64).is_ok_and(|(_, g)| g == *generation));
        }
        self.ids().collect()
    }

    /// Looks the peer up in the address vector again. Returns the old and the new index if they differ. The caller then
    /// files the peer's messages and receives, which are still under the old index, anew.
    pub fn update_index(&mut self, id: Id) -> Option<(u64, u64)> {
        let name = self.get(id).map(|p| p.name)?;
        let source = self.av.as_ref().and_then(|av| av.find(&name)).unwrap_or(UNKNOWN | u64::from(id));
        let before = self.get_mut(id).map(|p| std::mem::replace(&mut p.source, source))?;
        (before != source).then_some((before, source))
    }

    /// The peer that a name stands for. A peer with the same nonce is preferred, then a peer with a lane.
    pub fn find(&self, name: &Name) -> Option<Id> {
        let ids = self.by_address.get(&name.socket())?;
        // A name without a nonce stands for the endpoint that listens there now. A peer that was met before is known to
        // be that endpoint only as long as its lane exists.
        let matches_by_address = |p: &Peer| name.nonce == 0 && !matches!(p.phase, Phase::Unconnected);
        let matches_without_nonce = |p: &Peer| p.name.nonce == 0 && (p.expected_nonce == 0 || p.expected_nonce == name.nonce);
        let fits = |p: &Peer| p.name.nonce == name.nonce || matches_without_nonce(p) || matches_by_address(p);
        let found = ids.iter().copied().filter_map(|id| Some((id, self.get(id).filter(|p| fits(p))?)));
        found.min_by_key(|(_, p)| (p.name.nonce != name.nonce, matches!(p.phase, Phase::Unconnected))).map(|(id, _)| id)
    }

    /// Adds a record for a name. `own`: the name of this endpoint.
    pub fn add(&mut self, name: Name, own: Option<Name>) -> Id {
        let id = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            (self.all.len() - 1) as Id
        });
        let mut peer = Peer::new(name, UNKNOWN | u64::from(id));
        if let Some(own) = own.filter(|own| name.means(own)) {
            (peer.name, peer.phase) = (own, Phase::Loopback);
            self.loopback = Some(id);
        }
        if let Some(slot) = self.all.get_mut(id as usize) {
            *slot = Some(Box::new(peer));
        }
        self.by_address.entry(name.socket()).or_default().push(id);
        // The peer has no messages yet, so no message has to be filed anew.
        self.update_index(id);
        id
    }

    /// True if the address vector has the peer's name with its nonce. An entry with only an address does not count.
    pub fn is_named(&self, name: &Name) -> bool {
        let entry = |av: &Arc<Av>| av.find(name).and_then(|index| av.get(index).ok());
        self.av.as_ref().and_then(entry).is_some_and(|(found, _)| found.nonce == name.nonce)
    }

    /// Change count of the address vector at the last `refresh`.
    pub fn av_changes(&self) -> u64 {
        self.av_changes
    }

    /// Marks a peer as dead if it is idle and no index names it. True if enough peers are dead to free their records
    /// (`free_dead`).
    pub fn mark_dead(&mut self, id: Id) -> bool {
        self.get(id).is_some_and(is_dead) && self.dead.insert(id) && self.dead.len() >= self.reap_at
    }

    /// Frees the records of dead peers to which no route refers, and that are not in `referenced`.
    pub fn free_dead(&mut self, referenced: &HashSet<Id>) {
        let routed: HashSet<Id> = self.routes.iter().flatten().map(|(_, id)| *id).collect();
        let mut still_dead = HashSet::new();
        for id in std::mem::take(&mut self.dead) {
            // The peer may have come into use again since it was marked.
            let Some(peer) = self.get(id).filter(|p| is_dead(p)) else { continue };
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
            if let Some(record) = self.all.get_mut(id as usize) {
                *record = None;
                self.free.push(id);
            }
        }
        self.reap_at = 2 * still_dead.len() + 64;
        self.dead = still_dead;
    }

    /// Resets the record of a peer whose lane is lost. Returns the work that was outstanding. The next message to the
    /// peer dials it again.
    pub fn reset_lost(&mut self, id: Id) -> Option<LostPeer> {
        let index = self.routes.iter().position(|route| route.is_some_and(|(_, to)| to == id));
        let name_in_vector = index.zip(self.av.as_ref()).and_then(|(index, av)| av.lookup(index as u64).ok());
        // One index may have the name with its nonce, another only the address. They no longer stand for the same
        // endpoint, so both are looked up anew.
        self.routes.iter_mut().filter(|route| route.is_some_and(|(_, to)| to == id)).for_each(|route| *route = None);
        self.reading.retain(|other| *other != id);
        let peer = self.all.get_mut(id as usize)?.as_deref_mut()?;
        self.extra_grants.give_back(peer.credit.grant().saturating_sub(FIRST_GRANT));
        self.unanswered_offers = self.unanswered_offers.saturating_sub(peer.unanswered_offers);
        self.ended_bytes.add(peer.credit.unconsumed());
        peer.control.clear();
        peer.in_flight = peer.in_flight.saturating_sub(peer.open_offers);
        let (waiting, reads) = (std::mem::take(&mut peer.waiting), std::mem::take(&mut peer.reads));
        (peer.open_offers, peer.exposed, peer.unanswered_offers) = (0, 0, 0);
        (peer.peer_offers, peer.connect_until, peer.refusals) = (HashMap::default(), 0, 0);
        (peer.credit, peer.phase, peer.expected_nonce, peer.fault_plan) = (Credit::default(), Phase::Unconnected, 0, None);
        let name = peer.name;
        // If the vector has only the address, the address stands for the endpoint that listens there next.
        peer.name = name_in_vector.unwrap_or(name);
        Some(LostPeer { name, source: peer.source, waiting, reads })
    }

    /// True if the messages and the records that gone peers have left are within the limits `ENDED_MAX` and
    /// `ENDED_PEERS_MAX`. Otherwise no unlisted caller may connect.
    pub fn has_room_for_ended(&self) -> bool {
        self.ended_bytes() <= ENDED_MAX && self.dead.len() <= ENDED_PEERS_MAX
    }

    /// Bytes of unexpected messages whose senders are gone, in the whole domain.
    pub fn ended_bytes(&self) -> u64 {
        self.ended_bytes.all()
    }

    /// Adds the peer to the busy peers, so that progress sends everything that waits for the peer.
    pub fn mark_busy(&mut self, id: Id) {
        if let Some(peer) = self.get_mut(id)
            && !std::mem::replace(&mut peer.busy, true)
        {
            self.busy.push(id);
        }
    }

    /// 0 if this side has nothing to send to any peer and no offer to read; otherwise any other number.
    #[inline(always)]
    pub fn queued_work(&self) -> usize {
        self.busy.len() | self.reading.len()
    }

    /// Takes the list of busy peers. Each peer stays marked until `unmark_busy`.
    pub fn take_busy(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.busy)
    }

    /// Unmarks a busy peer, which may be marked again from now on.
    pub fn unmark_busy(&mut self, id: Id) {
        if let Some(peer) = self.get_mut(id) {
            peer.busy = false;
        }
    }

    /// Queues the read of a peer's offer.
    pub fn queue_read(&mut self, id: Id, number: u64) {
        if let Some(peer) = self.get_mut(id) {
            peer.reads.push_back(number);
            if peer.reads.len() == 1 {
                self.reading.push(id);
            }
        }
    }

    /// Takes the list of peers that have queued reads.
    pub fn take_reading(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.reading)
    }

    /// Puts a peer back into the list of `take_reading`, because its lane has no room for all of its reads.
    pub fn keep_reading(&mut self, id: Id) {
        self.reading.push(id);
    }

    /// The reads that no lane has yet.
    pub fn queued_reads(&self) -> impl Iterator<Item = u64> {
        self.reading.iter().filter_map(|id| self.get(*id)).flat_map(|p| p.reads.iter().copied())
    }

    /// Dials a peer again only after a pause of `for_ns` nanoseconds, unless the peer calls first.
    pub fn await_peer(&mut self, id: Id, for_ns: u64) {
        if let Some(peer) = self.get_mut(id) {
            peer.phase = Phase::Awaiting { until: time::now_ns() + for_ns };
            self.awaiting.push(id);
        }
    }

    /// Ends the pause of peers whose time has come, and of peers that have called meanwhile. Returns the peers whose time
    /// has come without a call.
    pub fn take_overdue(&mut self, now: u64) -> Vec<Id> {
        let mut overdue = Vec::new();
        for id in std::mem::take(&mut self.awaiting) {
            match self.get(id).map(|p| &p.phase) {
                Some(Phase::Awaiting { until }) if *until < now => overdue.push(id),
                Some(Phase::Awaiting { .. }) => self.awaiting.push(id),
                _ => {}
            }
        }
        overdue
    }

    pub fn is_awaiting(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// Peers with something to send, and peers that are dialed again after a pause.
    pub fn with_work(&self) -> impl Iterator<Item = Id> {
        self.busy.iter().chain(&self.awaiting).copied()
    }

    /// Counts an eager message of a peer as consumed. Once half of the grant has accumulated, queues a parcel that returns
    /// the credit to the peer.
    pub fn consumed(&mut self, from: Id, link: usize, len: usize) {
        let peer = self.all.get_mut(from as usize).and_then(Option::as_deref_mut);
        let Some(peer) = peer.filter(|p| p.link().is_some_and(|l| l.number == link)) else {
            // The lane by which the message came has ended, and credit ends with its lane.
            return self.ended_bytes.give_back(len as u64 + OVERHEAD);
        };
        let grants = &mut self.extra_grants;
        let tell = peer.credit.consumed(len, |more| grants.add_within(more, GRANTS_MAX));
        if let Some(words) = tell {
            // A newer report replaces a report that was not sent yet.
            match peer.control.back_mut().filter(|last| last.is_credit()) {
                Some(last) => *last = words,
                None => peer.control.push_back(words),
            }
            self.mark_busy(from);
        }
    }

    /// Handles a peer's return of credit.
    pub fn credit_returned(&mut self, id: Id, consumed: u64, grant: u64) -> Result<()> {
        let Some(peer) = self.get_mut(id) else { return Ok(()) };
        peer.credit.returned(consumed, grant)?;
        if !peer.waiting.is_empty() {
            self.mark_busy(id);
        }
        Ok(())
    }

    /// Counts an offer that has arrived. Fails if the peer exceeds the limits for offers.
    pub fn offered(&mut self, id: Id, offer: &MessageOffer) -> Result<()> {
        let Some(peer) = self.all.get_mut(id as usize).and_then(Option::as_deref_mut) else { return Ok(()) };
        if peer.offer_state(offer.number).is_some() {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer offers two messages under one number"));
        }
        peer.unanswered_offers += 1;
        let (offered, unlisted) = (peer.unanswered_offers, peer.link().is_some_and(|l| l.unlisted_since() != 0));
        self.unanswered_offers += 1;
        if self.unanswered_offers > OFFERS_ALL && offered > OFFERS_ALL / UNLISTED_MAX && unlisted {
            return Err(Error::coded(
                errno::EBUSY,
                Code::Busy,
                "peers that the address vector does not name offer more messages than are kept",
            ));
        }
        if offered > OFFERS_MAX {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer offers more messages than one of this library does"));
        }
        if offer.len > MAX_MSG as u64 {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer offers more than a message may have"));
        }
        Ok(())
    }

    /// Queues the answer DONE to an offer.
    pub fn send_done(&mut self, to: Id, number: u64, status: Code) {
        if let Some(peer) = self.get_mut(to) {
            peer.forget_offer(number);
            peer.control.push_back(ParcelWords::done(number, status));
            self.mark_busy(to);
        }
    }

    /// Queues the parcel WITHDRAW, which takes an offer back. `regions`: number of regions that the offer exposes.
    pub fn send_withdraw(&mut self, to: Id, number: u64, regions: usize) {
        if let Some(peer) = self.get_mut(to) {
            peer.exposed = peer.exposed.saturating_sub(regions);
            peer.control.push_back(ParcelWords::withdraw(number));
        }
        self.mark_busy(to);
    }

    /// Removes the first parcel of `Peer::control`, because the lane has sent it. If the parcel is DONE, an offer of the
    /// peer is answered now.
    pub fn control_sent(&mut self, id: Id) {
        if let Some(peer) = self.all.get_mut(id as usize).and_then(Option::as_deref_mut)
            && peer.control.pop_front().is_some_and(|words| words.is_done())
        {
            peer.unanswered_offers = peer.unanswered_offers.saturating_sub(1);
            self.unanswered_offers = self.unanswered_offers.saturating_sub(1);
        }
    }
}

/// True if no index of the address vector names the peer, and the peer has neither a lane nor work.
fn is_dead(peer: &Peer) -> bool {
    peer.source >= UNKNOWN && peer.is_idle()
}
