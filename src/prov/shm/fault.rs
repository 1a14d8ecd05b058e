// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection of a shm endpoint. Such an endpoint takes no fast path (`shared_from` and `eager_end` are 0), so faults are
//! injected where operations of any shape are posted.

use super::state::{Phase, State};
use crate::prov::fault::{Op, Verdict};

impl State {
    /// Asks the fault plan for the fate of an accepted operation. Operations of a lane are let through: the user of the lane injects
    /// its faults.
    #[inline]
    pub fn judge(&mut self, op: Op) -> Verdict {
        match (&mut self.faults, &self.phase) {
            (None, _) => Verdict::Go,
            _ if self.bind.is_lane() => Verdict::Go,
            (Some(f), Phase::Connected) => f.plan.post(op),
            (Some(f), Phase::Enabled | Phase::Connecting(_)) => f.plan.early(op),
            // An operation after the end of the connection cannot be early.
            _ => Verdict::Go,
        }
    }

    /// Posts the receives that fault injection has delayed long enough, or beyond their deadlines.
    #[cold]
    pub fn release_held(&mut self, now: u64) {
        let Some(faults) = &mut self.faults else { return };
        while let Some((until, recv)) = faults.held.front()
            && (*until <= now || (recv.deadline != 0 && recv.deadline <= now))
            && self.recvs.room().is_ok()
            && let Some((_, recv)) = faults.held.pop_front()
        {
            self.recvs.push_back(recv);
        }
    }
}
