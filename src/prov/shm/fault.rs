// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection of a shm endpoint. An endpoint with a fault plan takes no fast path, because its bounds of the fast
//! paths (`State::shared_from` and `State::eager_end`) are 0. So only the general functions that post operations ask
//! for faults.

use super::state::{Phase, State};
use crate::prov::fault::{FaultOp, Verdict};

impl State {
    /// Asks the fault plan for the fate of an accepted operation. An operation of a lane always goes on, because the
    /// connectionless endpoint above the lane injects the faults of its own operations.
    #[inline]
    pub fn judge(&mut self, op: FaultOp) -> Verdict {
        match (&mut self.faults, &self.phase) {
            (None, _) => Verdict::Go,
            _ if self.bind.is_lane() => Verdict::Go,
            (Some(f), Phase::Connected) => f.plan.post(op),
            (Some(f), Phase::Enabled | Phase::Connecting(_)) => f.plan.early(op),
            // After the end of the connection the operation fails anyway, so no fault delays the operation.
            _ => Verdict::Go,
        }
    }

    /// Posts the delayed receives whose delay is over or whose deadline has passed, as far as the receive queue has
    /// room.
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
