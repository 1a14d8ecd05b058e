// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults on demand of an shm endpoint. It takes no short ways then (`shared_from` and `eager_end` are 0), so the
//! faults happen where operations of any shape are posted.

use super::RX_SIZE;
use super::domain::Domain;
use super::msg::expire_receives;
use super::state::{Phase, Recv, State};
use crate::error::{Error, Result};
use crate::prov::fault::{Op, Plan, Verdict};
use std::collections::VecDeque;

/// Faults on demand of an endpoint.
pub struct Faults {
    pub plan: Box<Plan>,
    /// Receives that are not there yet, and when they are.
    pub held: VecDeque<(u64, Recv)>,
}

impl State {
    /// What a fault on demand does to an operation that was accepted.
    #[inline]
    pub fn judge(&mut self, op: Op) -> Verdict {
        match (&mut self.faults, &self.phase) {
            (None, _) => Verdict::Go,
            (Some(f), Phase::Connected) => f.plan.post(op),
            (Some(f), Phase::Enabled | Phase::Connecting(_)) => f.plan.early(op),
            // What is over is not late any more.
            _ => Verdict::Go,
        }
    }

    /// Posts a receive with faults.
    #[cold]
    pub fn recv_faulty(&mut self, domain: &Domain, recv: Recv) -> Result<()> {
        if self.recvs.len() + self.faults.as_ref().map_or(0, |f| f.held.len()) >= RX_SIZE {
            return Err(Error::AGAIN);
        }
        match (self.judge(Op::Recv), &mut self.faults) {
            (Verdict::Hold(until), Some(faults)) => {
                faults.held.push_back((until, recv));
                Ok(())
            }
            (verdict, _) => {
                self.recvs.push_back(recv);
                if verdict == Verdict::Lose {
                    self.down(domain, Plan::gone());
                    return Ok(());
                }
                self.match_posted(domain);
                Ok(())
            }
        }
    }

    /// Receives that a fault on demand has kept long enough, or beyond their deadlines, are there now.
    #[cold]
    pub fn release_receives(&mut self, domain: &Domain, now: u64) -> Result<()> {
        let Some(faults) = &mut self.faults else { return Ok(()) };
        let due = |(until, r): &(u64, Recv)| *until <= now || (r.deadline != 0 && r.deadline <= now);
        while faults.held.front().is_some_and(due)
            && let Some((_, recv)) = faults.held.pop_front()
        {
            self.recvs.push_back(recv);
        }
        expire_receives(self, now);
        self.match_unexpected(domain)
    }
}
