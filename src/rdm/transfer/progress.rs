// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress of a connectionless endpoint. Each turn polls lanes for parcels, completes their operations, and sends what
//! waits for room. Now and then a turn also polls rare matters: callers, lanes that are being connected, events,
//! deadlines. The cost of a turn grows with the number of active peers, not with the number of all peers.

use super::fast::FastOutcome;
use crate::error::{Code, Error, errno};
use crate::prov::av::UNSPEC;
use crate::prov::queue::{Completion, Taken};
use crate::prov::{Parcel, Taker, flags};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::outstanding::Op;
use crate::rdm::peers::peer::{Id, Peer, UNKNOWN};
use crate::rdm::peers::poll_schedule::EMPTY_POLLS_MAX;
use crate::rdm::state::State;
use crate::sync::cursor::Brief;
use crate::sys::time;
use std::sync::Arc;

/// Time between two polls of rare matters, in ticks of the clock counter.
const RARE_POLL_TICKS: u64 = 100_000;
/// The same time while lanes are being connected.
const CONNECTING_POLL_TICKS: u64 = 10_000;
/// Turns after a filled receive in which a message without a receive may stay with its lane. A program that reads its
/// queue until the queue is empty takes one turn without a message before it posts the next receive.
const DEFER_TURNS: u32 = 2;

/// Receives the parcels of one lane.
struct LaneSink<'a> {
    state: &'a mut State,
    id: Id,
    link: &'a Link,
    /// The lane has brought something in this poll.
    progressed: bool,
    /// A message without a receive may stay with the lane if a receive was filled just before, because the program is
    /// about to post the next receive, and a message that need not be stored costs half as much.
    may_defer: bool,
    /// At this moment, a message without a receive stays with the lane.
    defers: bool,
}

impl<'a> LaneSink<'a> {
    #[inline(always)]
    fn new(state: &'a mut State, id: Id, link: &'a Link, may_defer: bool) -> LaneSink<'a> {
        let defers = may_defer && link.turns_since_fill(state.turns) <= DEFER_TURNS;
        LaneSink { state, id, link, progressed: false, may_defer, defers }
    }

    #[inline(always)]
    fn take_parcel<P: Parcel + ?Sized>(&mut self, parcel: &P, all: &dyn Parcel) -> bool {
        self.progressed = true;
        match self.state.on_fast(self.id, self.link.number, parcel, self.defers) {
            FastOutcome::Filled => {
                self.state.last_fill_turn = self.state.turns;
                self.link.set_last_fill(self.state.turns);
                self.defers = self.may_defer;
                true
            }
            FastOutcome::Stored => {
                // The message had to be stored, so deferring is not tried again in this turn.
                self.may_defer = false;
                true
            }
            FastOutcome::Deferred => false,
            FastOutcome::Declined => self.state.on_parcel(self.id, self.link.number, all),
        }
    }
}

impl Taker for LaneSink<'_> {
    fn take(&mut self, parcel: &dyn Parcel) -> bool {
        self.take_parcel(parcel, parcel)
    }

    fn take_brief(&mut self, parcel: Brief<'_>) -> bool {
        self.take_parcel(&parcel, &parcel)
    }
}

impl State {
    /// One turn of progress.
    pub fn progress(&mut self, domain: &Domain, force: bool) {
        self.turn(domain, force);
    }

    /// As `progress`, but inlined into the caller.
    #[inline(always)]
    pub fn turn(&mut self, domain: &Domain, force: bool) {
        self.refresh_av();
        if self.polls_lanes || self.resume_polling() {
            self.poll_lanes(force);
        } else if !self.bind.enabled || self.closed {
            return self.progress_closed(domain);
        }
        self.turns = self.turns.wrapping_add(1);
        let connecting = self.lanes.is_connecting();
        if force
            || ((connecting || self.turns & 15 == 0)
                && time::ticks().wrapping_sub(self.last_rare_poll) > if connecting { CONNECTING_POLL_TICKS } else { RARE_POLL_TICKS })
        {
            self.poll_rare(domain, force);
        }
        self.run_queued_work(domain);
    }

    #[inline(always)]
    fn poll_lanes(&mut self, force: bool) {
        if let [(id, link)] = self.lanes.ready() {
            let (id, link) = (*id, Arc::as_ptr(link));
            // SAFETY: handling parcels neither connects nor ends a lane, so the only entry of `ready`, which owns the
            // link, stays where the entry is.
            self.poll_lane(id, unsafe { &*link }, force);
            return;
        }
        self.poll_all(force);
    }

    #[inline(never)]
    fn poll_all(&mut self, force: bool) {
        if force {
            for slot in 0..self.lanes.ready().len() {
                self.poll_slot(slot, true);
            }
            return;
        }
        let (active, quiet) = self.lanes.schedule().turn();
        let mut progressed = false;
        for k in 0..active + quiet {
            let slot = if k < active { self.lanes.schedule().next_active() } else { self.lanes.schedule().next_quiet() };
            progressed |= self.poll_slot(slot, false);
        }
        self.lanes.schedule().end_turn(progressed);
    }

    #[inline(always)]
    fn poll_slot(&mut self, slot: usize, force: bool) -> bool {
        let Some((id, link)) = self.lanes.ready().get(slot) else { return false };
        let (id, link) = (*id, Arc::as_ptr(link));
        // SAFETY: handling parcels neither connects nor ends a lane, so `ready` keeps its reference to the link, even if the entry moves to
        // another index.
        let link = unsafe { &*link };
        let progressed = self.poll_lane(id, link, force);
        if progressed {
            self.lanes.schedule().promote(link);
        } else if !force && link.count_empty_poll() >= EMPTY_POLLS_MAX && self.peers.get(id).is_some_and(Peer::is_at_rest) {
            self.lanes.schedule().demote(link);
        }
        progressed
    }

    /// True if the lane brought something or is working on something.
    #[inline(always)]
    pub fn poll_lane(&mut self, id: Id, link: &Link, force: bool) -> bool {
        // Nothing is deferred when a thread is about to sleep or a deadline is set, because both rely on nothing being
        // left in the lane.
        let may_defer = !force && self.sleepers == 0 && self.earliest == 0;
        let mut sink = LaneSink::new(self, id, link, may_defer);
        let is_working = link.lane().is_some_and(|lane| lane.take(force, &mut sink));
        is_working || sink.progressed
    }

    /// Handles everything that the peer has sent by now.
    pub fn drain_lane(&mut self, id: Id, link: &Link) {
        let mut sink = LaneSink::new(self, id, link, false);
        if let Some(lane) = link.lane() {
            lane.take_all(&mut sink);
        }
    }

    /// Handles the messages that were left with their lanes.
    pub fn drain_deferred(&mut self) {
        if !self.polls_lanes || self.turns.wrapping_sub(self.last_fill_turn) > DEFER_TURNS + 1 {
            return;
        }
        let has_deferred = |(_, link): &&(Id, Arc<Link>)| link.turns_since_fill(self.turns) <= DEFER_TURNS + 1;
        let lanes: Vec<_> = self.lanes.ready().iter().filter(has_deferred).cloned().collect();
        lanes.iter().for_each(|(id, link)| self.drain_lane(*id, link));
    }

    /// Carries out the work that parcels and results have queued while no lane could be touched: disconnects peers that
    /// broke the protocol, posts reads, sends, and closes regions.
    #[inline(always)]
    pub fn run_queued_work(&mut self, domain: &Domain) {
        let rest = self.violations.len() | self.peers.queued() | self.exposed.returned() | self.lists;
        if rest != 0 || !self.lanes.results().is_empty() {
            self.run_all_queued_work(domain);
        }
    }

    #[inline(never)]
    fn run_all_queued_work(&mut self, domain: &Domain) {
        self.take_results();
        if !self.violations.is_empty() {
            for (link, why) in std::mem::take(&mut self.violations) {
                if let Some(id) = self.lanes.peer_of(link) {
                    self.lane_lost(id, why);
                }
            }
        }
        self.post_reads(domain);
        self.take_results();
        for id in self.peers.take_busy() {
            self.peers.unmark_busy(id);
            self.flush(domain, id);
        }
        self.take_results();
        self.exposed.close_returned(domain);
    }

    /// Handles the results of the lanes' operations.
    #[inline]
    pub fn take_results(&mut self) {
        if self.lists != 0 {
            self.take_lists();
        }
        while !self.lanes.results().is_empty() {
            let mut batch = [Completion::default(); 32];
            let taken = self.lanes.results().take(batch.len(), |i, c| batch.iter_mut().skip(i).take(1).for_each(|slot| *slot = *c));
            match taken {
                Taken::Empty => return,
                Taken::Some(n) => batch.iter().take(n).for_each(|c| self.on_result(c, None)),
                Taken::ErrorFirst => {
                    if let Some((c, failure, _)) = self.lanes.results().take_error() {
                        self.on_result(&c, Some(failure.error));
                    }
                }
            }
        }
    }

    fn on_result(&mut self, c: &Completion, error: Option<Error>) {
        if c.flags & flags::REMOTE_WRITE != 0 {
            return self.on_remote_data(c);
        }
        let number = c.context as u64;
        match self.ops.get(number) {
            Some(Op::Rma { .. }) => self.rma_ended(number, error),
            Some(Op::Reading { .. }) => self.read_ended(number, error.map_or(Ok(()), Err)),
            _ => {}
        }
    }

    /// Writes the held entries (`held_writes`) as far as the receive queue has room. True if the queue still has room, so
    /// that lanes are polled again.
    #[cold]
    fn resume_polling(&mut self) -> bool {
        if !self.bind.enabled || self.closed {
            return false;
        }
        if let Some(q) = &self.bind.rx {
            while q.has_room()
                && let Some((entry, source)) = self.held_writes.pop_front()
            {
                q.push_from(entry, State::origin(None, source));
            }
            self.polls_lanes = q.has_room();
        }
        self.polls_lanes
    }

    pub fn rma_ended(&mut self, number: u64, error: Option<Error>) {
        let Some(Op::Rma { peer: id, completion, .. }) = self.ops.take(number) else { return };
        if let Some(peer) = self.peers.get_mut(id) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
            if !peer.waiting.is_empty() {
                self.peers.mark_busy(id);
            }
        }
        self.finish(&completion, error.map_or(Ok(()), Err));
    }

    /// Handles the entry of a peer's write with remote data.
    fn on_remote_data(&mut self, c: &Completion) {
        let from = self.lanes.peer_of(c.context).and_then(|id| self.peers.get(id));
        let source = from.map_or(UNSPEC, |p| p.source);
        self.remote_data_arrived(Completion { context: 0, ..*c }, source);
    }

    /// Writes the entry of a write with remote data to this endpoint's memory, or holds the entry until the queue has
    /// room.
    pub fn remote_data_arrived(&mut self, entry: Completion, source: u64) {
        if let Some(counter) = &self.bind.counters.remote_write {
            counter.add(1);
        }
        let Some(q) = &self.bind.rx else { return };
        self.polls_lanes &= q.has_room();
        match self.polls_lanes {
            true => q.push_from(entry, State::origin(None, source)),
            false => self.held_writes.push_back((entry, source)),
        }
    }

    /// Polls rare matters: callers, lanes that are being connected, events, deadlines, delayed receives.
    #[cold]
    fn poll_rare(&mut self, domain: &Domain, force: bool) {
        if self.listeners.is_due() || force {
            let called = self.accept_callers(domain);
            self.listeners.polled(called || force || self.lanes.is_connecting());
        }
        self.lanes.poll_connecting(force);
        self.take_events(domain);
        let now = time::now_ns();
        self.expire_awaiting(now);
        self.lanes.close_ended();
        self.retry_closes(domain, now);
        self.post_delayed(now);
        if self.earliest != 0 && now >= self.earliest {
            self.expire(domain, now);
        }
    }

    /// Ends operations and receives whose deadlines have passed.
    #[cold]
    fn expire(&mut self, domain: &Domain, now: u64) {
        let mut next = 0u64;
        let mut is_late = |deadline: u64| {
            if deadline > now && (next == 0 || deadline < next) {
                next = deadline;
            }
            deadline != 0 && deadline <= now
        };
        let late = || Error::late("the operation could not start or finish");
        let mut ended = Vec::new();
        for id in self.active() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            let (expired, waiting): (Vec<_>, Vec<_>) = peer.waiting.drain(..).partition(|w| is_late(w.completion.deadline));
            peer.waiting.extend(waiting);
            ended.extend(expired);
        }
        let taken: Vec<u64> = self
            .ops
            .each()
            .filter(
                |(_, op)| matches!(op, Op::Offered { completion, .. } | Op::Loopback { completion, .. } if is_late(completion.deadline)),
            )
            .map(|(n, _)| n)
            .collect();
        // Only reads that were not posted yet are checked, because the lanes enforce the deadlines of the others.
        let mut reads = self.peers.queued_reads().collect::<Vec<u64>>();
        reads.retain(|n| matches!(self.ops.get(*n), Some(Op::Reading { recv, .. }) if is_late(recv.deadline())));
        let receives = self.matching.take_receives(usize::MAX, |recv| is_late(recv.deadline()));
        let unfilled = Error::coded(errno::ETIMEDOUT, Code::Deadline, "no message came before the receive's deadline");
        self.end_delayed(&unfilled, usize::MAX, |held| is_late(held.recv.deadline()));
        self.earliest = next;
        ended.into_iter().for_each(|w| self.fail_pending(w, late()));
        for number in taken {
            match self.ops.get(number) {
                Some(Op::Loopback { .. }) => drop(self.withdraw_loopback(number, late())),
                _ => self.withdraw(domain, number, late()),
            }
        }
        for number in reads {
            self.read_ended(number, Err(late()));
        }
        for recv in receives {
            self.fail_recv(recv, unfilled.clone(), UNKNOWN);
        }
    }

    /// Ends everything because this side closes the endpoint or shuts it down.
    pub fn end_all(&mut self, domain: &Domain) {
        self.closed = true;
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side shut the endpoint down");
        for id in self.peers.ids() {
            self.lane_lost(id, why.clone());
        }
        self.end_receives(&why);
        // A lane ends the operations that it has; messages of this endpoint to itself have no lane.
        let own: Vec<u64> = self.ops.each().filter(|(_, op)| matches!(op, Op::Loopback { .. })).map(|(number, _)| number).collect();
        for number in own {
            if let Some(Op::Loopback { completion, .. }) = self.ops.take(number) {
                self.fail(&completion, why.clone());
            }
        }
        self.listeners.close();
        self.matching.drop_claimed();
        self.polls_lanes = false;
        self.settle_fast();
        self.exposed.close_returned(domain);
    }

    /// Fails all posted receives, in the order of posting.
    pub fn end_receives(&mut self, why: &Error) {
        for recv in self.matching.take_receives(usize::MAX, |_| true) {
            self.fail_recv(recv, why.clone(), UNKNOWN);
        }
        self.end_delayed(why, usize::MAX, |_| true);
    }

    /// Sends what the program believes sent (injected messages and answers to offers), for at most the configured time
    /// `close_ms`.
    pub fn flush_promised(&mut self, domain: &Domain) {
        let until = time::now_ns() + crate::config::get().close_ms * 1_000_000;
        while self.has_unsent_promises() && time::now_ns() < until {
            self.progress(domain, true);
            std::thread::yield_now();
        }
    }

    /// Progress of an endpoint that is shut down or not enabled: closes lanes and exposed regions.
    #[cold]
    fn progress_closed(&mut self, domain: &Domain) {
        self.take_results();
        self.lanes.close_ended();
        self.exposed.close_returned(domain);
        self.retry_closes(domain, time::now_ns());
    }

    /// Closes regions that were busy, and fails the offers that have ended by that.
    pub fn retry_closes(&mut self, domain: &Domain, now: u64) {
        for (completion, why) in self.exposed.retry(domain, now) {
            self.fail(&completion, why);
        }
    }
}
