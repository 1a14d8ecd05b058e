// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress of a connectionless endpoint. Each turn polls lanes for parcels, completes their operations, and sends what
//! waits for room. Now and then a turn also polls rare matters: callers, lanes that are being connected, events,
//! deadlines. The cost of a turn grows with the number of active peers, not with the number of all peers.

use crate::error::{Code, Error, errno};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::peers::peer::{Peer, UNKNOWN};
use crate::rdm::peers::poll_schedule::EMPTY_POLLS_MAX;
use crate::rdm::state::State;
use crate::sys::time;
use std::sync::Arc;

impl State {
    /// One turn of progress.
    pub fn progress(&mut self, domain: &Domain, force: bool) {
        self.turn(domain, force);
    }

    /// As `progress`, but inlined into the caller.
    #[inline(always)]
    pub fn turn(&mut self, domain: &Domain, force: bool) {
        self.refresh_av();
        if self.reports.polls_lanes() || self.resume_polling() {
            self.poll_lanes(force);
        } else if !self.bind.enabled || self.closed {
            return self.progress_closed(domain);
        }
        if self.turns.begin(self.lanes.is_connecting()) || force {
            self.poll_rare(domain, force);
        }
        self.run_queued_work(domain);
    }

    /// True if the receive queue has room again, so that lanes are polled.
    #[cold]
    fn resume_polling(&mut self) -> bool {
        self.bind.enabled && !self.closed && self.reports.resume_polling(&self.bind)
    }

    #[inline(always)]
    fn poll_lanes(&mut self, force: bool) {
        if let [(id, link)] = self.lanes.connected_lanes() {
            let (id, link) = (*id, Arc::as_ptr(link));
            // SAFETY: handling parcels neither connects nor ends a lane, so `ready` keeps its only entry, which owns a
            // reference to the link.
            self.poll_lane(id, unsafe { &*link }, force);
            return;
        }
        self.poll_all(force);
    }

    #[inline(never)]
    fn poll_all(&mut self, force: bool) {
        if force {
            for slot in 0..self.lanes.connected_lanes().len() {
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
        let Some((id, link)) = self.lanes.connected_lanes().get(slot) else { return false };
        let (id, link) = (*id, Arc::as_ptr(link));
        // SAFETY: handling parcels neither connects nor ends a lane, so `ready` keeps its reference to the link, even if the
        // entry moves to another index.
        let link = unsafe { &*link };
        let progressed = self.poll_lane(id, link, force);
        if progressed {
            self.lanes.schedule().promote(link);
        } else if !force && link.count_empty_poll() >= EMPTY_POLLS_MAX && self.peers.get(id).is_some_and(Peer::is_at_rest) {
            self.lanes.schedule().demote(link);
        }
        progressed
    }

    /// Carries out the work that parcels and results have queued, because no lane may be touched while parcels are handled:
    /// disconnects peers that broke the protocol, posts reads, sends, and closes regions.
    #[inline(always)]
    pub fn run_queued_work(&mut self, domain: &Domain) {
        let rest = self.violations.len() | self.peers.queued_work() | self.exposed.returned() | self.lists;
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

    /// Polls rare matters: callers, lanes that are being connected, events, peers that are dialed again, lanes and regions
    /// that could not be closed yet, delayed receives, deadlines.
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
                |(_, op)| matches!(op, OutstandingOp::Offered { completion, .. } | OutstandingOp::Loopback { completion, .. } if is_late(completion.deadline)),
            )
            .map(|(n, _)| n)
            .collect();
        // Only reads that were not posted yet are checked, because the lanes enforce the deadlines of posted reads.
        let mut reads = self.peers.queued_reads().collect::<Vec<u64>>();
        reads.retain(|n| matches!(self.ops.get(*n), Some(OutstandingOp::Reading { recv, .. }) if is_late(recv.deadline())));
        let receives = self.matching.take_receives(usize::MAX, |recv| is_late(recv.deadline()));
        let unfilled = Error::coded(errno::ETIMEDOUT, Code::Deadline, "no message came before the receive's deadline");
        self.end_delayed(&unfilled, usize::MAX, |held| is_late(held.recv.deadline()));
        self.earliest = next;
        ended.into_iter().for_each(|w| self.fail_pending(w, late()));
        for number in taken {
            match self.ops.get(number) {
                Some(OutstandingOp::Loopback { .. }) => drop(self.withdraw_loopback(number, late())),
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

    /// Makes progress until everything is finished that the program takes for finished (`has_unsent_promises`), but no
    /// longer than the configured time `close_ms`.
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
}
