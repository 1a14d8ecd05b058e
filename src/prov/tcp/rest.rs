// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rest: who drives many endpoints need not visit one that only its socket, a post or its next deadline gives something to do.

use super::conn::More;
use super::state::{Phase, State};
use crate::prov::rest::Rest;
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
