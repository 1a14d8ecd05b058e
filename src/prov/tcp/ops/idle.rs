// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resting: a thread that drives many endpoints does not visit an endpoint whose only further work comes from its
//! socket, a post, or its next deadline (`prov::idle_set`). This file decides when the endpoint may rest, and when the
//! endpoint calls the thread back.

use crate::prov::idle_set::IdleSet;
use crate::prov::tcp::conn::StreamsState;
use crate::prov::tcp::state::{Phase, State};
use crate::sys::time::now_ns;
use std::sync::Arc;

impl State {
    /// True if the socket or a post announces all further work.
    fn is_idle(&self) -> bool {
        let quiet = match self.conn.as_deref() {
            Some(conn) => {
                // In these states nothing happens before a body is posted, and the tuner then finds out whether further
                // streams would help.
                let one = matches!(
                    conn.streams_state,
                    StreamsState::None | StreamsState::Refused(_) | StreamsState::OnDemand(_) | StreamsState::Asked(_)
                ) && conn.connector.is_none();
                one && matches!(self.phase, Phase::Connected) && conn.is_quiet() && !conn.owes_ack() && !conn.rx.holds_more()
            }
            None => matches!(self.phase, Phase::Down(_)) && self.recvs.is_empty(),
        };
        // The layer above reads a lane outside of turns of progress, so a lane never rests here.
        let whole = self.faults.is_none() && self.acceptor.is_none() && !self.bind.is_lane();
        quiet && whole && (self.unexpected.is_empty() || self.recvs.is_empty())
    }

    /// The time of the next work that neither the socket nor a post announces; `u64::MAX`: none.
    fn next_look(&self) -> u64 {
        let keepalive = self.conn.as_ref().map_or(u64::MAX, |conn| conn.keepalive_due());
        if self.earliest == 0 { keepalive } else { keepalive.min(self.earliest) }
    }

    /// Lets the endpoint rest, if it may. Returns the latest time until which the endpoint rests; work ends the rest
    /// earlier. `None`: the endpoint may not rest. `number`: the endpoint's number in `at`.
    pub fn join_idle_set(&mut self, at: &Arc<IdleSet>, number: u64) -> Option<u64> {
        let until = self.next_look();
        if !self.is_idle() || (until < u64::MAX && until <= now_ns()) {
            return None;
        }
        if let Some(conn) = &self.conn {
            at.watch(conn.socket(), number).ok()?;
        }
        self.idle_until = if self.idle_sets.is_empty() { until } else { self.idle_until.max(until) };
        if !self.idle_sets.iter().any(|(other, n)| Arc::ptr_eq(other, at) && *n == number) {
            self.idle_sets.push((at.clone(), number));
        }
        Some(until)
    }

    /// Called after everything that may have given the endpoint work: ends the rest if the endpoint is no longer idle.
    #[inline(always)]
    pub fn leave_idle_sets_if_active(&mut self) {
        if !self.idle_sets.is_empty() {
            self.leave_idle_sets_if_active_slow();
        }
    }

    #[inline(never)]
    fn leave_idle_sets_if_active_slow(&mut self) {
        if !self.is_idle() || self.next_look() < self.idle_until {
            self.leave_idle_sets();
        }
    }

    /// Ends the rest: calls the endpoint back in every set in which it rests.
    #[cold]
    pub fn leave_idle_sets(&mut self) {
        if self.idle_sets.is_empty() {
            return;
        }
        self.idle_sets.drain(..).for_each(|(at, number)| at.call(number));
        self.bind.wake_sleepers();
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::prov::Endpoint as _;
    use crate::prov::bind::Binding;
    use crate::prov::idle_set::IdleSet;
    use crate::prov::info::Info;
    use crate::prov::ops::OpFlags;
    use crate::prov::queue::Queue;
    use crate::prov::tcp::conn::StreamsState;
    use crate::prov::tcp::domain::Domain;
    use crate::prov::tcp::locked::Endpoint;
    use crate::prov::tcp::state::Phase;
    use crate::prov::tcp::stream::tuner::StreamTuner;
    use crate::sync::serial::Threading;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn connected() -> [Endpoint; 2] {
        let info = Info::default();
        let ends = [(); 2].map(|()| Endpoint::open(Arc::new(Domain::open(&info, Threading::Safe).unwrap()), &info, 0).unwrap());
        for ep in &ends {
            let queue = Arc::new(Queue::new(100, Threading::Safe).unwrap());
            ep.bind(Binding::Cq { queue, source: None, transmit: true, receive: true, selective: false }).unwrap();
            ep.bind(Binding::Eq(Arc::default())).unwrap();
            ep.enable(OpFlags::default()).unwrap();
        }
        let names = ends.each_ref().map(|ep| ep.address().unwrap());
        ends[0].connect_addr(&names[1]).unwrap();
        ends[1].connect_addr(&names[0]).unwrap();
        drive(&ends, |ends| ends.iter().all(is_connected));
        ends
    }

    fn is_connected(ep: &Endpoint) -> bool {
        matches!(ep.state.lock().phase, Phase::Connected)
    }

    fn drive(ends: &[Endpoint; 2], mut until: impl FnMut(&[Endpoint; 2]) -> bool) {
        let start = Instant::now();
        while !until(ends) {
            ends.iter().for_each(|ep| ep.progress(true));
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }

    /// Sets the state of an endpoint's further streams, as if the peer were on another host.
    fn may_have(ep: &Endpoint, streams_state: StreamsState) {
        if let Some(conn) = ep.state.lock().conn.as_deref_mut() {
            (conn.streams_state, conn.tuner) = (streams_state, Some(Box::new(StreamTuner::new())));
        }
    }

    #[test]
    fn connections_that_may_have_further_streams_rest() {
        let ends = connected();
        let set = Arc::new(IdleSet::new().unwrap());
        let refused = || StreamsState::Refused(Box::new(Error::fixed(1, "it uses none")));
        for streams_state in [StreamsState::None, refused(), StreamsState::OnDemand(4), StreamsState::Asked(4)] {
            may_have(&ends[0], streams_state);
            drive(&ends, |ends| ends[0].join_idle_set(&set, 1).is_some());
        }
        may_have(&ends[0], StreamsState::Awaiting { count: 1, links: Vec::new(), until: u64::MAX });
        assert!(ends[0].join_idle_set(&set, 1).is_none());
    }

    #[test]
    fn a_peer_that_wants_no_streams_stays_connected_when_asked() {
        let ends = connected();
        let dialer = ends.iter().position(|ep| ep.state.lock().conn.as_ref().is_some_and(|c| c.is_dialer)).unwrap();
        may_have(&ends[dialer], StreamsState::Refused(Box::new(Error::fixed(1, "the peer is on this host"))));
        may_have(&ends[1 - dialer], StreamsState::OnDemand(4));
        ends[1 - dialer].state.lock().invite(4);
        let start = Instant::now();
        drive(&ends, |_| start.elapsed() > Duration::from_millis(50));
        assert!(ends.iter().all(is_connected));
    }
}
