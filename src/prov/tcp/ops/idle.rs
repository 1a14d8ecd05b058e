// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rest: who drives many endpoints need not visit one that only its socket, a post or its next deadline gives something to do.

use crate::prov::rest::Rest;
use crate::prov::tcp::conn::More;
use crate::prov::tcp::state::{Phase, State};
use crate::sys::time::now_ns;
use std::sync::Arc;

impl State {
    /// Whether nothing waits here that no socket announces, and that no post brings.
    fn is_idle(&self) -> bool {
        let quiet = match self.conn.as_deref() {
            Some(conn) => {
                // Whether further streams would help, long bodies tell.
                let one = matches!(conn.more, More::None | More::Refused(_) | More::Later(_) | More::Asked(_)) && conn.junction.is_none();
                one && matches!(self.phase, Phase::Connected) && conn.is_quiet() && !conn.owes() && !conn.rx.holds_more()
            }
            None => matches!(self.phase, Phase::Down(_)) && self.recvs.is_empty(),
        };
        // What lanes bring is fetched, and not by a turn of progress.
        let whole = self.faults.is_none() && self.greeter.is_none() && !self.bind.is_lane();
        quiet && whole && (self.unexpected.is_empty() || self.recvs.is_empty())
    }

    fn next_look(&self) -> u64 {
        let vigil = self.conn.as_ref().map_or(u64::MAX, |conn| conn.vigil_due());
        if self.earliest == 0 { vigil } else { vigil.min(self.earliest) }
    }

    pub fn rest(&mut self, at: &Arc<Rest>, number: u64) -> Option<u64> {
        let until = self.next_look();
        if !self.is_idle() || (until < u64::MAX && until <= now_ns()) {
            return None;
        }
        if let Some(conn) = &self.conn {
            at.watch(conn.socket(), number).ok()?;
        }
        self.rests_until = if self.resting.is_empty() { until } else { self.rests_until.max(until) };
        if !self.resting.iter().any(|(other, n)| Arc::ptr_eq(other, at) && *n == number) {
            self.resting.push((at.clone(), number));
        }
        Some(until)
    }

    /// After whatever may have given it something to do.
    #[inline(always)]
    pub fn stir(&mut self) {
        if !self.resting.is_empty() {
            self.stir_resting();
        }
    }

    #[inline(never)]
    fn stir_resting(&mut self) {
        if !self.is_idle() || self.next_look() < self.rests_until {
            self.rouse();
        }
    }

    #[cold]
    pub fn rouse(&mut self) {
        if self.resting.is_empty() {
            return;
        }
        self.resting.drain(..).for_each(|(at, number)| at.call(number));
        self.bind.rouse();
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::prov::Endpoint as _;
    use crate::prov::bind::Binding;
    use crate::prov::info::Info;
    use crate::prov::ops::OpFlags;
    use crate::prov::queue::Queue;
    use crate::prov::rest::Rest;
    use crate::prov::tcp::conn::More;
    use crate::prov::tcp::domain::Domain;
    use crate::prov::tcp::locked::Endpoint;
    use crate::prov::tcp::state::Phase;
    use crate::prov::tcp::stream::tuner::Judge;
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

    /// The further streams of one that another host's peer may be asked for.
    fn may_have(ep: &Endpoint, more: More) {
        if let Some(conn) = ep.state.lock().conn.as_deref_mut() {
            (conn.more, conn.judge) = (more, Some(Box::new(Judge::new())));
        }
    }

    #[test]
    fn connections_that_may_have_further_streams_rest() {
        let ends = connected();
        let rest = Arc::new(Rest::new().unwrap());
        let refused = || More::Refused(Box::new(Error::fixed(1, "it uses none")));
        for more in [More::None, refused(), More::Later(4), More::Asked(4)] {
            may_have(&ends[0], more);
            drive(&ends, |ends| ends[0].rest(&rest, 1).is_some());
        }
        may_have(&ends[0], More::Awaits { count: 1, links: Vec::new(), until: u64::MAX });
        assert!(ends[0].rest(&rest, 1).is_none());
    }

    #[test]
    fn who_is_asked_for_streams_and_wants_none_stays_connected() {
        let ends = connected();
        let dialer = ends.iter().position(|ep| ep.state.lock().conn.as_ref().is_some_and(|c| c.is_dialer)).unwrap();
        may_have(&ends[dialer], More::Refused(Box::new(Error::fixed(1, "the peer is on this host"))));
        may_have(&ends[1 - dialer], More::Later(4));
        ends[1 - dialer].state.lock().invite(4);
        let start = Instant::now();
        drive(&ends, |_| start.elapsed() > Duration::from_millis(50));
        assert!(ends.iter().all(is_connected));
    }
}
