// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults on demand of an shm endpoint. It takes no fast path then (`shared_from` and `eager_end` are 0), so the
//! faults happen where operations of any shape are posted.

use super::state::{Phase, State};
use crate::prov::fault::{Op, Verdict};

impl State {
    /// What a fault on demand does to an operation that was accepted; of a lane, who uses it looks after that.
    #[inline]
    pub fn judge(&mut self, op: Op) -> Verdict {
        match (&mut self.faults, &self.phase) {
            (None, _) => Verdict::Go,
            _ if self.bind.is_lane() => Verdict::Go,
            (Some(f), Phase::Connected) => f.plan.post(op),
            (Some(f), Phase::Enabled | Phase::Connecting(_)) => f.plan.early(op),
            // What is over is not late any more.
            _ => Verdict::Go,
        }
    }

    /// Receives that a fault on demand has kept long enough, or beyond their deadlines, are there now.
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
